"""The agent as PID 1 of a real container, with the few capabilities that workspaces have."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shlex
import signal
import subprocess
import tarfile
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import docker
import pytest
from docker.errors import ImageNotFound
from docker.models.containers import Container

from runs.agent.record.frames import PREFIX, Event, Kind, decode, frames
from runs.agent_archive import agent_archive
from tests.runs.agent.booted import RECORD, bash_step, command, eventually, step
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.docker

ENGINE = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
BASE_IMAGE = os.environ.get("SVC_BASE_IMAGE_DEBIAN", "svc-base/debian:bookworm")
DOCKERFILE = f"""\
FROM {BASE_IMAGE}
RUN apt-get update && apt-get install -y --no-install-recommends python3 stow \\
 && useradd --create-home --uid 1000 --shell /bin/bash workspace
ENTRYPOINT ["/usr/lib/svc/agent", "boot"]
"""
IMAGE = f"svc-test/agent:{hashlib.sha256(DOCKERFILE.encode()).hexdigest()[:12]}"
CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID"]


def tar_of(*files: tuple[str, bytes, int]) -> bytes:
    """A tar of (path, content, mode), all root's."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content, mode in files:
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(content), mode
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    client = docker.DockerClient(base_url=ENGINE, timeout=round(LONG_WAIT))
    try:
        client.images.get(IMAGE)
    except ImageNotFound:
        context = io.BytesIO(tar_of(("Dockerfile", DOCKERFILE.encode(), 0o644)))
        # The engine's default bridge may be turned off where workspaces have networks of their own.
        client.images.build(
            fileobj=context, custom_context=True, tag=IMAGE, rm=True, network_mode="host"
        )
    yield client
    client.close()


class Machine:
    """Containers of one test."""

    def __init__(self, engine: docker.DockerClient) -> None:
        self.engine = engine
        self.containers: list[Container] = []

    def start(
        self,
        *files: tuple[str, bytes, int],
        environment: dict[str, str] | None = None,
        memory: str | None = None,
        **members: Any,
    ) -> Container:
        """Create a container, put agent and configuration into it, start it."""
        config = {
            "version": 1,
            "runId": str(uuid.uuid4()),
            "workspaceId": "workspace",
            "attemptId": "attempt",
            "user": "workspace",
            "home": "/home/workspace",
            "shell": "/bin/bash",
            "sudo": False,
            "workspaceRoot": "/workspace",
            "workingDirectory": "/workspace/project",
            "env": {},
            "dotfiles": None,
            "setup": [],
            "startup": [],
            "foreground": {"kind": "harness", "command": ["bash"]},
            "limits": {"stepSeconds": 3000, "graceSeconds": 900, "tailBytes": 8192},
            "record": RECORD,
            "secrets": [],
        } | members
        container = self.engine.containers.create(
            IMAGE,
            cap_drop=["ALL"],
            cap_add=CAPABILITIES,
            security_opt=["no-new-privileges"],
            environment=environment or {},
            network_mode="none",
            mem_limit=memory,
            memswap_limit=memory,
            labels={"svc.test": "agent"},
        )
        self.containers.append(container)
        put = tar_of(
            ("usr/lib/svc/agent", agent_archive(), 0o755),
            ("etc/svc/boot.json", json.dumps(config).encode(), 0o600),
            *files,
        )
        container.put_archive("/", put)
        container.start()
        return container


@pytest.fixture
def machine(engine: docker.DockerClient) -> Iterator[Machine]:
    machine = Machine(engine)
    yield machine
    for container in machine.containers:
        container.remove(force=True, v=True)


def settled(container: Container) -> dict[str, Any]:
    """What `agent status --wait` prints."""
    code, printed = executed(container, ["/usr/lib/svc/agent", "status", "--wait", "300"])
    status: dict[str, Any] = json.loads(printed)
    assert (code == 0) == (status["phase"] == "ready"), status
    return status


def left_behind(container: Container) -> dict[str, Any]:
    """The status file of a container that may have stopped."""
    status: dict[str, Any] = json.loads(file_of(container, "/var/lib/svc/status.json"))
    return status


def file_of(container: Container, path: str) -> bytes:
    """A file of a container that may have stopped."""
    chunks, _ = container.get_archive(path)
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        file = archive.extractfile(path.rpartition("/")[2])
        assert file is not None
        return file.read()


def in_background(container: Container, script: str) -> None:
    """Start a shell script as the user, as a session would, and leave it running."""
    container.exec_run(["/bin/sh", "-c", script], user="workspace", detach=True)


def run(container: Container, script: str, user: str = "root") -> str:
    """The output of a shell script in the container."""
    code, output = executed(container, ["/bin/sh", "-c", script], user)
    assert code == 0, output
    return output.decode()


def executed(container: Container, argv: list[str], user: str = "root") -> tuple[int, bytes]:
    """Exit code and output of a program in the container."""
    code, output = container.exec_run(argv, user=user)
    assert isinstance(code, int)
    assert isinstance(output, bytes)
    return code, output


def test_it_boots_as_pid_1_and_runs_steps_as_the_user(machine: Machine) -> None:
    container = machine.start(
        setup=[step("id -un; id -u; pwd; echo $HOME")],
        startup=[bash_step("shopt login_shell; env | grep -E '^(SSL|PATH|SVC)' | sort")],
        environment={"SSL_CERT_FILE": "/etc/ssl/extra.pem", "SVC_SECRET": "x"},
    )
    assert settled(container)["phase"] == "ready"
    assert run(container, "cat /proc/1/cmdline").split("\0")[:4] == [
        "/usr/bin/python3",
        "-IS",
        "/usr/lib/svc/agent",
        "boot",
    ]
    lines = container.logs().decode().splitlines()
    assert lines[:4] == ["workspace", "1000", "/workspace/project", "/home/workspace"]
    assert lines[4].split() == ["login_shell", "on"]
    assert "SSL_CERT_FILE=/etc/ssl/extra.pem" in lines
    assert [line for line in lines if line.startswith("SVC_")] == [
        f"SVC_RUN_ID={left_behind(container)['runId']}"
    ]


def test_its_state_is_roots_and_out_of_the_users_reach(machine: Machine) -> None:
    container = machine.start()
    settled(container)
    listed = run(container, "stat -c '%U %a %n' /var/lib/svc /var/lib/svc/status.json")
    assert listed.splitlines() == ["root 755 /var/lib/svc", "root 644 /var/lib/svc/status.json"]
    assert executed(container, ["cat", "/etc/svc/boot.json"], "workspace")[0] != 0
    assert executed(container, ["touch", "/var/lib/svc/x"], "workspace")[0] != 0
    # The user may ask, too.
    assert executed(container, ["/usr/lib/svc/agent", "status"], "workspace")[0] == 0


def test_orphans_are_reaped(machine: Machine) -> None:
    orphans = "for i in $(seq 50); do (setsid sh -c 'exit 3' &); done"
    container = machine.start(startup=[step(orphans)])
    settled(container)
    run(container, "for i in $(seq 50); do (setsid true &); done", user="workspace")
    eventually(lambda: run(container, "grep -l '^State:.Z' /proc/[0-9]*/status || true") == "")


def test_a_stop_is_quick_and_a_restart_does_not_repeat_the_setup(machine: Machine) -> None:
    container = machine.start(
        setup=[step("echo setup >> order")],
        startup=[step("echo startup >> order; sleep 600 &")],
        foreground=command("exec sleep 600"),
    )
    first = settled(container)
    # The grace is longer, and who is killed by the engine has not exited with 143.
    container.stop(timeout=300)
    assert container.wait()["StatusCode"] == 143
    assert left_behind(container)["phase"] == "stopped"

    container.start()
    second = settled(container)
    assert second["phase"] == "ready"
    # Not the first life's file, which says `stopped` until the new PID 1 has written its own.
    assert second["bootId"] != first["bootId"]
    assert run(container, "cat /workspace/project/order") == "setup\nstartup\nstartup\n"


def test_a_stop_does_not_wait_for_the_shell_of_a_session(machine: Machine) -> None:
    container = machine.start()
    settled(container)
    # An interactive shell ignores TERM; this one waits for input that never comes.
    in_background(container, "mkfifo /tmp/typed; exec bash -i <>/tmp/typed")
    eventually(lambda: "bash" in run(container, "cat /proc/[0-9]*/comm"))
    # The grace is longer, and who is killed by the engine has not exited with 143.
    container.stop(timeout=300)
    assert container.wait()["StatusCode"] == 143


def test_a_failing_step_leaves_its_reason_in_the_stopped_container(machine: Machine) -> None:
    container = machine.start(startup=[step("echo about to fail; exit 9", name="broken")])
    assert container.wait()["StatusCode"] == 70
    status = left_behind(container)
    assert status["phase"] == "failed"
    assert status["step"]["name"] == "broken"
    assert status["step"]["exitCode"] == 9
    assert status["tail"] == "about to fail\n"
    assert 'agent: startup step "broken" exited with code 9' in container.logs().decode()


def test_whoever_waits_for_a_boot_that_fails_gets_the_answer(machine: Machine) -> None:
    container = machine.start(startup=[step("while [ ! -e /tmp/go ]; do sleep 0.05; done; exit 1")])
    in_background(container, "exec /usr/lib/svc/agent status --wait 300 > /tmp/answer")
    # A boot that fails terminates it; before it ignores that it would end without an answer.
    waiting = "grep -l -e --wait /proc/[0-9]*/cmdline | sed s/cmdline/status/"
    ignoring = f"grep -il '^SigIgn:.*[4567cdef]...$' $({waiting}) 2>/dev/null || true"
    eventually(lambda: "/status" in run(container, ignoring))
    run(container, "touch /tmp/go", user="workspace")
    container.wait()
    assert json.loads(file_of(container, "/tmp/answer"))["phase"] == "failed"


def test_a_missing_configuration_ends_the_container_with_a_reason(
    engine: docker.DockerClient, machine: Machine
) -> None:
    container = engine.containers.create(IMAGE, network_mode="none")
    machine.containers.append(container)
    container.put_archive("/", tar_of(("usr/lib/svc/agent", agent_archive(), 0o755)))
    container.start()
    assert container.wait()["StatusCode"] == 70
    assert "cannot read /etc/svc/boot.json" in left_behind(container)["message"]


def spec_of(script: str) -> dict[str, Any]:
    """What the control plane gives to `agent exec` for a one-shot run."""
    return {
        "version": 1,
        "runId": str(uuid.uuid4()),
        "argv": ["/bin/sh", "-c", script],
        "cwd": None,
        "env": {},
        "stdin": None,
        "timeSeconds": None,
        "graceSeconds": 1,
        "secrets": [],
        "record": {name: RECORD[name] for name in RECORD if name != "restart"}
        | {"files": False, "network": False, "processes": False}
        | {"patchBytes": 0, "maxFiles": 0},
    }


def start_run(container: Container, script: str) -> str:
    """Start a one-shot run as the control plane does; returns its id."""
    spec = spec_of(script)
    given = shlex.quote(json.dumps(spec))
    assert '"started"' in run(container, f"printf %s {given} | /usr/lib/svc/agent exec")
    return str(spec["runId"])


def record_of(container: Container, run_id: str) -> list[Event]:
    """The events of a run's spool in a container that has stopped."""
    chunks, _ = container.get_archive(f"/var/lib/svc/runs/{run_id}")
    events: list[Event] = []
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            file = archive.extractfile(member)
            if member.name.endswith(".seg") and file is not None:
                events += [decode(content) for content in frames(file.read())]
    return events


@pytest.mark.parametrize(("trap", "grace"), [("", 300), ("trap '' TERM;", 15)])
def test_other_runs_end_their_records_before_the_boot_ends_its_own(
    machine: Machine, trap: str, grace: int
) -> None:
    container = machine.start(
        foreground=command(f"{trap} while :; do sleep 0.05; done"),
        limits={"stepSeconds": 300, "graceSeconds": grace, "tailBytes": 8192},
        record=RECORD | {"restart": False},
    )
    boot_id = settled(container)["runId"]
    run_id = start_run(container, "echo hello; exec sleep 600")
    container.stop(timeout=300)
    ran, booted = record_of(container, run_id), record_of(container, boot_id)
    assert ran[-1].kind == booted[-1].kind == Kind.RECORD_SEALED
    assert json.loads(ran[-1].meta)["by"] == "agent"
    assert json.loads(ran[-1].meta)["reason"] != "recorder-lost"
    assert json.loads(booted[-1].meta)["reason"] == "stopped"
    assert ran[-1].monotonic_ns < booted[-1].monotonic_ns


class Reader:
    """`agent tail` in a container, entered from outside, and its two pipes."""

    def __init__(self, container: Container, run_id: str) -> None:
        argv = ["exec", "-i", str(container.id), "/usr/lib/svc/agent", "tail", run_id]
        self.process = subprocess.Popen(
            [os.environ.get("DOCKER_CLI") or "docker", *argv],
            env={**os.environ, "DOCKER_HOST": ENGINE},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout
        self.output = self.process.stdout
        self.hello = json.loads(self.output.readline())

    def events(self) -> Iterator[Event]:
        """Every event until the end."""
        while len(prefix := self.output.read(PREFIX.size)) == PREFIX.size:
            if length := PREFIX.unpack(prefix)[0]:
                yield decode(self.output.read(length))

    def acknowledge(self, sequence: int) -> None:
        """Say that everything up to there is committed."""
        assert self.process.stdin
        self.process.stdin.write(sequence.to_bytes(8, "big"))
        self.process.stdin.flush()


def test_a_container_that_is_stopped_ends_after_its_reader_has_the_end_of_the_record(
    machine: Machine,
) -> None:
    container = machine.start(record=RECORD | {"restart": False})
    run_id = settled(container)["runId"]
    reader = Reader(container, run_id)
    stopping = threading.Thread(target=container.stop, kwargs={"timeout": 300})
    with reader.process:
        stopping.start()
        for event in reader.events():
            if event.kind == Kind.RECORD_SEALED:
                reader.acknowledge(event.sequence)
        assert event.kind == Kind.RECORD_SEALED
    stopping.join(LONG_WAIT)
    if reader.process.returncode != 128 + signal.SIGKILL:
        assert reader.process.returncode == 0
        assert record_of(container, f".done/{run_id}") == []  # nothing is left to be taken out
    # Else the two seconds in which a container waits for its readers were too few for this one to
    # remove, on a busy machine, what it has passed on.


def test_a_reader_that_acknowledges_nothing_does_not_keep_a_container_from_ending(
    machine: Machine,
) -> None:
    container = machine.start(record=RECORD | {"restart": False})
    run_id = settled(container)["runId"]
    reader = Reader(container, run_id)
    with reader.process:
        container.stop(timeout=300)
        assert not container.attrs["State"]["OOMKilled"]
        assert [event.kind for event in reader.events()][-1] == Kind.RECORD_SEALED
    assert record_of(container, run_id)[-1].kind == Kind.RECORD_SEALED
    container.reload()
    assert container.attrs["State"]["ExitCode"] == 128 + signal.SIGTERM


def test_a_program_of_the_workspace_that_poses_as_a_reader_is_ended_like_any_other(
    machine: Machine,
) -> None:
    disguised = "trap '' TERM HUP; touch /tmp/deaf; while :; do sleep 0.1; done"
    program = f"/bin/sh -c {shlex.quote(disguised)} /usr/lib/svc/agent tail"
    container = machine.start(
        startup=[
            step(f"setsid {program} > /dev/null 2>&1 & until [ -e /tmp/deaf ]; do sleep 0.05; done")
        ],
        limits={"stepSeconds": 300, "graceSeconds": 1, "tailBytes": 8192},
        record=RECORD | {"restart": False},
    )
    run_id = settled(container)["runId"]
    container.stop(timeout=300)
    signals = [
        json.loads(event.meta)["signal"]
        for event in record_of(container, run_id)
        if event.kind == Kind.SIGNAL_SENT
    ]
    assert signals == ["SIGTERM", "SIGKILL"]


def test_a_container_that_was_killed_goes_on_with_its_record(machine: Machine) -> None:
    container = machine.start(
        startup=[step("echo hello")],
        foreground=command("exec sleep 600"),
        record=RECORD | {"restart": False},
    )
    run_id = settled(container)["runId"]
    other = start_run(container, "exec sleep 600")
    container.kill()
    container.wait()
    container.start()
    assert settled(container)["phase"] == "ready"
    container.stop(timeout=300)
    events = record_of(container, run_id)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    exits = [json.loads(event.meta) for event in events if event.kind == Kind.PROCESS_EXITED]
    assert [exit_["reason"] for exit_ in exits] == ["exited", "lost", "exited", "signaled"]
    assert json.loads(record_of(container, other)[-1].meta)["reason"] == "recorder-lost"


DOTFILES = {
    "path": "/usr/share/svc/dotfiles",
    "manager": "stow",
    "target": "home",
    "bootstrap": True,
    "bootstrapCommand": None,
}


def dotfile(name: str, content: str, mode: int = 0o644) -> tuple[str, bytes, int]:
    return f"usr/share/svc/dotfiles/{name}", content.encode(), mode


def test_stow_links_every_package_and_replaces_what_the_system_put_into_the_home(
    machine: Machine,
) -> None:
    container = machine.start(
        dotfile("bash/.bashrc", "mine"),
        dotfile("vim/.vim/colors/dark.vim", "vim"),
        dotfile("README.md", "not a package"),
        dotfile("install.sh", "#!/bin/sh\ntouch ~/bootstrapped\n", 0o755),
        dotfiles=DOTFILES,
    )
    assert settled(container)["phase"] == "ready"
    assert run(container, "cd /home/workspace; cat .bashrc .vim/colors/dark.vim") == "minevim"
    # A new file in a linked folder would land in the checkout.
    assert run(container, "cd /home/workspace; find . -type l | sort") == (
        "./.bashrc\n./.vim/colors/dark.vim\n"
    )
    assert run(container, "stat -c %U /home/workspace/bootstrapped") == "workspace\n"


def test_stow_reports_a_conflict_and_replaces_no_file_of_the_user(machine: Machine) -> None:
    container = machine.start(
        dotfile("bash/.bashrc", "new"),
        ("home/workspace/.bashrc", b"written by hand", 0o644),
        dotfiles=DOTFILES,
    )
    assert container.wait()["StatusCode"] == 70
    status = left_behind(container)
    assert status["step"]["kind"] == "dotfiles"
    assert ".bashrc" in status["tail"]
    assert "stow failed with exit code" in status["tail"]


def test_dotfiles_cannot_write_what_the_user_could_not_write(machine: Machine) -> None:
    container = machine.start(
        dotfile("etc/owned", "x"),
        dotfile(".profile", "mine"),
        dotfiles=DOTFILES | {"manager": "copy"},
        home="/",
    )
    assert container.wait()["StatusCode"] == 70
    assert "Permission denied" in left_behind(container)["tail"]
    chunks, _ = container.get_archive("/etc")
    assert b"etc/owned" not in b"".join(chunks)
