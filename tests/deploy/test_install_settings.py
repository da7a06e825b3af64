"""Settings that only an installation in containers reads are checked before anything is started."""

from __future__ import annotations

import contextlib
import io
import tarfile
from pathlib import Path
from typing import Any

import docker
import pytest
import yaml

from tests.deploy.installation import Installation, listening, made_installation
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import BASE_IMAGE, DOCKER_HOST


@pytest.mark.parametrize("bind", ["web.example", "127.0.0.300", "::1", "127.0.0.1:80"])
def test_an_address_that_compose_cannot_bind_is_told(tmp_path: Path, bind: str) -> None:
    installation = made_installation(tmp_path, SVC_BIND_HOST=bind)
    done = installation.run("check", "--min-free-mb", "1")
    assert done.returncode == 1
    assert f"install.sh: SVC_BIND_HOST: {bind} is no IPv4 address" in done.stderr


def test_times_that_are_no_numbers_are_told_by_name_all_of_them(tmp_path: Path) -> None:
    installation = made_installation(
        tmp_path,
        WORKSPACE_BUILD_TIMEOUT_MS="half an hour",
        WORKSPACE_PUSH_TIMEOUT_MS="0",
        RABBITMQ_CONSUMER_TIMEOUT_MS="4h",
    )
    done = installation.run("check", "--min-free-mb", "1")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "install.sh: RABBITMQ_CONSUMER_TIMEOUT_MS: 4h is no number of milliseconds",
        "install.sh: WORKSPACE_BUILD_TIMEOUT_MS: half an hour is no number of milliseconds",
        "install.sh: WORKSPACE_PUSH_TIMEOUT_MS: 0 is no number of milliseconds",
    ]


def test_the_egress_proxys_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with listening() as taken:
        port = taken.getsockname()[1]
        installation = made_installation(tmp_path, SVC_EGRESS_PORT=str(port))
        done = installation.run("check", "--min-free-mb", "1")
    assert done.returncode == 1
    assert f"SVC_EGRESS_PORT: something else listens on port {port}; stop it or" in done.stderr


def test_an_installation_of_an_earlier_release_gets_an_egress_proxy(tmp_path: Path) -> None:
    installation = made_installation(tmp_path, SVC_EGRESS_PORT="")
    assert installation.call("find_docker; settle").returncode == 0
    assert installation.settings["SVC_EGRESS_PORT"] == "4053"


def _services(installation: Installation) -> dict[str, Any]:
    assert installation.call("find_docker; settle").returncode == 0
    done = installation.run("compose", "config")
    assert done.returncode == 0, done.stderr
    return dict(yaml.safe_load(done.stdout)["services"])


def test_the_egress_proxy_is_in_the_machines_network_and_publishes_no_database(
    tmp_path: Path,
) -> None:
    installation = made_installation(tmp_path)
    services = _services(installation)
    proxy = services["egressproxy"]
    password = installation.settings["SVC_DB_PASSWORD"]
    assert proxy["network_mode"] == "host"
    assert (
        proxy["environment"]["DATABASE_URL"] == f"postgres://svc:{password}@%2Frun%2Fpostgresql/svc"
    )
    assert "ports" not in services["postgres"]
    assert "/var/run/postgresql" in str(services["postgres"]["volumes"])
    port = installation.settings["SVC_EGRESS_PORT"]
    told = (services[name]["environment"]["SVC_EGRESS_PORT"] for name in ("api", "buildworker"))
    assert {*map(str, told)} == {port}


def test_a_database_of_the_operators_own_is_the_egress_proxys_too(tmp_path: Path) -> None:
    theirs = "postgres://svc:secret@db.example:5432/svc"
    services = _services(made_installation(tmp_path, DATABASE_URL=theirs))
    assert services["egressproxy"]["environment"]["DATABASE_URL"] == theirs


def test_there_is_no_egress_proxy_without_a_port(tmp_path: Path) -> None:
    services = _services(made_installation(tmp_path, SVC_EGRESS_PORT="0"))
    assert "egressproxy" not in services
    assert "postgresql:" not in str(services["postgres"]["volumes"])
    assert str(services["buildworker"]["environment"]["SVC_EGRESS_PORT"]) == "0"


def test_there_is_no_egress_proxy_whose_port_our_rules_do_not_keep(tmp_path: Path) -> None:
    with listening() as taken:
        port = str(taken.getsockname()[1])
        given = {"SVC_EGRESS_PORT": port, "SVC_NETWORK_GUARD": "external"}
        installation = made_installation(tmp_path, **given)
        assert installation.run("check", "--min-free-mb", "1").returncode == 0
    services = _services(installation)
    assert "egressproxy" not in services
    assert "postgresql:" not in str(services["postgres"]["volumes"])


def _archived(name: str, said: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        entry = tarfile.TarInfo(f"egress-journal/{name}")
        entry.size = len(said)
        archive.addfile(entry, io.BytesIO(said))
    return made.getvalue()


@pytest.mark.docker
def test_a_journal_that_is_put_back_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    image, _, version = BASE_IMAGE.partition(":")
    installation = made_installation(tmp_path, SVC_IMAGE=image, SVC_VERSION=version)
    archive = tmp_path / "a journal.tar"
    put_back = f"find_docker; restore_journal < '{archive}'"
    listed = "find_docker; in_volume egress sh -c 'cd /var/lib/svc && find . -type f'"
    try:
        archive.write_bytes(_archived("before", b"whole"))
        assert installation.call(put_back).returncode == 0
        archive.write_bytes(_archived("after", bytes(1_000_000))[:500_000])
        assert installation.call(put_back).returncode != 0
        assert "./egress-journal/before" in installation.call(listed).stdout.split()
        archive.write_bytes(_archived("after", b"whole"))
        assert installation.call(put_back).returncode == 0
        assert installation.call(listed).stdout.split() == ["./egress-journal/after"]
    finally:
        with contextlib.closing(
            docker.DockerClient(DOCKER_HOST, timeout=round(LONG_WAIT))
        ) as engine:
            engine.volumes.get(f"{installation.settings['SVC_INSTANCE_ID']}_egress").remove()
