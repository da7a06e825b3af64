"""Folders for temporary files: gone after use; of a process that was killed, at the next start."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controlplane.folders import scratch_folder, sweep_scratch
from tests.stack.gateway_process import ApiProcess
from tests.stack.worker_process import ROOT, CommandProcess, eventually
from tests.support.waiting import LONG_WAIT

HOLDER = """
import time
from controlplane.folders import scratch_folder
with scratch_folder("packages") as place:
    (place / "file").write_text("x")
    print(place, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files of this test and its processes lie."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


@contextmanager
def holder() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that uses a folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def left_folder() -> Path:
    """What a process that was killed has left."""
    with holder() as (process, place):
        process.send_signal(signal.SIGKILL)
        process.wait(LONG_WAIT)
    assert (place / "file").exists()
    return place


def test_a_folder_is_private_and_gone_afterwards(room: Path) -> None:
    with scratch_folder("git") as place:
        assert place.parent == room
        assert place.stat().st_mode & 0o777 == 0o700
        (place / "file").write_text("x")
    assert list(room.iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_what_is_in_use_is_not(room: Path) -> None:
    left = left_folder()
    with holder() as (_, used), scratch_folder("git") as own:
        assert sweep_scratch() == 1
        assert not left.exists()
        assert (used / "file").exists()
        assert own.exists()


def test_what_is_not_ours_is_left_alone(room: Path) -> None:
    (room / "other").mkdir()
    (room / "svc-scratch-link").symlink_to(room / "other")
    (room / "svc-scratch-file").write_text("x")
    foreign = room / "svc-scratch-of-somebody-else"
    foreign.mkdir()
    if os.geteuid() == 0:
        shutil.chown(foreign, 65534)
    else:
        foreign.rmdir()
    before = set(room.iterdir())
    assert sweep_scratch() == 0
    assert set(room.iterdir()) == before


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("command", ["buildworker", "runworker"])
def test_a_worker_removes_at_its_start_what_one_before_it_left(
    room: Path, tmp_path_factory: pytest.TempPathFactory, command: str
) -> None:
    left = left_folder()
    data = tmp_path_factory.mktemp("data")
    worker = CommandProcess(data / "worker.log", command, SVC_DATA_DIR=str(data))
    try:
        eventually(lambda: not left.exists(), what="the folder is removed")
    finally:
        worker.stop()


def test_the_api_removes_at_its_start_what_one_before_it_left(
    room: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    left = left_folder()
    api = ApiProcess(tmp_path_factory.mktemp("log") / "api.log")
    try:
        eventually(lambda: not left.exists(), what="the folder is removed")
    finally:
        api.stop()
