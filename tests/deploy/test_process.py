"""Processes that outlive their starter: who is alive, who is not, who must never be signalled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from deploy.services.ports import PortBook, is_free
from deploy.services.process import (
    ProcessRecord,
    running_commands,
    spawn_detached,
    tail,
    wait_until,
)
from tests.support.waiting import LONG_WAIT

ENVIRON = {"PATH": os.environ["PATH"]}


def _sleeper(directory: Path) -> ProcessRecord:
    return spawn_detached(
        ["sleep", "60"], env=ENVIRON, directory=directory, log=directory / "sleeper.log"
    )


def test_a_zombie_counts_as_dead() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        record = ProcessRecord.of(child.pid)
        assert record is not None
        child.kill()
        # Nobody has waited for it: the pid still exists.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        os.kill(child.pid, 0)
        assert ProcessRecord.of(child.pid) is None


def test_a_process_lives_until_its_last_thread_has_ended() -> None:
    program = (
        "import ctypes, os, threading\n"
        "threading.Thread(target=os.read, args=(0, 1)).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as child:
        record = ProcessRecord.of(child.pid)
        assert record is not None
        stat = Path(f"/proc/{child.pid}/stat")
        assert wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", LONG_WAIT)
        assert record.alive
        assert ProcessRecord.of(child.pid) == record
        assert record.environ()["PATH"] == os.environ["PATH"]
        argv = dict(running_commands(Path(sys.executable).name))[child.pid]
        assert argv == [sys.executable, "-c", program]
        record.signal(signal.SIGKILL)
        assert record.wait_gone(LONG_WAIT)


def test_a_pid_used_again_by_somebody_else_is_neither_alive_nor_signalled(tmp_path: Path) -> None:
    record = _sleeper(tmp_path)
    for stranger in (
        replace(record, started=record.started - 1),
        replace(record, boot="another boot"),
    ):
        assert not stranger.alive
        stranger.signal(signal.SIGKILL)
        stranger.kill_session()
        assert record.alive
    record.kill_session()
    assert record.wait_gone(LONG_WAIT)


def test_killing_the_session_also_ends_what_a_dead_leader_left_behind(tmp_path: Path) -> None:
    script = "sleep 60 & echo $! > child; kill -9 $$"
    record = spawn_detached(
        ["sh", "-c", script], env=ENVIRON, directory=tmp_path, log=tmp_path / "log"
    )
    assert record.wait_gone(LONG_WAIT)
    child = ProcessRecord.of(int((tmp_path / "child").read_text()))
    assert child is not None
    record.kill_session()
    assert child.wait_gone(LONG_WAIT)


def test_a_detached_process_survives_its_starter_and_holds_none_of_its_pipes(
    tmp_path: Path,
) -> None:
    program = (
        "import os, sys; from pathlib import Path\n"
        "from deploy.services.process import spawn_detached\n"
        "here = Path(sys.argv[1])\n"
        "os.set_inheritable(os.dup(1), True)\n"
        "record = spawn_detached(['sleep', '600'], env={'PATH': os.environ['PATH']},\n"
        "                        directory=here, log=here / 'log')\n"
        "record.save(here / 'record.json')\n"
    )
    # Reads until every holder of the pipe has closed it: too late when the process kept it.
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        check=True,
        stdout=subprocess.PIPE,
        timeout=LONG_WAIT,
        cwd=Path(__file__).resolve().parents[2],
    )
    record = ProcessRecord.load(tmp_path / "record.json")
    assert record is not None
    assert record.alive
    assert os.getsid(record.pid) == record.pid
    record.kill_session()
    assert record.wait_gone(LONG_WAIT)


def test_a_record_that_is_absent_or_broken_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "process.json"
    assert ProcessRecord.load(path) is None
    path.write_text('{"pid": "many"}')
    assert ProcessRecord.load(path) is None


def test_a_big_log_is_put_aside_at_the_next_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * (11 * 1024 * 1024))
    record = spawn_detached(["echo", "hello"], env=ENVIRON, directory=tmp_path, log=log)
    record.wait_gone(LONG_WAIT)
    assert wait_until(lambda: tail(log) == "hello", LONG_WAIT)
    assert (tmp_path / "log.1").stat().st_size == 11 * 1024 * 1024


def test_a_chosen_port_is_kept(tmp_path: Path) -> None:
    first = PortBook(tmp_path / "ports.json").choose("api")
    assert is_free(first)
    assert PortBook(tmp_path / "ports.json").choose("api") == first
    assert PortBook(tmp_path / "ports.json").choose("other") != first


def test_a_port_that_is_asked_for_replaces_the_remembered_one(tmp_path: Path) -> None:
    book = PortBook(tmp_path / "ports.json")
    book.choose("api")
    assert book.choose("api", 4567) == 4567
    assert book.choose("api") == 4567


def test_a_replaced_port_is_another_one(tmp_path: Path) -> None:
    book = PortBook(tmp_path / "ports.json")
    first = book.choose("api")
    second = book.replace("api")
    assert second != first
    assert book.get("api") == second


def test_a_broken_port_book_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    path.write_text("{")
    port = PortBook(path).choose("api")
    assert PortBook(path).get("api") == port
