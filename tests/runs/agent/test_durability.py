"""What the disk has before anybody is told: the agent's system calls, in their order.

A segment is durable before its summary and the next one's name, an acknowledgement before what it
frees, the end of a record before anybody hears that it is there.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from runs.agent.record.frames import Kind
from runs.agent.record.spool import SpoolLimits, SpoolWriter
from tests.runs.agent.test_follow import RUN, Tail
from tests.support.waiting import LONG_WAIT

CALLS = "fsync,fdatasync,write,pwrite64,openat,rename,renameat,renameat2,unlinkat,unlink,mkdir"
DONE = re.compile(r"^(?:\d+ +)?(.*?) += ([0-9]+)")


@pytest.fixture
def strace(tmp_path: Path) -> list[str]:
    """Return the beginning of a command line whose calls are in the file ``trace`` then."""
    command = ["strace", "-qq", "-y", "-f", "-e", f"trace={CALLS}", "-o", str(tmp_path / "trace")]
    try:
        tried = subprocess.run([*command, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no strace")
    if tried.returncode:
        pytest.skip("nothing may be traced here")
    return command


class Trace:
    """The calls that were made and did not fail, in the order in which they began or ended."""

    def __init__(self, folder: Path) -> None:
        lines = (folder / "trace").read_text(errors="replace").splitlines()
        self.calls = [found[1] for line in lines if (found := DONE.match(line))]

    def at(self, pattern: str, *, after: int = -1) -> int:
        """Return where the first call behind a place is that matches."""
        for place, call in enumerate(self.calls[after + 1 :], after + 1):
            if re.search(pattern, call):
                return place
        raise AssertionError(f"no {pattern} behind call {after} of\n" + "\n".join(self.calls))

    def assert_order(self, *patterns: str) -> None:
        """These calls are there, each behind the one before it."""
        place = -1
        for pattern in patterns:
            place = self.at(pattern, after=place)


def run(strace: list[str], script: str, root: Path) -> None:
    """Have a script write a spool; what it says on its standard output is in the trace too."""
    head = (
        "import os, sys\n"
        "from runs.agent.record.acks import acknowledge\n"
        "from runs.agent.record.frames import Kind\n"
        "from runs.agent.record.segments import open_folder\n"
        "from runs.agent.record.spool import SpoolLimits, SpoolWriter\n"
        f"root, run = sys.argv[1], {RUN!r}\n"
        "def told(what): os.write(1, what)\n"
    )
    folder = Path(__file__).parents[3]
    argv = [*strace, sys.executable, "-c", head + script, str(root)]
    subprocess.run(argv, cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=LONG_WAIT)


SEGMENT = r"0{19}1\.seg"
CREATE = 'writer = SpoolWriter.create(root, run, SpoolLimits(1 << 16, 1 << 12), "one-shot")\n'
CHUNK = 'writer.append(Kind.IO_CHUNK, process=1, stream=2, body=b"x" * {size})\n'


def test_a_new_spool_is_durable_with_all_names_when_it_is_there(
    strace: list[str], tmp_path: Path
) -> None:
    run(strace, CREATE + 'told(b"created")', tmp_path / "runs")
    Trace(tmp_path).assert_order(
        r"^write\(.*/\.new-[^/]*/spool\.json>",
        rf"^openat\(.*{SEGMENT}.*O_CREAT",
        r"^fdatasync\(.*/\.new-[^/]*/spool\.json>",
        r"^fsync\(.*/\.new-",
        rf"^rename\(.*\.new-.*{RUN}",
        r"^fsync\(\d+<[^>]*/runs>",
        r"^write\(1.*created",
    )


def test_what_a_sync_or_a_seal_is_told_of_is_durable(strace: list[str], tmp_path: Path) -> None:
    script = (
        CREATE
        + CHUNK.format(size=10)
        + 'writer.sync()\ntold(b"synced")\nwriter.seal({"reason": "ended"})\ntold(b"sealed")'
    )
    run(strace, script, tmp_path / "runs")
    Trace(tmp_path).assert_order(
        rf"^write\(\d+<.*{SEGMENT}>",
        rf"^fdatasync\(\d+<.*{SEGMENT}>",
        r"^write\(1.*synced",
        rf"^write\(\d+<.*{SEGMENT}>",
        rf"^fdatasync\(\d+<.*{SEGMENT}>",
        r"^write\(1.*sealed",
    )


def test_a_segment_and_its_summary_are_durable_before_the_next_one_begins(
    strace: list[str], tmp_path: Path
) -> None:
    script = CREATE + CHUNK.format(size=5000) + 'writer.flush()\ntold(b"rolled")'
    run(strace, script, tmp_path / "runs")
    Trace(tmp_path).assert_order(
        rf"^write\(\d+<.*{SEGMENT}>",
        rf"^fdatasync\(\d+<.*{SEGMENT}>",
        r"^write\(\d+<.*/summary\.json\.new>",
        r"^fdatasync\(\d+<.*/summary\.json\.new>",
        r"^rename.*summary\.json\.new.*summary\.json",
        r"^openat\(.*0{19}2\.seg.*O_CREAT",
        rf"^fsync\(\d+<.*/{RUN}>",
        r"^write\(1.*rolled",
    )


def test_what_an_earlier_life_left_is_durable_before_it_is_gone_on_from(
    strace: list[str], tmp_path: Path
) -> None:
    script = (
        CREATE
        + CHUNK.format(size=10)
        + 'writer.close()\ntold(b"ended")\nSpoolWriter.reopen(root, run)\ntold(b"reopened")\n'
    )
    run(strace, script, tmp_path / "runs")
    Trace(tmp_path).assert_order(
        r"^write\(1.*ended",
        rf"^openat\(.*{SEGMENT}.*O_APPEND",
        rf"^fsync\(\d+<.*{SEGMENT}>",
        r"^write\(1.*reopened",
    )


def test_an_acknowledgement_is_durable_before_what_it_frees_is_gone(
    strace: list[str], tmp_path: Path
) -> None:
    script = (
        CREATE
        + CHUNK.format(size=5000)
        + "writer.flush()\nacknowledge(open_folder(os.path.join(root, run)), 1)\n"
    )
    run(strace, script, tmp_path / "runs")
    Trace(tmp_path).assert_order(
        r"^pwrite64\(\d+<.*/acked>",
        r"^fdatasync\(\d+<.*/acked>",
        rf"^unlinkat\(.*{SEGMENT}",
    )


def test_what_is_written_is_made_durable_by_and_by(strace: list[str], tmp_path: Path) -> None:
    script = (
        "import time\n"
        + CREATE
        + CHUNK.format(size=10)
        + "while (due := writer.deadline()) is not None:\n"
        "    time.sleep(max(0, due - time.monotonic()))\n"
        "    writer.tick()\n"
        'told(b"idle")'
    )
    run(strace, script, tmp_path / "runs")
    Trace(tmp_path).assert_order(
        rf"^write\(\d+<.*{SEGMENT}>",
        rf"fdatasync.*({SEGMENT}|resumed)",
        r"^write\(1.*idle",
    )


def test_the_end_of_a_record_is_durable_before_its_acknowledgement_and_that_before_it_is_gone(
    strace: list[str], tmp_path: Path
) -> None:
    writer = SpoolWriter.create(str(tmp_path / "runs"), RUN, SpoolLimits(), "one-shot")
    writer.append(Kind.IO_CHUNK, process=1, stream=2, body=b"x")
    writer.seal({"reason": "ended"})
    tail = Tail(tmp_path, 1, before=strace)
    with tail.process:
        assert tail.sequences(2) == [1, 2]
        tail.acknowledge(2)
        assert tail.process.wait(LONG_WAIT) == 0
    Trace(tmp_path).assert_order(
        r"^write\(1<.*runId",
        rf"^fdatasync\(\d+<.*{SEGMENT}>",
        r"^pwrite64\(\d+<.*/acked>",
        r"^fdatasync\(\d+<.*/acked>",
        rf"^rename\(.*/{RUN}.*\.done/{RUN}",
        r"^fsync\(\d+<[^>]*/runs>",
        r"^fsync\(\d+<[^>]*/\.done>",
        rf"^unlinkat\(.*{SEGMENT}",
    )
