"""Moves to a name that nobody has, also where the kernel does not do it in one step."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from runs.agent.files import writing
from tests.runs.agent.file_calls import recorded, wire_with

ROOT = Path(__file__).parents[3]

# What a disk without RENAME_NOREPLACE answers (9p, NFS), here by a filter of the kernel's. Another
# one of `linkat` stands for a disk that knows no links.
_SCRIPT = """
import ctypes, errno, os, struct, sys
from runs.agent.files.renaming import rename_new

def refuse(call, argument, number):
    load, equal, answer = 0x20, 0x15, 0x06
    steps = [(load, 0, 0, 0), (equal, 0, 3, call), (load, 0, 0, 16 + 8 * argument)]
    steps += [(equal, 1, 0, 0), (answer, 0, 0, 0x50000 | number), (answer, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = struct.pack("@HP", len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, program, 0, 0) == 0, os.strerror(ctypes.get_errno())

way, source, target, *calls = sys.argv[1:]
renameat2, linkat = map(int, calls)
if way != "kernel":
    refuse(renameat2, 4, errno.EINVAL)
if way == "look":
    refuse(linkat, 1, errno.EPERM)
try:
    rename_new(os.fsencode(source), os.fsencode(target))
except OSError as error:
    sys.exit(error.errno)
"""
_CALLS = {"x86_64": ("316", "265"), "aarch64": ("276", "37")}

pytestmark = pytest.mark.skipif(
    platform.machine() not in _CALLS, reason="the numbers of its calls are not known here"
)


@pytest.fixture(params=["kernel", "links", "look"])
def way(request: pytest.FixtureRequest) -> str:
    """How a rename can be done: in one step, by a link, or only after a look."""
    return str(request.param)


def rename(way: str, source: Path, target: Path) -> int:
    """Rename in a process of its own; 0, or what the system refused it with."""
    calls = _CALLS[platform.machine()]
    arguments = [way, str(source), str(target), *calls]
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_name_that_is_free_is_given(way: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "folder/inner").mkdir(parents=True)
    for name in ("file", "link", "folder"):
        assert rename(way, tmp_path / name, tmp_path / f"new-{name}") == 0
    assert names_in(tmp_path) == ["new-file", "new-folder", "new-link"]
    assert (tmp_path / "new-file").read_text() == "content"
    assert (tmp_path / "new-file").stat().st_nlink == 1
    assert (tmp_path / "new-link").readlink() == Path("nowhere")
    assert (tmp_path / "new-folder/inner").is_dir()


def test_a_name_that_is_taken_stays_with_what_has_it(way: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("new")
    (tmp_path / "folder").mkdir()
    (tmp_path / "taken-file").write_text("old")
    (tmp_path / "taken-link").symlink_to("nowhere")
    (tmp_path / "taken-folder").mkdir()
    before = names_in(tmp_path)
    for source in ("file", "folder"):
        for target in ("taken-file", "taken-link", "taken-folder"):
            assert rename(way, tmp_path / source, tmp_path / target) == errno.EEXIST
    assert names_in(tmp_path) == before
    assert (tmp_path / "taken-file").read_text() == "old"


def test_a_folder_does_not_go_into_itself(way: str, tmp_path: Path) -> None:
    (tmp_path / "folder/inner").mkdir(parents=True)
    (tmp_path / "beside").symlink_to("folder/inner")
    for target in ("folder/itself", "folder/inner/itself", "beside/itself"):
        assert rename(way, tmp_path / "folder", tmp_path / target) == errno.EINVAL
    assert names_in(tmp_path / "folder") == ["inner"]
    assert names_in(tmp_path / "folder/inner") == []


def test_what_is_not_there_gets_no_name(way: str, tmp_path: Path) -> None:
    assert rename(way, tmp_path / "none", tmp_path / "new") == errno.ENOENT
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_move_does_not_replace_what_a_program_makes_meanwhile(tmp_path: Path, what: str) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    if what == "folder":
        source.mkdir()
    else:
        source.write_text("moved")

    def made_meanwhile(told: dict[str, object]) -> None:
        if what == "folder":
            target.mkdir(exist_ok=True)
        else:
            target.write_text("made meanwhile")

    spec = {"to": os.fsencode(target)}
    with (
        recorded(made_meanwhile) as (log, _),
        wire_with() as wire,
        pytest.raises(FileExistsError),
    ):
        writing.move(wire, log, spec, os.fsencode(source))
    assert source.exists()
    assert target.is_dir() if what == "folder" else target.read_text() == "made meanwhile"
