"""Terminals of commands: ``svc exec -t`` and ``svc attach`` as people use them, and the client."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest

from controlplane_cli.attaching import Escape
from controlplane_client import AsyncClient, Client, NotFound, Run, Unreachable, Workspace
from controlplane_client._sync.attachment import KEPT_BYTES
from tests.clients.cutting_relay import CuttingRelay, cutting_relay_to
from tests.clients.places import SVC, Svc
from tests.conftest import OWNER
from tests.stack.gateway_process import ApiProcess
from tests.stack.ssh import Terminal
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.docker

ASKS = "import sys; print('ready', flush=True); print('got', repr(sys.stdin.readline()))"


@pytest.fixture(scope="module")
def relay(api_process: ApiProcess) -> Iterator[CuttingRelay]:
    """A bad network before the service."""
    with cutting_relay_to(api_process.port) as made:
        yield made


@pytest.fixture
def screen(svc_environ: dict[str, str]) -> Iterator[Callable[..., Terminal]]:
    """Start ``svc`` in a terminal of its own."""
    opened: list[Terminal] = []

    def start(*words: str, columns: int = 80, rows: int = 24) -> Terminal:
        # Some shells export what does not change with the window.
        environ = svc_environ | {"COLUMNS": "80", "LINES": "24"}
        opened.append(Terminal([*SVC, *words], environ, columns=columns, rows=rows))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


@pytest.mark.parametrize(
    ("keys", "passed", "leaves"),
    [
        (b"ls ~/x\r", b"ls ~/x\r", False),
        (b"~.", b"", True),
        (b"ls\r~.more", b"ls\r", True),
        (b"~~.", b"~.", False),
        (b"~x~.", b"~x~.", False),
        (b"a~.", b"a~.", False),
        (b"\r~\x03", b"\r~\x03", False),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_the_way_out_is_found_among_keys(
    keys: bytes, passed: bytes, leaves: bool, at_once: bool
) -> None:
    escape = Escape()
    got, left = b"", False
    for part in [keys] if at_once else [bytes([key]) for key in keys]:
        if not left:
            more, left = escape.passed(part)
            got += more
    assert (got, left) == (passed, leaves)


# ---------------------------------------------------------------- svc


def test_a_command_has_this_terminal_with_its_size_keys_and_exit_code(
    screen: Callable[..., Terminal], workspace: Workspace
) -> None:
    terminal = screen("exec", "-t", workspace.id, "bash", "--norc", columns=101, rows=31)
    terminal.until(b"$ ")
    terminal.type("stty size\r")
    terminal.until(b"31 101\r\n")
    terminal.resize(132, 43)
    terminal.type("until [ \"$(stty size)\" = '43 132' ]; do sleep 0.1; done; echo resi''zed\r")
    terminal.until(b"resized")
    terminal.type("sh -c \"echo 'be'gun; exec sleep 600\"; echo after\r")
    terminal.until(b"begun\r\n")
    terminal.type("\x03")
    terminal.until(b"^C")
    terminal.type("echo in''terrupted; exit 7\r")
    terminal.until(b"interrupted")
    assert terminal.ended() == 7


def test_a_terminal_is_left_to_itself_and_entered_again(
    screen: Callable[..., Terminal], workspace: Workspace, client: Client
) -> None:
    first = screen("exec", "-t", workspace.id, "bash", "--norc")
    first.until(b"$ ")
    first.type("echo se''en\r")
    first.until(b"seen")
    first.until(b"$ ")
    first.type("\r~.")
    assert first.ended() == 130
    run_id = first.errors.split("svc attach ")[1].split(",")[0]
    assert (client.run(run_id).refresh()).status == "running"
    again = screen("attach", run_id)
    again.until(b"seen")
    again.type("exit 5\r")
    assert again.ended() == 5
    late = screen("attach", run_id)
    assert late.ended() == 5
    assert b"seen" in late.said


def test_without_a_terminal_here_input_is_what_is_piped_in(svc: Svc, workspace: Workspace) -> None:
    done = svc("exec", "-t", workspace.id, "python3", "-c", ASKS, stdin="hello\n")
    assert "got 'hello\\n'" in done.stdout
    assert "80" in svc("exec", "-t", workspace.id, "stty size; exit 0", stdin="").stdout


def test_pipes_are_attached_to_as_well(svc: Svc, workspace: Workspace) -> None:
    run = workspace.spawn("cat; echo err >&2; exit 4", stdin=True)
    done = svc("attach", run.id, stdin="a\nb\n", code=4)
    assert (done.stdout, done.stderr) == ("a\nb\n", "err\n")
    deaf = workspace.spawn("echo out; exit 3")
    assert svc("attach", deaf.id, code=3).stdout == "out\n"


def test_what_cannot_be_attached_to_says_why(svc: Svc, workspace: Workspace) -> None:
    boot = next(workspace.runs(mode="boot"))
    assert "input-not-open" in svc("attach", boot.id, code=125).stderr
    told = svc("exec", "-t", "--json", workspace.id, "true", code=2)
    assert "only with -d" in told.stderr
    run = json.loads(svc("exec", "-t", "-d", "--json", workspace.id, "exit 6").stdout)
    assert svc("attach", run["runId"], code=6).stdout == ""


def test_logs_are_followed_to_the_end_of_a_run(
    svc_environ: dict[str, str], workspace: Workspace
) -> None:
    run = workspace.spawn("echo begun; read line; echo $line", stdin=True)
    with subprocess.Popen(
        [*SVC, "logs", "-f", run.id], env=svc_environ, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        run.write("more\n", end=True)
        assert process.stdout.read() == "more\n"
        assert process.wait(LONG_WAIT) == 0


def test_ssh_is_told_where_the_workspace_is_entered(svc: Svc, workspace: Workspace) -> None:
    told = json.loads(svc("ssh", "--json", "-o", "Compression=yes", workspace.id, "ls").stdout)
    assert told["command"][:3] == ["ssh", "-o", "Compression=yes"]
    assert told["command"][3:] == [
        *("-p", str(told["port"])),
        f"ws-{workspace.id}@{told['host']}",
        "ls",
    ]


# ---------------------------------------------------------------- the client


def test_a_terminal_outlives_its_connections(relay: CuttingRelay, workspace: Workspace) -> None:
    script = "stty -echo; echo ready; n=0; while read line; do echo got:$line; done; exit 3"
    run_id = workspace.spawn(["bash", "-c", script], terminal=(80, 24)).id
    with Client(relay.url, OWNER) as client:
        run, before = client.run(run_id), relay.cut
        relay.cuts = [1000] * 5
        with run.attach() as attached:
            shown, given = b"", 0
            for part in attached.output():
                assert part.stream == "pty"
                shown += part.content
                while given < 200 and shown.count(b"\n") > given:
                    attached.write(f"{given}\n")
                    given += 1
                if given == 200:
                    attached.write("\x04")
                    given += 1
            assert attached.end is not None
            assert attached.end.exit_code == 3
    assert relay.cut - before >= 2
    lines = shown.decode().split("\r\n")
    assert lines == ["ready", *(f"got:{number}" for number in range(200)), ""]


def test_input_that_a_broken_connection_lost_is_given_again_once(
    relay: CuttingRelay, workspace: Workspace
) -> None:
    run_id = workspace.spawn(["cat"], stdin=True).id
    content = "".join(f"{number:07}\n" for number in range(16_000)).encode()
    with Client(relay.url, OWNER) as client:
        run, before = client.run(run_id), relay.cut
        relay.cuts = [20_000, 700, 20_000]
        with run.attach() as attached:
            parts: list[bytes] = []
            heard = threading.Thread(
                target=lambda: parts.extend(each.content for each in attached.output())
            )
            heard.start()
            for place in range(0, len(content), 1000):
                attached.write(content[place : place + 1000])
            attached.end_input()
            heard.join(LONG_WAIT)
            assert not heard.is_alive()
            assert attached.end is not None
            assert attached.end.exit_code == 0
    assert relay.cut - before >= 2
    assert b"".join(parts) == content


@pytest.mark.parametrize("terminal", [None, (80, 24)])
def test_the_end_of_input_and_a_size_that_were_lost_are_said_again(
    relay: CuttingRelay, workspace: Workspace, terminal: tuple[int, int] | None
) -> None:
    script = "head -c 50000 /dev/zero; read line; stty size; cat"
    spawned = workspace.spawn(["bash", "-c", script], stdin=not terminal, terminal=terminal)
    with Client(relay.url, OWNER) as client:
        run, before = client.run(spawned.id), relay.cut
        relay.cuts = [20_000]
        with run.attach() as attached:
            eventually(lambda: relay.cut > before, what="the connection is cut")
            if terminal:
                attached.resize(90, 30)
                attached.write("\n\x04")
            else:
                attached.end_input()
            shown = b"".join(each.content for each in attached.output())
            assert attached.end is not None
            assert attached.end.exit_code == 0
    assert not terminal or b"30 90" in shown


def test_who_leaves_while_a_connection_is_made_again_is_not_connected_again(
    relay: CuttingRelay, workspace: Workspace
) -> None:
    async def work() -> None:
        run_id = workspace.spawn("head -c 100000 /dev/zero; sleep 600").id
        async with AsyncClient(relay.url, OWNER, retries=50) as client:
            run, before = await client.run(run_id), relay.cut
            relay.cuts = [20_000, *[0] * 4]
            attached = run.attach()
            async with attached:

                async def listen() -> None:
                    async for _ in attached.output():
                        pass

                heard = asyncio.ensure_future(listen())
                await asyncio.to_thread(
                    eventually, lambda: relay.cut - before >= 2, what="it is made again"
                )
                await attached.aclose()
                relay.cuts = []
                await asyncio.wait_for(heard, LONG_WAIT)
                assert attached._socket is None
                assert attached.end is None

    asyncio.run(work())


def test_input_that_was_lost_and_is_not_kept_is_an_error(
    relay: CuttingRelay, workspace: Workspace
) -> None:
    run_id = workspace.spawn("head -c 100000 /dev/zero; cat", stdin=True).id
    with Client(relay.url, OWNER) as client:
        run, before = client.run(run_id), relay.cut
        relay.cuts = [20_000]
        with run.attach() as attached:
            eventually(lambda: relay.cut > before, what="the connection is cut")
            # The service has seen nothing of it.
            for _ in range(3):
                attached.write(bytes(KEPT_BYTES // 2))
            with pytest.raises(Unreachable, match="more input was lost"):
                for _ in attached.output():
                    pass


def test_what_is_known_already_is_left_out(workspace: Workspace, client: Client) -> None:
    run = workspace.spawn("printf 12345; printf abc >&2")
    run.wait()
    with run.attach(3, after_stderr=1) as attached:
        found = {each.stream: each.content for each in attached.output()}
    assert found == {"stdout": b"45", "stderr": b"bc"}
    with run.attach(None) as attached:
        assert b"12345" not in b"".join(each.content for each in attached.output())
    with Client(client.base_url, "usr_else") as other:
        there = Run(other._connection, run.id)
        with pytest.raises(NotFound), there.attach():
            pass


def test_a_terminal_is_attached_to_with_asyncio(
    api_process: ApiProcess, workspace: Workspace
) -> None:
    async def work() -> None:
        async with AsyncClient(api_process.url, OWNER) as client:
            run = await client.workspace(workspace.id).spawn(["bash", "--norc"], terminal=(80, 24))
            async with run.attach() as attached:
                assert attached.terminal == (80, 24)
                await attached.resize(90, 30)
                await attached.write("stty size; exit 2\n")
                shown = b"".join([each.content async for each in attached.output()])
            assert b"30 90" in shown
            assert attached.end is not None
            assert attached.end.exit_code == 2

    asyncio.run(work())


def test_a_signal_reaches_what_one_is_attached_to(workspace: Workspace) -> None:
    run = workspace.spawn(
        "trap 'echo caught; exit 9' USR1; echo begun; while :; do sleep 0.1; done"
    )
    with run.attach() as attached:
        for part in attached.output():
            if part.content == b"begun\n":
                attached.signal("USR1")
        assert attached.end is not None
        assert attached.end.exit_code == 9
    eventually(lambda: run.refresh().ended, what="it has ended")
