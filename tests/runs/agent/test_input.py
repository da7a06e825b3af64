"""Input, signals and sizes for a one-shot run of the agent that is going on."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from runs.agent.execution.run_input import WAITING_BYTES
from runs.agent.record.frames import Kind, Stream
from tests.runs.agent.booted import PYTHON, Workspace, eventually
from tests.runs.agent.recorded import Runs, no_more_descriptors


@pytest.fixture
def runs(workspace: Workspace) -> Runs:
    return Runs(workspace)


def given(position: int, data: bytes, offset: int) -> dict[str, Any]:
    """Bytes of the input, as the control plane hands them over."""
    told = base64.b64encode(data).decode()
    return {"position": position, "kind": "bytes", "offset": offset, "data": told}


def tell(runs: Runs, run: str, *items: dict[str, Any]) -> Any:
    """Call ``agent input`` and return its answer; None: there is no such open run."""
    workspace = runs.workspace
    done = subprocess.run(
        [PYTHON, "-IS", str(workspace.archive), "input", "--state-dir", str(workspace.state), run],
        input=json.dumps(items).encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode in (0, 4), done.stderr
    return json.loads(done.stdout) if done.returncode == 0 else None


def opened(runs: Runs, *argv: str, **members: Any) -> str:
    """Start a run whose input stays open."""
    return runs.start(*argv, moreInput=True, record={"input": "full"}, **members)


def test_bytes_are_given_once_however_often_and_in_whatever_pieces(runs: Runs) -> None:
    run = opened(runs, "cat", stdin=base64.b64encode(b"ab").decode())
    assert tell(runs, run, given(1, b"cd", 2)) == {"state": "taken", "position": 1, "received": 4}
    again = [given(1, b"cd", 2), given(2, b"def", 3), {"position": 3, "kind": "end"}]
    assert tell(runs, run, *again) == {"state": "taken", "position": 3, "received": 6}
    record = runs.sealed(run)
    assert record.stream(Stream.STDOUT) == b"abcdef"
    assert record.stream(Stream.STDIN) == b"abcdef"
    assert record.closed(Stream.STDIN) == (6, "eof")


def test_a_signal_is_sent_once_and_past_bytes_that_nobody_reads(runs: Runs) -> None:
    script = "trap 'echo told' USR1; trap exit TERM; echo begun; while :; do sleep 0.05; done"
    run = opened(runs, "bash", "-c", script)
    runs.wait_for_output(run, b"begun\n")
    whole = bytes(WAITING_BYTES + 256 * 1024)
    told = {"position": 2, "kind": "signal", "signal": "USR1"}
    first = tell(runs, run, given(1, whole, 0), told)
    # What the pipe has taken made room for as much more.
    assert first["position"] == 0
    assert WAITING_BYTES <= first["received"] < len(whole)
    runs.wait_for_output(run, b"told\n")
    tell(runs, run, given(1, whole, 0), told)
    tell(runs, run, {"position": 3, "kind": "signal", "signal": "TERM"})
    assert runs.sealed(run).stream(Stream.STDOUT) == b"begun\ntold\n"


def test_input_for_which_there_is_no_descriptor_stops_nothing(runs: Runs) -> None:
    run = opened(runs, "cat")
    (started,) = runs.record(run).metas(Kind.PROCESS_STARTED)
    status = Path(f"/proc/{started['pid']}/stat").read_text()
    with no_more_descriptors(int(status.rpartition(")")[2].split()[1])):
        assert tell(runs, run, given(1, b"lost", 0)) is None
    end = {"position": 2, "kind": "end"}
    assert tell(runs, run, given(1, b"kept", 0), end)["state"] == "taken"
    record = runs.sealed(run)
    assert record.stream(Stream.STDOUT) == b"kept"
    assert record.seal["reason"] == "ended"


def test_a_terminal_is_resized_and_typed_into(runs: Runs) -> None:
    terminal = {"columns": 80, "rows": 24, "term": None}
    run = opened(runs, "bash", "-c", "echo begun; read line; stty size", pty=terminal)
    runs.wait_for_output(run, b"begun\r\n", Stream.PTY_OUTPUT)
    size = {"position": 1, "kind": "resize", "columns": 100, "rows": 30}
    tell(runs, run, size, given(2, b"x\n", 0))
    assert runs.sealed(run).stream(Stream.PTY_OUTPUT) == b"begun\r\nx\r\n30 100\r\n"


def test_an_ended_run_says_so_and_one_that_there_is_not_too(runs: Runs) -> None:
    run = opened(runs, "true")
    runs.sealed(run)
    eventually(lambda: tell(runs, run, given(1, b"a", 0)) is None)
    assert tell(runs, "00000000-0000-0000-0000-000000000000", given(1, b"a", 0)) is None


@pytest.mark.parametrize("content", [b"", b"?", b"{}", b"[5]", b'[{"kind": "bytes"}]'])
def test_nonsense_ends_nothing(runs: Runs, content: bytes) -> None:
    run = opened(runs, "cat")
    workspace = runs.workspace
    subprocess.run(
        [PYTHON, "-IS", str(workspace.archive), "input", "--state-dir", str(workspace.state), run],
        input=content,
        capture_output=True,
        check=False,
    )
    answer = tell(runs, run, given(1, b"a", 0), {"position": 2, "kind": "end"})
    assert answer["state"] == "taken"
    assert runs.sealed(run).stream(Stream.STDOUT) == b"a"
