"""What every runtime must hold: tests that know no engine, for files that say which one it is.

Such a file imports all of this and has a fixture ``launcher``.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import socket
import tarfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from runs.agent.session.channel import FrameDecoder, FromClient, ToClient, encode_frame
from tests.runs.agent.credentialed import ALL, GITHUB, document
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import Launcher, step
from workspaces.runtimes.base import (
    AgentChannel,
    LaunchError,
    LaunchRequest,
    RuntimeAdapter,
    Volume,
)
from workspaces.runtimes.boot import read_archived_file

MIB = 1024 * 1024
WAIT_SECONDS = LONG_WAIT
HOME = Volume("home", "/home/workspace")
STATUS_FILE = "/var/lib/svc/status.json"


def shell(launcher: Launcher, run_id: UUID, script: str) -> tuple[int, str]:
    """Have the user's shell run something through the agent; exit code and output."""
    with contextlib.closing(launcher.adapter.open_agent(run_id, ["session"])) as channel:
        return in_session(channel, script)


def in_session(channel: AgentChannel, script: str) -> tuple[int, str]:
    """Run ``script`` through a new ``agent session``, unrecorded; its exit code and output."""
    spec = {
        "version": 2,
        "runId": str(uuid4()),
        "mode": "interactive",
        "env": {},
        "cwd": None,
        "graceSeconds": 1,
        "secrets": [],
        "record": None,
        "origin": None,
    }
    opened: dict[str, object] = {"kind": "exec", "command": script, "env": {}, "pty": None}
    channel.write(encode_frame(FromClient.SPEC, 0, json.dumps(spec).encode()))
    channel.write(encode_frame(FromClient.OPEN, 1, json.dumps(opened).encode()))
    channel.write(encode_frame(FromClient.EOF, 1, b""))
    decoder, said = FrameDecoder(), b""
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        data = channel.read(1.0)
        assert data != b"", channel.errors()
        decoder.feed(data or b"")
        while (frame := decoder.take()) is not None:
            if frame.type in (ToClient.STDOUT, ToClient.STDERR):
                said += frame.payload
            elif frame.type == ToClient.EXIT:
                return int(json.loads(frame.payload)["code"]), said.decode()
            else:
                assert frame.type not in (ToClient.ERROR, ToClient.REFUSED), frame.payload
    raise AssertionError("it did not end")


def read_all(channel: AgentChannel) -> bytes:
    """Everything until the end of the output."""
    said = []
    while data := channel.read(WAIT_SECONDS):
        said.append(data)
    assert data == b""
    return b"".join(said)


def running(launcher: Launcher, run_id: UUID) -> bool:
    """Whether the engine says that the run's runtime runs."""
    observed = launcher.adapter.observe(run_id)
    return observed is not None and observed.running


def nothing_left(launcher: Launcher) -> bool:
    """Whether all that the installation had is gone or going."""
    return launcher.left_over() == []


# ------------------------------------------------------------------------------------- launches


def test_the_adapter_is_a_runtime_adapter_and_passes_its_check(launcher: Launcher) -> None:
    adapter: RuntimeAdapter = launcher.adapter
    adapter.check()
    assert adapter.engine_id() == adapter.engine_id() != ""


def test_a_launched_workspace_is_ready_answers_ends_in_order_and_is_removed(
    launcher: Launcher,
) -> None:
    request = launcher.request(
        attempt_count=3,
        boot={"setup": [step("echo prepared > prepared")], "startup": [step("test -f prepared")]},
    )
    adapter = launcher.adapter
    assert adapter.observe(request.run_id) is None
    began = time.time()
    runtime = launcher.launch(request)

    assert (runtime.adapter, runtime.engine_id) == (adapter.name, adapter.engine_id())
    live = adapter.observe(request.run_id)
    assert live is not None
    assert (live.run_id, live.job_id, live.attempt_count) == (request.run_id, request.job_id, 3)
    assert (live.resource_id, live.reference) == (runtime.resource_id, runtime.reference)
    assert (live.running, live.exit_code, live.oom_killed) == (True, None, False)
    assert began - 2 <= live.created_at.timestamp() <= time.time() + 2
    assert adapter.list(request.workspace_id) == [live]
    assert adapter.list(uuid4()) == []
    assert shell(launcher, request.run_id, "stat -c %U prepared; pwd; id -un") == (
        0,
        "workspace\n/workspace/repo\nworkspace\n",
    )

    assert adapter.stop(request.run_id, seconds=LONG_WAIT)
    ended = adapter.observe(request.run_id)
    assert ended is not None
    assert (ended.running, ended.exit_code) == (False, 143)
    with adapter.read_files(request.run_id, STATUS_FILE) as chunks:
        assert chunks is not None
        assert b'"phase": "stopped"' in (read_archived_file(chunks) or b"")
    with pytest.raises(LaunchError) as caught:
        adapter.call_agent(request.run_id, ["status"], timeout=WAIT_SECONDS)
    assert caught.value.code == "runtime-not-running"
    assert adapter.stop(request.run_id, seconds=LONG_WAIT)

    assert adapter.remove_containers(request.run_id)
    adapter.remove(request.run_id)
    eventually(lambda: adapter.observe(request.run_id) is None, what="it is gone")
    assert nothing_left(launcher)
    assert adapter.remove(request.run_id) is False
    assert not adapter.stop(request.run_id, seconds=1)
    with adapter.read_files(request.run_id, STATUS_FILE) as chunks:
        assert chunks is None
    with pytest.raises(LaunchError) as caught:
        adapter.call_agent(request.run_id, ["status"], timeout=WAIT_SECONDS)
    assert caught.value.code == "runtime-gone"


def test_a_failing_setup_step_fails_the_launch_with_its_name_exit_code_and_output(
    launcher: Launcher,
) -> None:
    noisy = r"printf '\033[31mthe disk is on fire\007 hunter2-and-more\n'; exit 41"
    boot = {
        "setup": [step("true", "first"), step(noisy, "second")],
        "secrets": ["hunter2-and-more"],
    }
    with pytest.raises(LaunchError) as caught:
        launcher.launch(launcher.request(boot=boot))
    assert caught.value.code == "step-failed"
    for shown in ("second", "exit code 41", "the disk is on fire"):
        assert shown in caught.value.message
    for hidden in ("hunter2", "\x1b", "\x07"):
        assert hidden not in caught.value.message
    assert nothing_left(launcher)


def test_a_step_that_runs_out_of_memory_is_told_so(launcher: Launcher) -> None:
    eat = step("exec python3 -c 'x = bytearray(400 << 20)'", "eat")
    with pytest.raises(LaunchError, match="SIGKILL") as caught:
        launcher.launch(launcher.request(boot={"setup": [eat]}, memory_mb=128))
    assert caught.value.code == "step-failed", caught.value.message
    assert "ran out of its 128 MB of memory" in caught.value.message


def test_a_foreground_command_that_ends_at_once_fails_the_launch(launcher: Launcher) -> None:
    foreground = {
        "kind": "command",
        "run": "echo no such config; exit 3",
        "shell": "sh",
        "workingDirectory": None,
    }
    with pytest.raises(LaunchError, match=r"foreground.*exit code 3") as caught:
        launcher.launch(launcher.request(boot={"foreground": foreground}))
    assert "no such config" in caught.value.message
    assert nothing_left(launcher)


def out_of_time(
    launcher: Launcher, request: LaunchRequest, expected: Callable[[LaunchError], bool]
) -> LaunchError:
    """Return how a launch fails that runs out of time; a slow machine is given more of it."""
    for timeout in (8.0, 40.0, LONG_WAIT):
        with pytest.raises(LaunchError) as caught:
            launcher.launch(replace(request, timeout=timeout, run_id=uuid4()))
        if expected(caught.value):
            break
    return caught.value


def test_a_launch_that_is_not_ready_in_time_says_what_it_was_doing(launcher: Launcher) -> None:
    setup = [step("echo downloading the internet; sleep 600", "long one")]
    request = launcher.request(boot={"setup": setup})
    error = out_of_time(launcher, request, lambda error: "long one" in error.message)
    assert error.code == "launch-timed-out"
    assert "long one" in error.message
    assert nothing_left(launcher)


def test_a_cancelled_launch_ends_and_cleans_up(launcher: Launcher) -> None:
    cancelled = threading.Event()
    request = launcher.request(boot={"setup": [step("sleep 600")]}, on_started=cancelled.set)
    with pytest.raises(LaunchError) as caught:
        launcher.launch(request, cancelled)
    assert caught.value.code == "launch-cancelled", caught.value.message
    assert nothing_left(launcher)
    with pytest.raises(LaunchError) as caught:
        launcher.launch(launcher.request(), cancelled)
    assert caught.value.code == "launch-cancelled"
    assert nothing_left(launcher)


def test_an_image_that_nobody_has_is_an_image_pull_failure(launcher: Launcher) -> None:
    repository = launcher.image.partition("@")[0]
    with pytest.raises(LaunchError) as caught:
        launcher.launch(launcher.request(image=f"{repository}@sha256:{'0' * 64}"))
    assert caught.value.code == "image-pull-failed"
    assert nothing_left(launcher)


def test_an_agent_that_never_answers_does_not_hold_the_launch_for_its_whole_time(
    make_launcher: Callable[..., Launcher], publish: Callable[[str], str]
) -> None:
    launcher = make_launcher(agent_silence=1.0)
    base = launcher.client.images.get(launcher.image)
    mute = """[ "$1" = boot ] && exec sleep infinity; exit 1"""
    image = publish(
        f"FROM {base.id}\nLABEL unique={uuid4()}\n"
        f"RUN printf '#!/bin/sh\\n{mute}\\n' > /usr/lib/svc/agent\n"
    )
    with pytest.raises(LaunchError) as caught:
        launcher.launch(launcher.request(image=image))
    assert caught.value.code == "agent-silent"
    assert nothing_left(launcher)


# ---------------------------------------------------------------------------------------- races


def test_a_newer_launch_adopts_and_an_older_one_touches_nothing(launcher: Launcher) -> None:
    request = launcher.request(attempt_count=1)
    first = launcher.launch(request)
    assert launcher.launch(replace(request, attempt_count=3)) == first
    with pytest.raises(LaunchError) as caught:
        launcher.launch(replace(request, attempt_count=2))
    assert caught.value.code == "launch-superseded"
    observed = launcher.adapter.observe(request.run_id)
    assert observed is not None
    assert (observed.running, observed.resource_id) == (True, first.resource_id)


def test_a_runtime_that_has_ended_is_replaced(launcher: Launcher) -> None:
    request = launcher.request()
    ended = launcher.launch(request)
    launcher.adapter.stop(request.run_id, seconds=LONG_WAIT)
    second = launcher.launch(replace(request, attempt_count=2))
    assert second.resource_id != ended.resource_id
    assert running(launcher, request.run_id)


def test_launches_of_one_run_at_the_same_moment_end_with_one_that_runs(launcher: Launcher) -> None:
    request = launcher.request()
    launched: dict[int, str] = {}
    refused: dict[int, str] = {}

    def launch(count: int) -> None:
        try:
            launched[count] = launcher.launch(replace(request, attempt_count=count)).resource_id
        except LaunchError as error:
            refused[count] = error.code

    threads = [threading.Thread(target=launch, args=(count,)) for count in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    observed = launcher.adapter.observe(request.run_id)
    assert observed is not None, refused
    assert observed.running, (launched, refused)
    # An older one may have been done before the newest replaced its runtime.
    assert launched.get(3) == observed.resource_id, (launched, refused)
    # Or it looks while its own is gone and the newer one's is not there yet.
    assert set(refused.values()) <= {"launch-superseded", "container-exited"}, refused


def test_nothing_of_another_installation_is_seen_or_removed(
    make_launcher: Callable[..., Launcher],
) -> None:
    ours, theirs = make_launcher(), make_launcher()
    request = theirs.request()
    runtime = theirs.launch(request)

    assert ours.adapter.list() == []
    assert ours.adapter.observe(request.run_id) is None
    assert ours.adapter.remove(request.run_id) is False
    assert ours.adapter.stop(request.run_id, seconds=1) is False
    assert ours.adapter.sweep_networks(()) == 0
    with pytest.raises(LaunchError) as caught:
        ours.adapter.call_agent(request.run_id, ["status"], timeout=WAIT_SECONDS)
    assert caught.value.code == "runtime-gone"
    with pytest.raises(LaunchError, match="another program") as caught:
        ours.launch(ours.request(request.run_id))
    assert caught.value.code == "launch-refused"
    observed = theirs.adapter.observe(request.run_id)
    assert observed is not None
    assert (observed.running, observed.resource_id) == (True, runtime.resource_id)


# ------------------------------------------------------------------------ what goes in and out


@pytest.fixture
def ready(launcher: Launcher) -> LaunchRequest:
    """A workspace that is ready, with its accounts."""
    request = launcher.request(
        credentials=lambda: document(*ALL), boot={"credentials": True, "limits": LIMITS}
    )
    launcher.launch(request)
    return request


LIMITS = {"stepSeconds": 30, "graceSeconds": 2, "tailBytes": 8192, "credentialSeconds": 60}


def test_the_agent_is_given_bytes_until_their_end_and_every_byte_comes_back(
    launcher: Launcher, ready: LaunchRequest
) -> None:
    content = bytes(range(256)) * (8 * MIB // 256)
    with contextlib.closing(
        launcher.adapter.open_agent(ready.run_id, ["forward", "--port", str(echo(launcher, ready))])
    ) as channel:
        writing = threading.Thread(target=write_all, args=(channel, content))
        writing.start()
        returned = read_all(channel)
        writing.join(WAIT_SECONDS)
        assert hashlib.sha256(returned).digest() == hashlib.sha256(content).digest()
        assert channel.exit_code() == 0


def write_all(channel: AgentChannel, content: bytes) -> None:
    """Give it ``content``, and nothing after that."""
    channel.write(content)
    channel.close_input()


def echo(launcher: Launcher, ready: LaunchRequest) -> int:
    """Start a server in the workspace that returns what it is given until its end; its port."""
    program = (
        "import socket; s = socket.create_server(('127.0.0.1', 4567)); c, _ = s.accept()\n"
        "while d := c.recv(65536): c.sendall(d)"
    )
    listens = "until grep -q ':11D7 00000000:0000 0A' /proc/net/tcp; do sleep 0.05; done"
    code, said = shell(
        launcher, ready.run_id, f'setsid python3 -c "{program}" >/dev/null 2>&1 & {listens}'
    )
    assert code == 0, said
    return 4567


def test_an_answer_has_its_exit_code_and_what_it_said_apart(
    launcher: Launcher, ready: LaunchRequest
) -> None:
    answer = launcher.adapter.call_agent(ready.run_id, ["tail", str(uuid4())], timeout=WAIT_SECONDS)
    assert (answer.exit_code, answer.stdout) == (4, b"")
    answer = launcher.adapter.call_agent(ready.run_id, ["no-such-thing"], timeout=WAIT_SECONDS)
    assert (answer.exit_code, answer.stdout) == (2, b"")
    assert b"subcommand" in answer.stderr


def test_a_channel_that_is_closed_ends_what_it_was_connected_to(
    launcher: Launcher, ready: LaunchRequest
) -> None:
    channel = launcher.adapter.open_agent(ready.run_id, ["session"])
    eventually(lambda: processes(launcher, ready).count("agent session") == 2, what="it runs")
    channel.close()
    assert channel.read(1.0) == b""
    eventually(lambda: processes(launcher, ready).count("agent session") == 1, what="it has ended")


def processes(launcher: Launcher, ready: LaunchRequest) -> str:
    """The names of the workspace's processes, one of which is the session that asks."""
    return shell(launcher, ready.run_id, "cat /proc/[0-9]*/comm 2>/dev/null; true")[1]


def test_accounts_are_delivered_collected_and_withdrawn(
    launcher: Launcher, ready: LaunchRequest
) -> None:
    adapter, run_id = launcher.adapter, ready.run_id
    assert shell(launcher, run_id, 'printf %s "$GH_TOKEN"') == (0, GITHUB)
    assert not adapter.waits_for_credentials(run_id)
    renewed = adapter.collect_credentials(run_id)
    assert len(renewed) == 1
    adapter.withdraw_credentials(run_id, [renewed[0].account_id])
    assert adapter.collect_credentials(run_id) == []
    with pytest.raises(LaunchError) as caught:
        adapter.deliver_credentials(run_id, b"{}")
    assert caught.value.code == "credentials-refused"
    mount = shell(launcher, run_id, "grep ' /run/svc ' /proc/mounts")[1]
    assert " tmpfs " in mount
    assert shell(launcher, run_id, "ls /run/svc")[0] != 0


def test_files_are_read_as_an_archive(launcher: Launcher, ready: LaunchRequest) -> None:
    shell(launcher, ready.run_id, "mkdir -p 'a b' && echo one > 'a b/one' && seq 200000 > 'a b/n'")
    with launcher.adapter.read_files(ready.run_id, "/workspace/repo/a b") as chunks:
        assert chunks is not None
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
            assert sorted(archive.getnames()) == ["a b", "a b/n", "a b/one"]
            member = archive.extractfile("a b/n")
            assert member is not None
            assert member.read().splitlines()[-1] == b"200000"
    with launcher.adapter.read_files(ready.run_id, "/workspace/none") as chunks:
        assert chunks is None


# ------------------------------------------------------------------------------------- volumes


def test_volumes_outlive_runtimes_are_filled_from_the_image_and_removed_by_workspace(
    launcher: Launcher,
) -> None:
    adapter = launcher.adapter
    request = launcher.request(volumes=(HOME,), fresh_volumes=True)
    launcher.launch(request)
    assert shell(launcher, request.run_id, "cat ~/.bashrc >/dev/null && echo mine > ~/note") == (
        0,
        "",
    )
    with pytest.raises(LaunchError) as caught:
        adapter.remove_volumes(request.workspace_id)
    assert caught.value.code == "volume-in-use"
    adapter.remove(request.run_id)

    again = launcher.request(workspace_id=request.workspace_id, volumes=(HOME,))
    launcher.launch(again)
    assert shell(launcher, again.run_id, "cat ~/note") == (0, "mine\n")
    adapter.remove(again.run_id)
    assert adapter.workspaces_with_volumes() == {request.workspace_id}
    assert adapter.remove_volumes(request.workspace_id) == 1
    eventually(lambda: not adapter.workspaces_with_volumes(), what="the volume is gone")
    assert adapter.remove_volumes(request.workspace_id) == 0


# ------------------------------------------------------------------------------------- isolation


def test_a_workspace_without_outbound_reaches_nothing(launcher: Launcher) -> None:
    request = launcher.request(outbound=False)
    launcher.launch(request)
    attempt = "import socket; socket.create_connection(('{}', {}), 2)"
    with launcher.place_in_reach() as (host, port):
        socket.create_connection((host, port), 5).close()
        code, said = shell(launcher, request.run_id, f'python3 -c "{attempt.format(host, port)}"')
    assert code != 0, said


def test_a_workspace_has_its_limits_and_no_rights_that_it_does_not_need(launcher: Launcher) -> None:
    request = launcher.request(memory_mb=200)
    launcher.launch(request)
    code, said = shell(
        launcher, request.run_id, "grep -E 'NoNewPrivs|CapBnd|Seccomp:' /proc/self/status"
    )
    assert code == 0, said
    facts = dict(line.split(":\t") for line in said.splitlines())
    assert facts["NoNewPrivs"] == "1"
    assert facts["Seccomp"] == "2"
    # CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID.
    assert int(facts["CapBnd"], 16) == 0xFB
    code, said = shell(launcher, request.run_id, "echo x > /var/lib/svc/x")
    assert code != 0
