"""A plan is a pure function of the blueprint, and user text never becomes Dockerfile syntax.

``UPDATE_GOLDEN=1`` rewrites the files under ``golden``; read the difference before committing it.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest
from django.conf import settings

from builds.planner import HARNESSES, Catalogue, ImagePlan, UnsupportedError, plan, reach_of
from controlplane.errors import ValidationFailed
from workspaces.blueprint import Blueprint, Egress, PackageRequest
from workspaces.blueprint.contents import ProvidedHarness
from workspaces.blueprint.running import TargetOs
from workspaces.egress.host_policy import Policy
from workspaces.egress.presets import Presets
from workspaces.families import FAMILIES
from workspaces.packages.facts import NOTHING
from workspaces.packages.lookup import UNBUILT
from workspaces.packages.serializers import OsSupportsSerializer
from workspaces.packages.standardization import standardize

GOLDEN = Path(__file__).parent / "golden"

CATALOGUE = Catalogue({family: f"registry.example/{family}:1" for family in FAMILIES})

RICH: dict[str, Any] = {
    "sources": {
        "workspace": {"url": "https://example.org/o/app.git", "ref": "v1"},
        "inputs": [{"id": "dots", "purpose": "dotfiles", "url": "https://example.org/o/dots.git"}],
    },
    "tooling": {"packages": [{"id": "rg"}, {"id": "node"}, {"id": "build-essential"}]},
    "customization": {"defaultShell": "fish", "sudo": False},
    "runtime": {"workspaceRoot": "/srv/work", "workingDirectory": "/srv/work/app"},
}

HARNESS_MEMBERS: dict[str, dict[str, object]] = {
    **{name: {"id": name} for name in HARNESSES},
    "custom": {"id": "custom", "install": "npm install -g mine", "command": ["mine", "--now"]},
}

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def planned(os_family: str = "debian", **members: object) -> ImagePlan:
    blueprint = Blueprint.parse({"harness": {"id": "shell"}, **members})
    return plan(blueprint, os_family, CATALOGUE)


def tooling(os_family: str) -> dict[str, Any]:
    """Return the tools of RICH as a sandbox's creation stores them."""
    asked = [PackageRequest(id=package["id"]) for package in RICH["tooling"]["packages"]]
    stored = standardize(asked, os_family, NOTHING)
    return {"packages": [{"id": package.id} for package in stored]}


def file_of(image_plan: ImagePlan, path: str) -> str:
    (content,) = (file.content for file in image_plan.files if file.path == path)
    return content.decode()


def rendering(image_plan: ImagePlan) -> str:
    """Return a plan as text that shows every change of it."""
    facts = {
        field.name: getattr(image_plan, field.name)
        for field in dataclasses.fields(image_plan)
        if field.name not in {"dockerfile", "files", "sources"}
    }
    facts["sources"] = [dataclasses.asdict(source) for source in image_plan.sources]
    parts = [json.dumps(facts, indent=2), "=== Dockerfile", image_plan.dockerfile]
    for file in sorted(image_plan.files, key=lambda file: file.path):
        parts += [f"=== {file.path} {file.mode:o}", file.content.decode()]
    return "\n".join(parts)


@pytest.mark.parametrize("harness", HARNESS_MEMBERS)
@pytest.mark.parametrize("os_family", FAMILIES)
def test_the_plan_is_the_one_on_file(os_family: str, harness: str) -> None:
    try:
        text = rendering(
            planned(
                os_family,
                **{**RICH, "harness": HARNESS_MEMBERS[harness], "tooling": tooling(os_family)},
            )
        )
    except UnsupportedError as error:
        text = f"{error.code}: {error.message}\n"
    golden = GOLDEN / f"{os_family}-{harness}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_every_place_that_names_the_families_and_harnesses_names_all_of_them() -> None:
    families = set(FAMILIES)
    assert set(get_args(TargetOs.model_fields["family"].annotation)) == {"auto", *families}
    assert set(settings.SVC_BASE_IMAGES) == families
    assert set(OsSupportsSerializer().fields) == families | set(UNBUILT)
    assert set(get_args(ProvidedHarness.model_fields["id"].annotation)) == set(HARNESSES)


class TestWhatIsPlanned:
    def test_auto_is_the_default_family_of_the_catalogue(self) -> None:
        blueprint = Blueprint.parse({"harness": {"id": "shell"}})
        assert plan(blueprint, "auto", CATALOGUE).os_family == "debian"
        other = dataclasses.replace(CATALOGUE, default_family="alpine")
        assert plan(blueprint, "auto", other).os_family == "alpine"

    def test_only_the_base_image_varies_in_the_dockerfiles_of_a_family(self) -> None:
        for family in FAMILIES:
            bare = planned(family).dockerfile
            rich = planned(family, **RICH, harness=HARNESS_MEMBERS["custom"]).dockerfile
            assert bare == rich
            elsewhere = Catalogue({family: "other.example/x@sha256:0"})
            blueprint = Blueprint.parse({"harness": {"id": "shell"}})
            expected = bare.replace(f"registry.example/{family}:1", "other.example/x@sha256:0")
            assert plan(blueprint, family, elsewhere).dockerfile == expected

    def test_everything_the_dockerfile_copies_is_in_the_context(self) -> None:
        image_plan = planned()
        given = {"extra-ca.crt", "sources.tar", "svc-agent"}
        given |= {file.path for file in image_plan.files}
        copied = [
            word
            for line in image_plan.dockerfile.splitlines()
            if line.startswith(("COPY ", "ADD "))
            for word in line.split()[1:-1]
        ]
        assert sorted(copied) == sorted(given)

    def test_the_layer_that_all_images_share_depends_on_nothing_a_blueprint_says(self) -> None:
        bare, rich = planned(), planned(**RICH, harness=HARNESS_MEMBERS["codex"])
        for path in ("trust.sh", "packages.sh", "base.list", "user.sh"):
            assert file_of(bare, f"install/{path}") == file_of(rich, f"install/{path}")

    def test_what_the_base_or_the_harness_brings_is_not_installed_twice(self) -> None:
        image_plan = planned(
            harness={"id": "codex"},
            tooling={"packages": [{"id": "git"}, {"id": "nodejs"}, {"id": "jq"}]},
        )
        assert file_of(image_plan, "install/packages.list") == "jq\n"

    def test_names_are_taken_as_they_are_stored(self) -> None:
        # The table would make neovim of the first and refuse the second; an operator or an index
        # has settled on them.
        image_plan = planned(tooling={"packages": [{"id": "nvim"}, {"id": "pnpm"}]})
        assert file_of(image_plan, "install/packages.list") == "nvim\npnpm\n"

    def test_a_pinned_package_is_installed_even_if_another_version_is_there(self) -> None:
        image_plan = planned(tooling={"packages": [{"id": "git", "version": "1:2.39.5-0"}]})
        assert file_of(image_plan, "install/packages.list") == "git=1:2.39.5-0\n"
        fedora = planned("fedora", tooling={"packages": [{"id": "jq", "version": "1.7"}]})
        assert file_of(fedora, "install/packages.list") == "jq-1.7\n"

    @pytest.mark.parametrize(
        ("os_family", "manager", "expected"),
        [
            ("debian", "auto", "stow\n"),
            ("debian", "stow", "stow\n"),
            ("debian", "chezmoi", ""),
            ("debian", "copy", ""),
            ("arch", "auto", "stow\nchezmoi\n"),
            ("alpine", "chezmoi", "chezmoi\n"),
        ],
    )
    def test_a_dotfiles_manager_is_installed_where_it_is_packaged(
        self, os_family: str, manager: str, expected: str
    ) -> None:
        image_plan = planned(
            os_family, sources=RICH["sources"], customization={"dotfilesManager": manager}
        )
        assert file_of(image_plan, "install/packages.list") == expected

    def test_dotfiles_that_are_not_applied_are_not_fetched(self) -> None:
        image_plan = planned(sources=RICH["sources"], customization={"applyDotfiles": False})
        assert [source.id for source in image_plan.sources] == ["workspace"]
        assert file_of(image_plan, "install/packages.list") == ""

    def test_a_blueprint_without_sources_has_an_empty_working_directory(self) -> None:
        image_plan = planned()
        assert image_plan.sources == ()
        assert image_plan.working_directory == "/workspace/repo"

    def test_root_can_be_the_user(self) -> None:
        image_plan = planned(customization={"user": "root", "defaultShell": "zsh"})
        assert (image_plan.user, image_plan.uid, image_plan.home) == ("root", 0, "/root")
        assert json.loads(file_of(image_plan, "install/workspace.json"))["sudo"] is False

    @pytest.mark.parametrize(
        ("harness", "command"),
        [
            ("opencode", ("opencode",)),
            ("codex", ("codex",)),
            ("claude-code", ("claude",)),
            ("shell", ()),
            ("custom", ("mine", "--now")),
        ],
    )
    def test_the_command_starts_the_harness(self, harness: str, command: tuple[str, ...]) -> None:
        assert planned(harness=HARNESS_MEMBERS[harness]).harness_command == command

    def test_the_scripts_are_sound_shell(self) -> None:
        for family in FAMILIES:
            scripts = [file for file in planned(family).files if file.path.endswith(".sh")]
            assert scripts, family
            for file in scripts:
                done = subprocess.run(
                    ["sh", "-n"], input=file.content, capture_output=True, check=False
                )
                assert done.returncode == 0, (family, file.path, done.stderr)
                assert b"\nset -eu\n" in file.content


class TestWhatIsNotSupported:
    @pytest.mark.parametrize(
        ("os_family", "members", "code", "words"),
        [
            ("nix", {}, "unsupported-os", "nix"),
            ("debian", {"tooling": {"packages": [{"id": "a_b"}]}}, "unsupported-package", "a_b"),
            (
                "debian",
                {"tooling": {"packages": [{"id": "curl-"}]}},
                "unsupported-package",
                "curl-",
            ),
            (
                "arch",
                {"tooling": {"packages": [{"id": "jq", "version": "1"}]}},
                "unsupported-package",
                "remove the version of jq",
            ),
            ("alpine", {"harness": {"id": "opencode"}}, "unsupported-harness", "Alpine"),
            (
                "debian",
                {"target": {"runtime": {"family": "k3s"}}},
                "unsupported-runtime-requirement",
                "k3s",
            ),
            (
                "debian",
                {"sources": {"inputs": [{"id": "a", "purpose": "config", "url": "https://a.b/c"}]}},
                "unsupported-runtime-requirement",
                "config",
            ),
            (
                "debian",
                {
                    "sources": {
                        "inputs": [
                            {"id": "a", "purpose": "dotfiles", "url": "https://a.b/c"},
                            {"id": "b", "purpose": "dotfiles", "url": "https://a.b/d"},
                        ]
                    }
                },
                "unsupported-runtime-requirement",
                "More than one",
            ),
        ],
    )
    def test_the_reason_is_one_of_the_specification_and_the_message_helps(
        self, os_family: str, members: dict[str, object], code: str, words: str
    ) -> None:
        with pytest.raises(UnsupportedError) as caught:
            planned(os_family, **members)
        assert caught.value.code == code
        assert words in caught.value.message

    def test_a_family_without_base_image_is_not_offered(self) -> None:
        blueprint = Blueprint.parse({"harness": {"id": "shell"}})
        with pytest.raises(UnsupportedError) as caught:
            plan(blueprint, "fedora", Catalogue({"debian": "d"}))
        assert caught.value.code == "unsupported-os"

    def test_a_harness_that_the_operator_left_out_is_not_offered(self) -> None:
        few = dataclasses.replace(CATALOGUE, harnesses={"shell": HARNESSES["shell"]})
        with pytest.raises(UnsupportedError) as caught:
            plan(Blueprint.parse({"harness": {"id": "codex"}}), "debian", few)
        assert caught.value.code == "unsupported-harness"

    def test_an_oci_runtime_that_the_operator_left_out_is_not_offered(self) -> None:
        few = dataclasses.replace(CATALOGUE, oci_runtimes=frozenset({"runc"}))
        blueprint = Blueprint.parse(
            {"harness": {"id": "shell"}, "runtime": {"ociRuntime": "runsc"}}
        )
        with pytest.raises(UnsupportedError) as caught:
            plan(blueprint, "debian", few)
        assert caught.value.code == "unsupported-runtime-requirement"

    def test_a_base_image_that_would_break_the_dockerfile_is_refused(self) -> None:
        for reference in ("", "a b", "a\nRUN x", "-a", "a AS b"):
            with pytest.raises(ValueError, match="image reference"):
                Catalogue({"debian": reference})


FULL: dict[str, Any] = {
    **RICH,
    "harness": HARNESS_MEMBERS["custom"],
    "customization": {"dotfilesBootstrapCommand": "make"},
    "tooling": {"packages": [{"id": "jq", "version": "1.6"}]},
    "lifecycle": {
        "setup": [{"id": "s", "run": "true", "workingDirectory": "x"}],
        "startup": {"steps": [], "foreground": {"kind": "command", "run": "true"}},
    },
    "runtime": {"env": {"A": "b"}, "workspaceRoot": "/w", "workingDirectory": "/w/x"},
}

INJECTIONS = [
    "x\nRUN touch /pwned",
    "x\r\nRUN touch /pwned",
    "x\u2028RUN touch /pwned",
    "x\\\nRUN touch /pwned",
    "x$(touch /pwned)",
    "x`touch /pwned`",
    "x; touch /pwned",
    "x && touch /pwned",
    "x' 'RUN touch /pwned",
    'x", "touch", "/pwned',
    "${PATH}",
    "$PATH",
    "# escape=`",
    "x\n# syntax=evil.example/frontend",
    "<<EOF",
    "--from=evil.example/image",
    "../../etc/passwd",
    "-o=Dir::Etc=/pwned",
]


def string_places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    if isinstance(value, str):
        return [path]
    entries: Any = ()
    if isinstance(value, dict | list):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
    return [place for key, entry in entries for place in string_places(entry, (*path, key))]


@pytest.mark.parametrize("text", INJECTIONS)
@pytest.mark.parametrize("place", string_places(FULL), ids=lambda place: ".".join(map(str, place)))
def test_no_string_of_a_blueprint_can_change_the_dockerfile(
    place: tuple[str | int, ...], text: str
) -> None:
    document = copy.deepcopy(FULL)
    target: Any = document
    for part in place[:-1]:
        target = target[part]
    target[place[-1]] = text
    try:
        blueprint = Blueprint.parse(document)
    except ValidationFailed:
        return
    image_plan = plan(blueprint, "debian", CATALOGUE)
    assert image_plan.dockerfile == planned().dockerfile
    scripts = {file.path: file.content for file in planned().files if file.path.endswith(".sh")}
    for file in image_plan.files:
        if file.path in scripts:
            assert file.content == scripts[file.path]
        if file.path.endswith(".list"):
            assert all(not line.startswith("-") for line in file.content.decode().split("\n"))


@pytest.mark.parametrize("text", INJECTIONS)
def test_no_name_of_a_variable_can_carry_syntax(text: str) -> None:
    with pytest.raises(ValidationFailed):
        Blueprint.parse({"harness": {"id": "shell"}, "runtime": {"env": {text: "x"}}})


class TestFingerprint:
    @staticmethod
    def of(image_plan: ImagePlan, **changes: Any) -> str:
        values: dict[str, Any] = {
            "commits": {"workspace": COMMIT, "dots": COMMIT},
            "base_image_id": "sha256:1",
            "agent_digest": "2",
            "extra_ca": b"",
        }
        return image_plan.fingerprint(**{**values, **changes})

    def test_the_same_blueprint_has_the_same_fingerprint(self) -> None:
        assert self.of(planned(**RICH)) == self.of(planned(**RICH))
        assert len(self.of(planned(**RICH))) == 64

    @pytest.mark.parametrize(
        "changes",
        [
            {"commits": {"workspace": "f" * 40, "dots": COMMIT}},
            {"commits": {"workspace": COMMIT, "dots": "f" * 40}},
            {"base_image_id": "sha256:2"},
            {"agent_digest": "3"},
            {"extra_ca": b"-----BEGIN CERTIFICATE-----"},
        ],
    )
    def test_it_covers_what_only_the_worker_knows(self, changes: dict[str, Any]) -> None:
        assert self.of(planned(**RICH)) != self.of(planned(**RICH), **changes)

    def test_it_covers_what_the_steps_of_an_author_may_reach_and_of_nobody_else(self) -> None:
        theirs = planned(**{**RICH, "harness": HARNESS_MEMBERS["custom"]})
        deny = Policy.of(Egress(), Presets({})).to_wire()
        allow = Policy.of(Egress(default="allow"), Presets({})).to_wire()

        def under(image_plan: ImagePlan, policy: dict[str, Any] | None, *, outbound: bool) -> str:
            reach = reach_of(image_plan, outbound=outbound, policy=policy)
            return self.of(image_plan, network=reach)

        reaches = ((None, True), (None, False), (deny, True), (allow, True))
        told = [under(theirs, egress, outbound=outbound) for egress, outbound in reaches]
        assert len(set(told)) == 4
        assert told[0] == self.of(theirs)
        for egress, outbound in reaches:
            assert under(planned(), egress, outbound=outbound) == self.of(planned())

    @pytest.mark.parametrize(
        "members",
        [
            {"harness": {"id": "codex"}},
            {"harness": HARNESS_MEMBERS["custom"]},
            {"tooling": {"packages": [{"id": "jq"}]}},
            {"customization": {**RICH["customization"], "defaultShell": "zsh"}},
            {"customization": {**RICH["customization"], "sudo": True}},
            {"customization": {**RICH["customization"], "user": "root"}},
            {"runtime": {**RICH["runtime"], "workingDirectory": "/srv/work"}},
            {"runtime": {**RICH["runtime"], "workspaceRoot": "/srv"}},
            {"sources": {"inputs": RICH["sources"]["inputs"]}},
            {"sources": {"workspace": RICH["sources"]["workspace"]}},
        ],
    )
    def test_it_covers_what_the_blueprint_says_about_the_image(
        self, members: dict[str, Any]
    ) -> None:
        assert self.of(planned(**RICH)) != self.of(planned(**{**RICH, **members}))

    @pytest.mark.parametrize(
        "members",
        [
            {"lifecycle": {"setup": [{"run": "true"}]}},
            {"runtime": {**RICH["runtime"], "env": {"A": "b"}}},
            {"runtime": {**RICH["runtime"], "network": {"outbound": False}}},
            {"runtime": {**RICH["runtime"], "resources": {"memoryMb": 512}}},
            {"access": {"ssh": {"enabled": True}}},
        ],
    )
    def test_what_only_matters_at_launch_is_not_part_of_it(self, members: dict[str, Any]) -> None:
        assert self.of(planned(**RICH)) == self.of(planned(**{**RICH, **members}))

    def test_another_base_image_or_family_is_another_image(self) -> None:
        prints = {self.of(planned(family, **RICH)) for family in FAMILIES}
        assert len(prints) == len(FAMILIES)

    def test_a_source_without_a_commit_is_an_error(self) -> None:
        with pytest.raises(KeyError):
            self.of(planned(**RICH), commits={"workspace": COMMIT})
