"""The whole service as deploy/install.sh installs it: used, repaired, upgraded and removed.

The tests of this file share one installation and follow one another as an operator's year does.
Each begins with one that is well, whatever became of the test before.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from tests.deploy.installation import made_installation
from tests.deploy.installed import (
    BLUEPRINT,
    ON_THE_WAY,
    OWNER,
    SECONDS,
    Installed,
    rules_of_the_kernel,
)
from tests.security.internet import internet
from tests.security.surroundings import PUBLIC
from tests.stack.container_output import heard_to_the_end
from tests.stack.disks import small_disk
from tests.stack.free_ports import free_ports
from tests.stack.processes import end, runs
from tests.stack.sandboxes import nap
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import BASE_IMAGE, DOCKER_HOST
from workspaces.runtimes.docker.networks import bridge_prefix

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """An installation whose images come from Debian's packages, as no public registry is asked."""
    home = tmp_path_factory.mktemp("installed")
    # The base image of the other tests: nothing is downloaded for it.
    installation = made_installation(
        home,
        SVC_BASE_IMAGE=BASE_IMAGE,
        SVC_BASE_IMAGE_DEBIAN=BASE_IMAGE,
        SVC_WORKSPACE_NETWORK_POOL="10.219.0.0/16",
        PACKAGE_SYNC_FAMILIES="",
        SVC_DRAIN_SECONDS="60",
        SVC_E2B_PORT=str(free_ports(1)[0]),
        SVC_EGRESS_RESOLVERS=PUBLIC,
    )
    instance = installation.settings["SVC_INSTANCE_ID"]
    for name, image in (
        ("POSTGRES", "postgres:15-bookworm"),
        ("RABBITMQ", "rabbitmq:3.13"),
        ("REGISTRY", "registry:2"),
    ):
        with installation.env.open("a") as env:
            env.write(f"\nSVC_{name}_IMAGE={instance}/{image}")
    engine = docker.DockerClient(base_url=DOCKER_HOST, timeout=120)
    try:
        done = installation.run("install", "--min-free-mb", "500", seconds=1500)
        assert done.returncode == 0, done.stdout + done.stderr
        yield Installed(installation, engine)
    finally:
        if installation.env.exists():
            installation.run("uninstall", "--yes", seconds=300)
        engine.close()


@pytest.fixture(autouse=True)
def _whole(installed: Installed) -> None:
    installed.make_whole()


def test_everything_is_ready_and_nothing_is_missing(installed: Installed) -> None:
    installed.becomes_ready()
    for name in (
        *("postgres", "rabbitmq", "registry", "api", "buildworker", "runworker"),
        *("sshgateway", "previewgateway", "e2bfacade", "enginebuildworkers", "enginerunworkers"),
        "egressproxy",
    ):
        _until(lambda: installed.service(name).attrs["State"]["Health"]["Status"] == "healthy")  # noqa: B023
    web = f"http://127.0.0.1:{installed.installation.settings['SVC_WEB_PORT']}/healthz"
    with urllib.request.urlopen(web, timeout=60) as answer:
        assert answer.status == 200
    assert installed.service("migrate").attrs["State"]["ExitCode"] == 0
    done = installed.installation.run("status")
    assert done.returncode == 0, done.stdout + done.stderr


def test_nobody_uses_the_registry_without_its_account(installed: Installed) -> None:
    assert installed.registry_status() == 401
    assert installed.registry_status("a guess") == 401
    password = installed.installation.settings["SVC_REGISTRY_PASSWORD"]
    assert installed.registry_status(password) == 200


def test_ours_run_as_nobody_special(installed: Installed) -> None:
    ours = ("api", "buildworker", "runworker", "sshgateway", "previewgateway", "e2bfacade")
    for name in (*ours, "egressproxy"):
        _, said = heard_to_the_end(installed.service(name), "id", "-u")
        assert said == b"10001\n", name


def test_a_workspace_becomes_ready_and_does_what_it_is_told(installed: Installed) -> None:
    said = installed.run_in_workspace("cat ~/kept; echo hello from $(id -un)")
    assert "hello from " in said


def test_a_workspace_with_a_policy_reaches_its_hosts_and_its_record_says_so(
    installed: Installed, tmp_path: Path
) -> None:
    limited = installed.limited()
    with internet(tmp_path) as world:
        assert "welcome" in installed.page_in(limited, "allowed.test")
        assert installed.page_in(limited, "other.test") == ""
        assert world.asked == {"allowed.test"}
    _until(
        lambda: (
            {"egress allowed: http allowed.test", "egress refused: dns other.test"}
            <= {summary.partition(" port")[0] for summary in installed.decided_in(limited)}
        )
    )


def test_people_get_in_over_ssh(installed: Installed, tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    public = key.with_suffix(".pub").read_text().strip()
    installed.call(
        "POST", "/v1/ssh-keys", {"ownerUserId": OWNER, "name": "mine", "publicKey": public}
    )
    done = subprocess.run(
        [
            *("ssh", "-i", key, "-p", installed.installation.settings["SVC_SSH_PORT"]),
            *("-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"),
            *("-o", f"UserKnownHostsFile={tmp_path / 'hosts'}", "-F", "none"),
            *(f"ws-{installed.workspace_id}@127.0.0.1", "cat > copy; cat ~/kept copy"),
        ],
        input=b"half closed\n",
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"kept\nhalf closed\n"), done.stderr


def test_the_broker_waits_longer_than_the_longest_job(installed: Installed) -> None:
    question = "application:get_env(rabbit, consumer_timeout)."
    code, said = heard_to_the_end(
        installed.service("rabbitmq"), "rabbitmqctl", "-q", "eval", question
    )
    assert (code, said) == (0, b"{ok,14400000}\n"), said


def test_installing_again_repairs_what_is_broken(installed: Installed) -> None:
    installation, before = installed.installation, installed.installation.settings
    workspace = installed.workspace().id
    limited = installed.workspace(installed.limited())
    limited.exec_run(["getent", "hosts", "before.test"])
    # What is decided now is in the journal of the egress proxy, and nowhere else.
    database = installed.service("postgres")
    database.pause()
    try:
        limited.exec_run(["getent", "hosts", "meanwhile.test"])
        installed.service("egressproxy").remove(force=True)
    finally:
        database.unpause()
    # The engine takes it for unhealthy until it has looked again.
    _until(lambda: installed.service("postgres").attrs["State"]["Health"]["Status"] == "healthy")
    installed.service("api").remove(force=True)
    installed.service("sshgateway").stop(timeout=5)
    installed.service("migrate").remove()
    installation.env.chmod(0o644)
    done = installation.run("install", "--min-free-mb", "500", seconds=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "has 600 now" in done.stderr
    assert installation.settings == before
    _until(lambda: installed.service("sshgateway").attrs["State"]["Health"]["Status"] == "healthy")
    installed.becomes_ready()
    assert installed.workspace().id == workspace
    _until(lambda: "meanwhile.test" in str(installed.decided_in(installed.limited_id)))


def test_a_backup_brings_back_what_was(installed: Installed) -> None:
    done = installed.installation.run("backup", seconds=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (installed.installation.home / "backups").iterdir()
    kept = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    files = ("database.dump", "env", "host_ed25519_key", "egress-journal.tar")
    assert kept == dict.fromkeys(files, 0o600)
    path = f"/v1/workspaces/{installed.workspace_id}"
    name = installed.owned(path)["name"]
    installed.call("PATCH", f"{path}/name", {"ownerUserId": OWNER, "name": "changed"})
    done = installed.installation.run(
        "restore", str(folder), "--yes", "--min-free-mb", "500", seconds=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert installed.owned(path)["name"] == name
    assert "kept" in installed.run_in_workspace("cat ~/kept")


def test_a_backup_that_cannot_be_restored_leaves_the_service_as_it_was(
    installed: Installed, tmp_path: Path
) -> None:
    name = installed.owned(f"/v1/workspaces/{installed.workspace_id}")["name"]
    done = installed.installation.run("backup", seconds=300)
    assert done.returncode == 0, done.stdout + done.stderr
    newest = max((installed.installation.home / "backups").iterdir())
    dump = (newest / "database.dump").read_bytes()
    (tmp_path / "database.dump").write_bytes(dump[: len(dump) // 2])
    done = installed.installation.run(
        "restore", str(tmp_path), "--yes", "--min-free-mb", "500", seconds=900
    )
    assert done.returncode == 1
    assert "nothing was restored" in done.stderr
    installed.becomes_ready()
    assert installed.owned(f"/v1/workspaces/{installed.workspace_id}")["name"] == name
    question = "select 1 from pg_database where datname in ('svc_restored', 'svc_before')"
    assert _asked_of_the_database(installed, question) == ""


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def _asked_of_the_database(installed: Installed, question: str) -> str:
    psql = ("psql", "-U", "svc", "-qAt", "-c", question)
    code, said = heard_to_the_end(installed.service("postgres"), *psql)
    assert code == 0, said
    return said.decode().strip()


@contextlib.contextmanager
def _copies_wait(installed: Installed) -> Iterator[None]:
    """Have no copy of the database come to its end inside the block, and nothing else wait."""
    lock = "BEGIN; LOCK TABLE auth_group; SELECT pg_sleep(3600)"
    psql = ["psql", "-U", "svc", "-q", "-c", lock]
    installed.service("postgres").exec_run(psql, detach=True)
    holder = "FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    _until(lambda: _asked_of_the_database(installed, f"SELECT pid {holder}"))
    try:
        yield
    finally:
        _asked_of_the_database(installed, f"SELECT pg_terminate_backend(pid) {holder}")


def _copies_that_wait(installed: Installed) -> bool:
    question = (
        "SELECT 1 FROM pg_stat_activity"
        " WHERE application_name = 'pg_dump' AND wait_event_type = 'Lock'"
    )
    return bool(_asked_of_the_database(installed, question))


def test_an_upgrade_that_was_interrupted_is_finished_by_the_next_try(
    installed: Installed, tmp_path: Path
) -> None:
    installation = installed.installation
    marker = installation.home / ".upgrade"
    # As versions had them whose registry asked for no account.
    lines = installation.env.read_text().splitlines()
    kept = [line for line in lines if not line.startswith("SVC_REGISTRY_PASSWORD=")]
    installation.env.write_text("\n".join([*kept, ""]))
    workspace = installed.workspace().id
    limited = installed.workspace(installed.limited()).id
    # Killed while it copies the database, once the workers are stopped: the worst of moments.
    with _copies_wait(installed):
        upgrading = installation.begin("upgrade", "0.4.1", "--min-free-mb", "500")
        try:
            _until(lambda: _copies_that_wait(installed) or upgrading.poll() is not None)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(upgrading.pid, signal.SIGKILL)
            upgrading.wait()
    # Its `docker compose exec` may live on until the copy has ended.
    _, said = upgrading.communicate(timeout=LONG_WAIT)
    assert marker.exists(), said
    assert installed.service("buildworker").status == "exited"
    waits = ("--wait", str(int(LONG_WAIT)))
    refused = installation.run("upgrade", "0.4.2", *waits, seconds=2 * LONG_WAIT)
    assert refused.returncode == 1
    assert "the upgrade to 0.4.1 was interrupted" in refused.stderr
    done = installation.run("install", "--min-free-mb", "500", *waits, seconds=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finishing it" in done.stdout
    assert not marker.exists()
    assert installation.settings["SVC_VERSION"] == "0.4.1"
    for name in (
        *("migrate", "api", "buildworker", "runworker", "enginebuildworkers"),
        *("enginerunworkers", "sshgateway", "previewgateway", "egressproxy"),
    ):
        configured = installed.service(name).attrs["Config"]["Image"]
        assert configured == f"{installed.instance}/controlplane:0.4.1"
    installed.becomes_ready()
    assert list((installation.home / "backups").glob("before-0.4.1-*/database.dump"))
    assert installed.registry_status() == 401
    assert installed.registry_status(installation.settings["SVC_REGISTRY_PASSWORD"]) == 200
    assert installed.workspace().id == workspace
    assert "kept" in installed.run_in_workspace("cat ~/kept")
    assert installed.workspace(installed.limited_id).id == limited
    with internet(tmp_path):
        assert "welcome" in installed.page_in(installed.limited_id, "allowed.test")
        assert installed.page_in(installed.limited_id, "other.test") == ""
    # The version before is not kept.
    names = installed.engine.images.list(f"{installed.instance}/controlplane")
    assert [image.tags for image in names] == [[f"{installed.instance}/controlplane:0.4.1"]]


def _claims(installed: Installed, workspace_id: str) -> int:
    """How often a worker has taken the job of a workspace's only attempt."""
    question = (
        "select attempt_count from workspaces_buildjob join workspaces_attempt on"
        " workspaces_attempt.id = attempt_id where workspace_id = "
    )
    return int(_asked_of_the_database(installed, f"{question} '{workspace_id}'"))


@pytest.mark.parametrize(
    ("version", "drain_seconds", "build_seconds", "claims"),
    [("0.4.2", 300, 15, 1), ("0.4.3", 1, 3600, 2)],
    ids=["it finishes", "it is handed on"],
)
def test_a_build_under_way_is_not_lost_by_an_upgrade(
    installed: Installed, version: str, drain_seconds: int, build_seconds: int, claims: int
) -> None:
    installation = installed.installation
    with installation.env.open("a") as env:
        env.write(f"\nSVC_DRAIN_SECONDS={drain_seconds}\n")
    script, argument = nap(build_seconds)
    harness = {"id": "custom", "install": f"{script} || true", "command": ["true"]}
    workspace_id = installed.asked(f"under-way-{claims}", {**BLUEPRINT, "harness": harness})
    _until(lambda: runs(argument))
    done = installation.run("upgrade", version, "--min-free-mb", "500", seconds=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert installation.settings["SVC_VERSION"] == version
    _until(lambda: _claims(installed, workspace_id) == claims)
    if claims > 1:
        # The second worker's step would go on for as long; the first one's may still be there.
        def is_built() -> bool:
            end(argument)
            return installed.owned(f"/v1/workspaces/{workspace_id}")["status"] not in ON_THE_WAY

        _until(is_built)
    ready = installed.settled(f"/v1/workspaces/{workspace_id}", *ON_THE_WAY)
    assert ready["status"] == "ready", ready
    assert _claims(installed, workspace_id) == claims
    assert "kept" in installed.run_in_workspace("cat ~/kept")


def test_a_backup_for_which_there_is_no_room_leaves_the_service_as_it_was(
    installed: Installed,
) -> None:
    installation = installed.installation
    version = installation.settings["SVC_VERSION"]
    with small_disk(installation.home / "backups", "64k"):
        done = installation.run("backup", seconds=300)
        assert done.returncode == 1
        assert "no space left on device" in done.stderr
        assert "the database could not be copied" in done.stderr
        assert list((installation.home / "backups").iterdir()) == []

        done = installation.run("upgrade", "0.4.4", "--min-free-mb", "500", seconds=900)
        assert done.returncode == 1
        assert f"version {version} goes on" in done.stderr
        assert list((installation.home / "backups").iterdir()) == []
    assert installation.settings["SVC_VERSION"] == version
    assert not (installation.home / ".upgrade").exists()
    installed.becomes_ready()


def test_what_was_kept_at_removal_is_gone_on_with(installed: Installed) -> None:
    installation, engine, instance = installed.installation, installed.engine, installed.instance
    lasting = installed.workspace_id = installed.asked(
        "lasting", {**BLUEPRINT, "runtime": {"persistence": "persistent"}}
    )
    path = f"/v1/workspaces/{lasting}"
    assert installed.settled(path, *ON_THE_WAY)["status"] == "ready"
    installed.run_in_workspace("echo lasts > ~/kept")
    before, backups = installation.settings, sorted((installation.home / "backups").iterdir())

    done = installation.run("uninstall", "--keep-data", "--yes", seconds=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kept: the volumes" in done.stdout
    for label in (
        f"svc.instance={instance}",
        f"svc.installation={instance}",
        f"com.docker.compose.project={instance}",
    ):
        ours: dict[str, str | list[str] | bool] = {"label": label}
        assert engine.containers.list(all=True, filters=ours) == []
        assert engine.networks.list(filters=ours) == []
    assert installation.settings == before
    assert sorted((installation.home / "backups").iterdir()) == backups

    done = installation.run("install", "--min-free-mb", "500", seconds=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert installation.settings == before
    installed.becomes_ready()
    # Its container went with the rest: it is said so, and it is started anew with what it had.
    gone = installed.settled(path, "ready")
    assert (gone["status"], gone["reason"]["code"]) == ("failed", "runtime-lost")
    installed.call("POST", f"{path}/start", {"ownerUserId": OWNER})
    assert installed.settled(path, *ON_THE_WAY)["status"] == "ready"
    assert installed.run_in_workspace("cat ~/kept") == "lasts\n"


def test_uninstalling_leaves_nothing_of_ours_and_all_of_others(installed: Installed) -> None:
    installation, engine, instance = installed.installation, installed.engine, installed.instance
    push = f"127.0.0.1:{installation.settings['SVC_REGISTRY_PORT']}/"
    image = engine.images.get(f"{instance}/registry:2")
    theirs = f"somebodys/{instance}:kept"
    assert image.tag(theirs)
    installed.limited()
    rules = bridge_prefix(instance).encode()
    assert rules in rules_of_the_kernel()
    stranger = engine.containers.create(
        BASE_IMAGE, labels={"svc.instance": f"{instance}-other"}, network_mode="none"
    )
    try:
        done = installation.run("uninstall", "--yes", seconds=300)
        assert done.returncode == 0, done.stdout + done.stderr
        for label in (
            f"svc.instance={instance}",
            f"svc.installation={instance}",
            f"com.docker.compose.project={instance}",
        ):
            ours: dict[str, str | list[str] | bool] = {"label": label}
            assert engine.containers.list(all=True, filters=ours) == []
            assert engine.networks.list(filters=ours) == []
            assert engine.volumes.list(filters=ours) == []
            assert [tag for found in engine.images.list(filters=ours) for tag in found.tags] in (
                [],
                [theirs],
            )
        # In one answer: what others remove meanwhile cannot be looked at one by one.
        names = [name for found in engine.api.images() for name in found["RepoTags"] or ()]
        assert [name for name in names if name.startswith((f"{instance}/", push))] == []
        assert list(installation.home.iterdir()) == []
        assert rules not in rules_of_the_kernel()
        stranger.reload()
        assert theirs in names
    finally:
        stranger.remove(force=True)
        engine.images.remove(theirs)
