"""`make up` and its kind on bad days: one line that says what is wrong, and nothing half done."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import docker
import pytest

from deploy.services.engine import choose_client, mounts_below
from deploy.services.registry import PrivateRegistry
from deploy.up.secrets import read_settings
from tests.deploy.installation import CHECKOUT
from tests.stack.disks import fill, read_only, small_disk
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import BASE_IMAGE, DOCKER_HOST


def call(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the set-up with a data folder of the test's own."""
    return subprocess.run(
        [sys.executable, "-m", "deploy.up", *arguments],
        cwd=CHECKOUT,
        env={"PATH": os.environ["PATH"], "SVC_DATA_DIR": str(data)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONG_WAIT,
        check=False,
    )


@pytest.mark.docker
@pytest.mark.parametrize("command", ["up", "status", "env"])
def test_a_data_folder_that_may_only_be_read_is_told_in_one_line(
    tmp_path: Path, command: str
) -> None:
    with read_only(tmp_path):
        done = call(tmp_path / "data", command)
    assert done.returncode == 1
    assert done.stderr.strip() == (
        f"{tmp_path / 'data'} cannot be written: Read-only file system."
        " Correct that or name another folder in SVC_DATA_DIR."
    )


@pytest.mark.docker
def test_a_full_disk_is_told_in_one_line_and_leaves_no_half_of_the_secrets(tmp_path: Path) -> None:
    with small_disk(tmp_path / "data", "64k") as data:
        for folder in ("log", "run", "services"):
            (data / folder).mkdir(mode=0o700)
        ballast = fill(data)
        done = call(data, "status")
        assert done.returncode == 1
        (line,) = done.stderr.strip().splitlines()
        assert "cannot be written: No space left on device." in line
        assert not (data / ".env").exists()
        ballast.unlink()
        call(data, "status")
        assert len(read_settings(data / ".env")["SVC_DB_PASSWORD"]) == 64


def test_secrets_that_others_could_read_are_closed_with_a_word(tmp_path: Path) -> None:
    (tmp_path / "services").mkdir()
    assert call(tmp_path, "env").stderr == ""
    secrets = tmp_path / ".env"
    before = secrets.read_bytes()
    secrets.chmod(0o644)
    done = call(tmp_path, "env")
    assert done.returncode == 0
    assert done.stderr == (
        f"warning: {secrets} had mode 644 and has 600 now; "
        "whoever could read it may know the secrets\n"
    )
    assert secrets.stat().st_mode & 0o777 == 0o600
    assert secrets.read_bytes() == before
    assert call(tmp_path, "env").stderr == ""


def test_what_is_stopped_is_no_failure_of_make(tmp_path: Path) -> None:
    (tmp_path / "services").mkdir()
    done = subprocess.run(
        ["make", "-s", "status", f"PYTHON={sys.executable}"],
        cwd=CHECKOUT,
        env={"PATH": os.environ["PATH"], "SVC_DATA_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LONG_WAIT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for name in (
        *("api", "buildworker", "runworker", "engineworkers"),
        *("sshgateway", "previewgateway", "egressproxy"),
    ):
        assert [name, "stopped"] in [line.split() for line in done.stdout.splitlines()]
    assert "Start it: make up" in done.stdout
    assert call(tmp_path, "status").returncode == 3


def test_what_is_removed_is_not_said_to_be_kept(open_directory: Path) -> None:
    service = PrivateRegistry(open_directory / "services" / "registry", None, "password")
    service.start()
    try:
        done = call(open_directory, "clean", "--yes")
    finally:
        service.stop()
    assert done.returncode == 0, done.stderr
    assert "stopped" in done.stdout
    assert "kept" not in done.stdout
    assert not open_directory.exists()


@pytest.fixture
def engine() -> Iterator[docker.DockerClient]:
    """The engine of the tests."""
    client = docker.DockerClient(base_url=DOCKER_HOST, timeout=int(LONG_WAIT))
    yield client
    client.close()


@pytest.mark.docker
def test_the_homes_of_workspaces_are_removed_from_an_engine_that_is_not_ours(
    tmp_path: Path, engine: docker.DockerClient
) -> None:
    instance = f"svc-{uuid4().hex[:8]}"
    home, used, strange = (f"{instance}-{name}" for name in ("home", "used", "strange"))
    for name, label in ((home, instance), (used, instance), (strange, f"{instance}-other")):
        engine.volumes.create(name, labels={"svc.instance": label})
    stranger = engine.containers.create(
        BASE_IMAGE, network_mode="none", volumes={used: {"bind": "/used", "mode": "rw"}}
    )
    data = tmp_path / "data"
    (data / "services").mkdir(parents=True)
    client = choose_client(DOCKER_HOST, os.environ)
    told = {"SVC_INSTANCE_ID": instance, "DOCKER_HOST": DOCKER_HOST, "DOCKER_CLI": client}
    (data / ".env").write_text("".join(f"{name}={value}\n" for name, value in told.items()))
    try:
        done = call(data, "clean", "--yes")
        assert done.returncode == 0, done.stderr
        left = {volume.name for volume in engine.volumes.list(filters={"name": instance})}
        assert left == {used, strange}
        assert "removed 1 volumes" in done.stdout
        assert f"Could not be removed, and stays: volume {used}." in done.stdout
    finally:
        stranger.remove(force=True)
        for volume in engine.volumes.list(filters={"name": instance}):
            volume.remove()


def test_what_lies_in_services_of_others_is_not_said_to_be_removed(tmp_path: Path) -> None:
    (tmp_path / "services").mkdir()
    (tmp_path / "environment").write_text(
        "SVC_UP_PARTS=postgres:given,rabbitmq:private,registry:found,engine:found\n"
    )
    asked = call(tmp_path, "clean")
    assert asked.returncode == 1
    removed, stays, *_ = asked.stdout.splitlines()
    assert "volumes and image, the queue, and the secrets of this checkout" in removed
    told = "What stays, in services that are not this checkout's: the database, the registry."
    assert stays.startswith(told)
    assert tmp_path.exists()
    assert told in call(tmp_path, "clean", "--yes").stdout


@pytest.mark.docker
def test_a_mount_in_a_folder_with_spaces_is_found(tmp_path: Path) -> None:
    with small_disk(tmp_path / "with a space", "64k") as place:
        assert mounts_below(tmp_path) == [place]
