"""One-shot runs: what is recorded of a program, and that a run always comes to its end."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runs.agent.record.frames import Kind, Stream
from tests.runs.agent.booted import Workspace, eventually
from tests.runs.agent.recorded import Record, Runs, given, is_alive, meta_of
from tests.stack.worker_process import ROOT
from tests.support.waiting import LONG_WAIT


@pytest.fixture
def runs(workspace: Workspace) -> Runs:
    """A workspace in which runs can be started."""
    return Runs(workspace)


def test_both_streams_and_the_exit_of_a_program_are_recorded(runs: Runs) -> None:
    record = runs.run("sh", "-c", "echo out; echo err >&2; exit 3")
    assert record.stream(Stream.STDOUT) == b"out\n"
    assert record.stream(Stream.STDERR) == b"err\n"
    assert record.closed(Stream.STDOUT) == (4, "eof")
    assert record.exit == {"code": 3, "signal": None, "reason": "exited"}
    assert record.seal["exit"] == record.exit
    assert record.seal["reason"] == "ended"


def test_the_first_event_says_what_is_recorded_and_how(runs: Runs) -> None:
    record = runs.run("true", secrets=["hunter2hunter2"])
    first = meta_of(record.events[0])
    assert record.events[0].kind == Kind.RECORD_STARTED
    assert (first["mode"], first["policy"]) == ("one-shot", "block")
    assert first["redaction"] == {"values": 1, "shapes": True}
    assert first["coverage"]["io"] == {"state": "on", "method": "pipe"}
    assert {"processes", "files", "network", "input"} <= set(first["coverage"])


def test_a_run_that_is_over_at_once_loses_nothing(runs: Runs) -> None:
    for _ in range(5):
        record = runs.run("echo", "short")
        assert record.stream(Stream.STDOUT) == b"short\n"
        assert record.seal["processes"] == 1


@contextmanager
def followed(runs: Runs, spec: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """`agent exec --then tail`, whose input stays open."""
    content = json.dumps(spec).encode()
    command = [*runs.command("exec"), "--then", "tail"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as called:
        assert called.stdin is not None
        called.stdin.write(struct.pack("!I", len(content)) + content)
        called.stdin.flush()
        yield called


def test_the_supervisor_of_a_run_that_is_followed_leaves_nothing_behind(runs: Runs) -> None:
    spec = runs.spec("echo", "hello")
    with followed(runs, spec) as called:
        assert runs.sealed(spec["runId"]).stream(Stream.STDOUT) == b"hello\n"
        children = Path(f"/proc/{called.pid}/task/{called.pid}/children")
        eventually(lambda: not children.read_text())


def test_a_run_goes_on_when_who_follows_it_is_killed(runs: Runs) -> None:
    go_on = runs.workspace.directory / "go on"
    script = "echo begun; until test -e 'go on'; do sleep 0.01; done; echo ended"
    spec = runs.spec("sh", "-c", script)
    with followed(runs, spec) as called:
        runs.wait_for_output(spec["runId"], b"begun\n")
        called.kill()
    go_on.touch()
    record = runs.sealed(spec["runId"])
    assert record.stream(Stream.STDOUT) == b"begun\nended\n"
    assert record.exit == {"code": 0, "signal": None, "reason": "exited"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        bytes(range(256)) * 3,
        b"\0" * 1000,
        b"\xff\xfe\xc3(",
        b"x" * 65537,
        os.urandom(1 << 20),
    ],
    ids=["nothing", "all bytes", "NUL", "invalid UTF-8", "64 KiB + 1", "1 MiB"],
)
def test_input_and_output_are_recorded_byte_for_byte(runs: Runs, content: bytes) -> None:
    record = runs.run("cat", stdin=given(content))
    assert record.stream(Stream.STDIN) == content
    assert record.stream(Stream.STDOUT) == content
    assert record.closed(Stream.STDIN) == (len(content), "eof")
    assert record.seal["exit"]["code"] == 0


def test_single_bytes_are_recorded_byte_for_byte(runs: Runs) -> None:
    write = "import os\nfor byte in range(256): os.write(1, bytes([byte]))"
    record = runs.run("python3", "-c", write)
    assert record.stream(Stream.STDOUT) == bytes(range(256))


def test_a_program_that_never_reads_its_input_ends_all_the_same(runs: Runs) -> None:
    record = runs.run("sh", "-c", "echo done", stdin=given(b"x" * 1_000_000))
    assert record.stream(Stream.STDOUT) == b"done\n"
    given_bytes, reason = record.closed(Stream.STDIN)
    assert given_bytes == len(record.stream(Stream.STDIN)) < 1_000_000
    assert reason == "abandoned"
    assert record.seal["exit"]["code"] == 0


def test_without_input_a_program_reads_its_end(runs: Runs) -> None:
    assert runs.run("cat").seal["exit"]["code"] == 0


def test_input_is_only_counted_where_the_policy_says_so(runs: Runs) -> None:
    record = runs.run("cat", stdin=given(b"12345"), record={"input": "off"})
    assert record.stream(Stream.STDIN) == b""
    assert record.metas(Kind.INPUT_HIDDEN) == [{"bytes": 5}]
    assert record.closed(Stream.STDIN) == (5, "eof")
    assert record.seal["exit"]["code"] == 0


def test_a_program_that_is_not_there_is_a_record(runs: Runs) -> None:
    record = runs.run("no-such-program")
    (started,) = record.metas(Kind.PROCESS_STARTED)
    assert started["startFailed"] == "cannot run no-such-program: No such file or directory"
    assert record.exit == {"code": 127, "signal": None, "reason": "startFailed"}
    assert record.seal["exit"] == record.exit


def test_a_file_that_is_no_program_is_a_record(runs: Runs) -> None:
    (runs.workspace.directory / "text").write_text("no program")
    assert runs.run("./text").exit["code"] == 126


def test_a_working_directory_that_is_not_there_is_a_record(runs: Runs) -> None:
    record = runs.run("pwd", cwd="nowhere")
    assert record.exit == {"code": 127, "signal": None, "reason": "startFailed"}


def test_a_relative_directory_counts_from_the_workspaces_own(runs: Runs) -> None:
    (runs.workspace.directory / "below").mkdir()
    record = runs.run("pwd", cwd="below")
    assert record.stream(Stream.STDOUT) == f"{runs.workspace.directory}/below\n".encode()


def test_a_program_knows_its_run_and_nothing_of_the_agents_environment(runs: Runs) -> None:
    run_id = runs.start("env", "-0", env={"MINE": "a b"})
    variables = runs.sealed(run_id).stream(Stream.STDOUT).split(b"\0")
    assert f"SVC_RUN_ID={run_id}".encode() in variables
    assert b"MINE=a b" in variables
    assert not [name for name in variables if name.startswith(b"PYTEST")]


def test_secrets_are_masked_in_output_and_in_the_command_line(runs: Runs) -> None:
    secret = "correct-horse-battery"
    record = runs.run("sh", "-c", f"printf 'a {secret} b'", secrets=[secret])
    assert record.stream(Stream.STDOUT) == b"a " + b"*" * len(secret) + b" b"
    (chunk,) = record.of(Kind.IO_CHUNK)
    assert meta_of(chunk)["masked"] == [[2, 2 + len(secret)]]
    assert not [event for event in record.events if secret.encode() in event.meta + event.body]


def test_a_run_is_never_started_twice(runs: Runs) -> None:
    spec = runs.spec("sh", "-c", "echo once >> runs")
    code, first = runs.execute(spec)
    again, second = runs.execute(spec)
    runs.sealed(spec["runId"])
    assert (code, again) == (0, 0)
    assert second == {"state": "exists", "spoolId": first["spoolId"]}
    assert runs.workspace.read("runs") == "once\n"


def outlasted(runs: Runs, script: str, **members: Any) -> Record:
    """The record of a run that met its time limit after it had written something."""
    for seconds in (1, 10, 100):
        record = runs.run("sh", "-c", script, timeSeconds=seconds, **members)
        if record.stream(Stream.STDOUT):
            break
    return record


def test_the_time_limit_ends_everything_that_the_run_has_started(runs: Runs) -> None:
    script = "trap '' TERM; setsid sleep 600 & echo $!; sleep 600"
    record = outlasted(runs, script, graceSeconds=0.2)
    assert record.exit == {"code": None, "signal": "SIGKILL", "reason": "timeout"}
    assert [meta["signal"] for meta in record.metas(Kind.SIGNAL_SENT)] == ["SIGTERM", "SIGKILL"]
    assert not is_alive(int(record.stream(Stream.STDOUT)))
    assert record.seal["reason"] == "stopped"


def test_a_program_that_obeys_is_not_killed(runs: Runs) -> None:
    script = "trap 'exit 5' TERM; echo here; while :; do sleep 0.01; done"
    record = outlasted(runs, script, graceSeconds=LONG_WAIT)
    assert record.exit == {"code": 5, "signal": None, "reason": "timeout"}
    assert [meta["signal"] for meta in record.metas(Kind.SIGNAL_SENT)] == ["SIGTERM"]


def test_what_holds_the_output_open_does_not_hold_up_the_run(runs: Runs) -> None:
    record = runs.run("sh", "-c", "sleep 600 & echo $!")
    assert record.closed(Stream.STDOUT)[1] == "abandoned"
    assert record.exit == {"code": 0, "signal": None, "reason": "exited"}
    assert not is_alive(int(record.stream(Stream.STDOUT)))
    assert record.seal["reason"] == "ended"


def test_what_leaves_the_group_and_closes_everything_ends_with_the_run(runs: Runs) -> None:
    script = "setsid sh -c 'setsid sleep 600 & echo $! > pid' >/dev/null 2>&1 </dev/null; sync"
    record = runs.run("sh", "-c", script)
    assert record.seal["exit"]["code"] == 0
    assert not is_alive(int(runs.workspace.read("pid")))


def test_the_run_goes_on_when_its_starter_is_killed(runs: Runs) -> None:
    spec = runs.spec("sh", "-c", "while [ ! -e go ]; do sleep 0.01; done; echo late")
    starter = subprocess.Popen(
        runs.command("exec"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    starter.communicate(json.dumps(spec).encode())
    with pytest.raises(ProcessLookupError):
        os.killpg(starter.pid, signal.SIGHUP)
    runs.workspace.go()
    assert runs.sealed(spec["runId"]).stream(Stream.STDOUT) == b"late\n"


def test_the_program_dies_with_its_recorder(runs: Runs) -> None:
    run_id = runs.start("sh", "-c", "echo here; exec sleep 600")
    runs.wait_for_output(run_id, b"here")
    pid = runs.record(run_id).metas(Kind.PROCESS_STARTED)[0]["pid"]
    os.kill(_parent(pid), signal.SIGKILL)
    eventually(lambda: not is_alive(pid))


def test_a_stop_of_the_container_seals_the_record(runs: Runs) -> None:
    run_id = runs.start("sh", "-c", "echo here; exec sleep 600")
    runs.wait_for_output(run_id, b"here")
    pid = runs.record(run_id).metas(Kind.PROCESS_STARTED)[0]["pid"]
    os.kill(_parent(pid), signal.SIGTERM)
    record = runs.sealed(run_id)
    assert record.seal["reason"] == "runtime-ended"
    assert record.exit == {"code": None, "signal": "SIGTERM", "reason": "signaled"}


def test_a_full_spool_makes_the_program_wait_and_loses_nothing(runs: Runs) -> None:
    room = {"spoolBytes": 1 << 20, "segmentBytes": 1 << 18}
    run_id = runs.start("sh", "-c", "head -c 3000000 /dev/zero; touch written", record=room)
    eventually(lambda: _bytes_in(runs, run_id) > 600_000)
    assert not (runs.workspace.directory / "written").exists()
    # What an acknowledgement does: segments that are not written to any longer disappear.
    taken = 0

    def over() -> bool:
        nonlocal taken
        taken += runs.take_whole_segments(run_id)
        return runs.is_sealed(run_id)

    eventually(over)
    taken += sum(len(event.body) for event in runs.record(run_id).of(Kind.IO_CHUNK))
    assert taken == 3_000_000
    assert (runs.workspace.directory / "written").exists()


FLOOD = "trap '' TERM; cat /dev/zero & echo $! > pid; while [ ! -e go ]; do sleep 0.01; done"
"""Leaves something behind that writes without an end and heeds no TERM."""

SMALL = {"spoolBytes": 1 << 20, "segmentBytes": 1 << 18}
FULL = 880_000
"""A spool that is so small has no room for another chunk then."""


def left_behind_a_flood(runs: Runs, **members: Any) -> str:
    """A run whose program has ended with 0, while what it left behind keeps its spool full."""
    (runs.workspace.directory / "go").unlink(missing_ok=True)
    run_id = runs.start("sh", "-c", FLOOD, record=SMALL, graceSeconds=0.2, **members)
    eventually(lambda: _bytes_in(runs, run_id) > FULL or runs.is_sealed(run_id))
    runs.workspace.go()
    eventually(lambda: runs.record(run_id).of(Kind.PROCESS_EXITED))
    return run_id


def stored_when_full(runs: Runs, run_id: str) -> Record:
    """What is left of a record, once it has ended, that was stored whenever there was no room."""

    def over() -> bool:
        if _bytes_in(runs, run_id) > FULL:
            runs.take_whole_segments(run_id)
        return runs.is_sealed(run_id)

    eventually(over)
    return runs.record(run_id)


def test_what_writes_faster_than_it_is_stored_is_given_up_after_the_program(runs: Runs) -> None:
    run_id = left_behind_a_flood(runs)
    record = stored_when_full(runs, run_id)
    assert record.closed(Stream.STDOUT)[1] == "abandoned"
    (seal,) = record.metas(Kind.RECORD_SEALED)
    assert (seal["reason"], seal["exit"]["code"]) == ("ended", 0)
    assert not is_alive(int(runs.workspace.read("pid")))


def test_a_stop_ends_what_a_program_has_left_behind_in_a_full_spool(runs: Runs) -> None:
    run_id = left_behind_a_flood(runs)
    assert runs.stop(run_id) == 0
    eventually(lambda: not is_alive(int(runs.workspace.read("pid"))))
    (seal,) = stored_when_full(runs, run_id).metas(Kind.RECORD_SEALED)
    assert seal["reason"] == "stopped"
    assert seal["exit"] == {"code": 0, "signal": None, "reason": "exited"}


def test_the_time_limit_ends_what_a_program_has_left_behind_in_a_full_spool(runs: Runs) -> None:
    for seconds in (1, 10, 100):
        run_id = left_behind_a_flood(runs, timeSeconds=seconds)
        (ended,) = runs.record(run_id).metas(Kind.PROCESS_EXITED)
        if ended["reason"] == "exited":
            break
    eventually(lambda: not is_alive(int(runs.workspace.read("pid"))))
    record = stored_when_full(runs, run_id)
    (seal,) = record.metas(Kind.RECORD_SEALED)
    assert (seal["reason"], seal["exit"]["code"]) == ("stopped", 0)


def test_a_full_spool_with_the_policy_drop_names_every_missing_byte(runs: Runs) -> None:
    room = {"spoolBytes": 1 << 20, "segmentBytes": 1 << 18, "policy": "drop"}
    record = runs.run("sh", "-c", "head -c 3000000 /dev/zero; echo end >&2", record=room)
    covered = 0
    spans = [(e.offset, e.offset + len(e.body)) for e in record.of(Kind.IO_CHUNK) if e.stream == 2]
    dropped = [e for e in record.of(Kind.TELEMETRY_DROPPED) if e.stream == Stream.STDOUT]
    spans += [(event.offset, meta_of(event)["toOffset"]) for event in dropped]
    for start, end in sorted(spans):
        assert start == covered
        covered = end
    assert covered == record.closed(Stream.STDOUT)[0] == 3_000_000
    assert {meta_of(event)["reason"] for event in dropped} == {"spool-full"}
    assert record.seal["exit"]["code"] == 0


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ({"argv": []}, "/argv"),
        ({"argv": ["a\0b"]}, "/argv/0"),
        ({"runId": "../../etc"}, "/runId"),
        ({"stdin": "?"}, "/stdin"),
        ({"timeSeconds": -1}, "/timeSeconds"),
        ({"env": {"SVC_RUN_ID": "x"}}, "/env/SVC_RUN_ID"),
        ({"more": 1}, "/more"),
        ({"version": 2}, "/version"),
    ],
)
def test_a_spec_with_a_fault_is_refused_by_its_member(
    runs: Runs, members: dict[str, Any], named: str
) -> None:
    code, answer = runs.execute(runs.spec("true") | members)
    assert (code, answer["state"]) == (2, "refused")
    assert answer["message"].startswith(named + " ")
    assert not runs.root.exists() or not list(runs.root.iterdir())


def test_a_run_that_cannot_be_recorded_is_not_started(runs: Runs) -> None:
    runs.workspace.state.mkdir()
    runs.root.write_text("no folder")
    code, answer = runs.execute(runs.spec("touch", "started"))
    assert (code, answer["state"]) == (3, "refused")
    assert not (runs.workspace.directory / "started").exists()


KILLED = """
import os, signal, sys
from runs.agent.execution import exec_command
from runs.agent.execution.execution import Execution

def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[3] == "without":
    exec_command.open_spool = killed
else:
    Execution.begin = killed
sys.exit(exec_command.execute(sys.argv[1], sys.argv[2]))
"""


@pytest.mark.parametrize(("when", "code"), [("with", 0), ("without", 3)])
def test_a_run_whose_supervisor_died_unanswered_has_begun_once_it_has_a_spool(
    runs: Runs, when: str, code: int
) -> None:
    spec = runs.spec("true")
    paths = [str(runs.workspace.config_path), str(runs.workspace.state)]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *paths, when],
        input=json.dumps(spec).encode(),
        capture_output=True,
        cwd=ROOT,
        check=False,
    )
    answer = json.loads(done.stdout)

    assert (done.returncode, answer["state"]) == (code, "refused" if code else "exists")
    if not code:
        identity = json.loads((runs.root / spec["runId"] / "spool.json").read_text())
        assert answer["spoolId"] == identity["spoolId"]
        # Nobody starts it a second time.
        again, told = runs.execute(spec)
        assert (again, told["state"], told["spoolId"]) == (0, "exists", answer["spoolId"])


def _bytes_in(runs: Runs, run_id: str) -> int:
    return sum(path.stat().st_size for path in (runs.root / run_id).glob("*.seg"))


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
