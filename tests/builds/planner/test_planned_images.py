"""A planned image of Debian is what its blueprint says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from builds.images.context import BuildError
from builds.planner import ImagePlan, plan
from runs.agent_archive import agent_archive
from tests.builds.planner import images
from workspaces.blueprint import Blueprint

pytestmark = pytest.mark.docker


def planned(**members: object) -> ImagePlan:
    blueprint = Blueprint.parse({"harness": {"id": "shell"}, **members})
    return plan(blueprint, "debian", images.CATALOGUE)


@pytest.fixture(scope="module")
def rich_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    tag = images.build(
        planned(
            sources={"workspace": {"url": "https://example.org/o/app.git"}},
            harness={
                "id": "custom",
                "install": "printf '#!/bin/sh\\njq --version\\n' > /usr/local/bin/mine\n"
                "chmod 0755 /usr/local/bin/mine",
                "command": ["mine"],
            },
            tooling={"packages": [{"id": "jq"}, {"id": "ripgrep"}, {"id": "tree"}]},
            customization={"defaultShell": "zsh"},
            runtime={"workspaceRoot": "/srv/work", "workingDirectory": "/srv/work/a/b"},
        ),
        tmp_path_factory.mktemp("rich"),
        ca=images.extra_ca(),
    )
    yield tag
    images.remove(tag)


@pytest.fixture(scope="module")
def bare_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    tag = images.build(planned(customization={"sudo": False}), tmp_path_factory.mktemp("bare"))
    yield tag
    images.remove(tag)


def test_the_packages_and_what_always_belongs_are_installed(rich_image: str) -> None:
    found = images.run(rich_image, "command -v jq rg tree git python3 curl ssh ps sudo zsh less")
    assert len(found.splitlines()) == 11


def test_what_ssh_clients_start_in_a_workspace_is_there(bare_image: str) -> None:
    found = images.run(bare_image, "command -v scp rsync /usr/lib/openssh/sftp-server")
    assert len(found.splitlines()) == 3


def test_a_custom_harness_is_installed_after_the_packages(rich_image: str) -> None:
    assert images.run(rich_image, "mine").startswith("jq-")


def test_the_user_has_the_chosen_shell_and_a_home(rich_image: str) -> None:
    entry = images.run(rich_image, "getent passwd workspace").strip()
    assert entry == "workspace:x:1000:1000::/home/workspace:/usr/bin/zsh"
    assert (
        images.run(rich_image, "stat -c '%U:%G' /home/workspace").strip() == "workspace:workspace"
    )


def test_the_workspace_belongs_to_the_user_and_its_parents_do_not(rich_image: str) -> None:
    owners = images.run(
        rich_image, "stat -c '%U %n' /srv /srv/work /srv/work/a /srv/work/a/b /srv/work/a/b/README"
    )
    assert [line.split()[0] for line in owners.splitlines()] == ["root", *["workspace"] * 4]


def test_sudo_needs_no_password_where_the_blueprint_grants_it(rich_image: str) -> None:
    assert images.run(rich_image, "sudo -n id -u", options=("--user", "workspace")).strip() == "0"


def test_sudo_is_inert_where_the_blueprint_denies_it(bare_image: str) -> None:
    answer = images.run(
        bare_image, "sudo -n id -u 2>&1 || echo refused", options=("--user", "workspace")
    )
    assert answer.splitlines()[-1] == "refused"
    assert images.run(bare_image, "find / -xdev -name sudo -perm /4000") == ""


def test_the_agent_is_the_entry_and_belongs_to_root(bare_image: str) -> None:
    assert images.run(bare_image, "/usr/lib/svc/agent boot").strip() == "agent boot"
    assert images.run(bare_image, "stat -c '%U %a' /usr/lib/svc/agent").strip() == "root 755"


def test_the_agent_is_compiled_with_the_python_of_the_image(tmp_path: Path) -> None:
    tag = images.build(planned(), tmp_path, agent=agent_archive())
    try:
        compiled = images.run(tag, "echo /usr/lib/svc/agent.*")
        assert compiled.endswith(".cpython-311\n")
        assert images.run(tag, f"stat -c '%U %a' {compiled}").strip() == "root 755"
        traced = '/usr/bin/python3 -ISv /usr/lib/svc/agent runs 2>&1 | grep "^import \'agent"'
        imported = images.run(tag, traced).splitlines()
        assert imported
        assert all("SourcelessFileLoader" in line for line in imported)
    finally:
        images.remove(tag)


def test_extra_certificates_are_trusted_by_the_system_and_by_languages(rich_image: str) -> None:
    environment = images.environment_of(rich_image)
    bundle = environment["SSL_CERT_FILE"]
    assert environment["NODE_EXTRA_CA_CERTS"] == environment["REQUESTS_CA_BUNDLE"] == bundle
    trusted = "".join(images.run(rich_image, f"cat {bundle}").split())
    certificates = images.extra_ca().decode().split("-----BEGIN CERTIFICATE-----")[1:]
    assert certificates
    for certificate in certificates:
        body = certificate.partition("-----END CERTIFICATE-----")[0]
        assert "".join(body.split()) in trusted


def test_the_locale_is_utf8(bare_image: str) -> None:
    assert images.run(bare_image, "locale charmap").strip() == "UTF-8"


def test_nothing_of_the_installation_is_left_behind(rich_image: str) -> None:
    left = images.run(
        rich_image, "ls /var/lib/apt/lists /var/cache/apt/archives | grep deb || true"
    )
    assert left == ""


def test_a_package_that_does_not_exist_fails_the_build(tmp_path: Path) -> None:
    unknown = planned(tooling={"packages": [{"id": "libcurl4.openssl"}]})
    with pytest.raises(BuildError, match=r"Unable to locate package libcurl4\.openssl"):
        images.build(unknown, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_provided_harnesses_start_without_a_network(tmp_path: Path) -> None:
    for harness, says in (
        ("opencode", "1.18.33"),
        ("codex", "0.169.0"),
        ("claude-code", "2.1.329"),
    ):
        context = tmp_path / harness
        context.mkdir()
        image_plan = planned(harness={"id": harness})
        tag = images.build(image_plan, context, ca=images.extra_ca())
        try:
            answer = images.run(
                tag, f"{image_plan.harness_command[0]} --version", options=("--user", "workspace")
            )
            assert says in answer
            assert images.run(tag, "find / -xdev -path '*claude-code-linux-*-musl'") == ""
        finally:
            images.remove(tag)
