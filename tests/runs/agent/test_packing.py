"""Packing a folder in which others make and remove things meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

from runs.agent.files import archives


def test_a_folder_that_is_gone_before_its_turn_is_passed_over(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    found = archives._walk(os.fsencode(tmp_path))
    listed = [next(found)[0] for _ in range(4)]
    (tmp_path / "a" / "file").unlink()
    (tmp_path / "a").rmdir()
    rest = [os.fsdecode(place) for place, _ in found]
    assert {os.fsdecode(place) for place in listed} == {
        str(tmp_path),
        *(str(tmp_path / name) for name in ("a", "b", "c")),
    }
    assert set(rest) == {str(tmp_path / name / "file") for name in ("b", "c")}


def test_a_file_that_is_gone_again_is_not_one_that_may_not_be_read(tmp_path: Path) -> None:
    place = os.fsencode(tmp_path / "file")
    (tmp_path / "file").touch()
    status = os.lstat(place)
    (tmp_path / "file").unlink()
    archives._require_readable(place, status)
