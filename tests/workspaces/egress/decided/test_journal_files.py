"""What a journal has on the disk: whose it is, how much of it, and when it survives what."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.support.open_files import open_below, path_of
from tests.workspaces.egress.decided.decided_rows import (
    decision,
    head_of,
    hosts,
    losses,
    with_policy,
)
from workspaces.egress.decided import unstored
from workspaces.egress.decided.journal import Journal
from workspaces.models import Attempt

pytestmark = pytest.mark.django_db


def files_of(journal: Journal, attempt: Attempt) -> list[Path]:
    return sorted(journal._folder.glob(f"{attempt.pk}.*"))


def recovered(journal: Journal, folder: Path) -> None:
    """Kill a proxy, and have the next one store what it has left."""
    journal.abandon()
    following = Journal(folder / "egress-journal")
    following.recover()
    following.abandon()


@pytest.fixture
def calls(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What of a journal is made durable or takes another's place, with its inode, in order."""
    made: list[tuple[str, int]] = []
    fsync, rename = os.fsync, Path.rename

    def sync(descriptor: int) -> None:
        if path_of(descriptor).is_relative_to(journal._folder):
            made.append(("fsync", os.fstat(descriptor).st_ino))
        fsync(descriptor)

    def move(path: Path, target: Path) -> Path:
        if path.is_relative_to(journal._folder):
            made.append(("rename", path.stat().st_ino))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "rename", move)
    return made


def test_nobody_else_reads_what_a_workspace_has_asked_for(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, _ = with_policy()
    journal.add(decision(attempt.pk))
    (file,) = files_of(journal, attempt)
    assert stat.S_IMODE(journal._folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((journal._folder / "lock").stat().st_mode) == 0o600
    monkeypatch.setattr(unstored, "COMPACT_BYTES", 0)
    journal.add(decision(attempt.pk))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, "also when it is written anew"


def test_a_short_file_is_only_added_to(journal: Journal, calls: list[tuple[str, int]]) -> None:
    attempt, _ = with_policy()
    for _ in range(100):
        journal.add(decision(attempt.pk))
    assert calls == []


def test_a_look_at_what_another_proxy_has_leaves_nothing_open(
    journal: Journal, tmp_path: Path
) -> None:
    other = Journal(tmp_path / "egress-journal")
    before = open_below(journal._root)
    other.recover()
    assert open_below(journal._root) == before
    other.abandon()


def test_of_a_line_that_the_disk_had_no_room_for_nothing_stays(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, run = with_policy()
    write = os.write
    journal.add(decision(attempt.pk))
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda file, data: write(file, data[:9]))
        with pytest.raises(OSError, match="No space left"):
            journal.add(decision(attempt.pk, "full.test"))
    journal.add(decision(attempt.pk, "b.test"))
    recovered(journal, tmp_path)
    assert hosts(run) == [("a.test", 1), ("b.test", 1)]
    assert losses(run) == []


def test_a_journal_has_one_file_for_each_workspace_and_pass_and_one_descriptor_for_it(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unstored, "COMPACT_BYTES", 1024)
    attempt, _ = with_policy()
    other, _ = with_policy()
    before = open_below(journal._folder)
    for number in range(100):
        journal.add(decision(attempt.pk, f"h{number % 3}.test"))
        journal.add(decision(other.pk))
    files = [files_of(journal, each) for each in (attempt, other)]
    assert [len(each) for each in files] == [1, 1]
    assert open_below(journal._folder) == sorted(before + files[0] + files[1])
    journal.flush()
    assert open_below(journal._folder) == before
    assert files_of(journal, attempt) == []


def test_a_file_is_written_anew_once_it_is_longer_and_not_while_it_is_shorter(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, _ = with_policy()
    for _ in range(10):
        journal.add(decision(attempt.pk))
    (file,) = files_of(journal, attempt)
    length = file.stat().st_size
    monkeypatch.setattr(unstored, "COMPACT_BYTES", length)
    journal.add(decision(attempt.pk))
    assert file.stat().st_size == 11 * length // 10, "it was as long as it may be"
    journal.add(decision(attempt.pk))
    assert file.stat().st_size < length / 2


def test_what_is_written_anew_is_durable_before_it_takes_the_place_of_what_was_there(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, calls: list[tuple[str, int]]
) -> None:
    attempt, _ = with_policy()
    journal.add(decision(attempt.pk))
    monkeypatch.setattr(unstored, "COMPACT_BYTES", 0)
    journal.add(decision(attempt.pk))
    (file,) = files_of(journal, attempt)
    assert calls == [("fsync", file.stat().st_ino), ("rename", file.stat().st_ino)]


def test_where_nothing_can_be_written_anew_the_old_file_stays_and_nothing_is_left_open(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, run = with_policy()
    journal.add(decision(attempt.pk))
    before = open_below(journal._folder)
    with monkeypatch.context() as patched:
        patched.setattr(unstored, "COMPACT_BYTES", 0)
        patched.setattr(os, "write", lambda *_: 3)
        with pytest.raises(OSError, match="No space left"):
            journal.add(decision(attempt.pk, "full.test"))
    assert open_below(journal._folder) == before
    journal.add(decision(attempt.pk, "b.test"))
    recovered(journal, tmp_path)
    assert hosts(run) == [("a.test", 1), ("b.test", 1)]


def test_what_waits_for_the_database_survives_a_loss_of_power(
    journal: Journal, calls: list[tuple[str, int]]
) -> None:
    attempt, _ = with_policy()
    journal.add(decision(attempt.pk))
    (file,) = files_of(journal, attempt)
    kept = journal._kept[attempt.pk]
    before = open_below(journal._folder)
    kept.wait()
    assert calls == [("fsync", file.stat().st_ino)]
    assert open_below(journal._folder) == before


def test_numbers_rise_so_that_passes_are_stored_in_the_order_of_their_decisions(
    journal: Journal, tmp_path: Path
) -> None:
    attempt, run = with_policy()
    for number in range(12):  # as texts, "10" would come before "9"
        kept = journal._of(attempt.pk)
        journal.add(decision(attempt.pk, f"h{number}.test"))
        frozen = kept._next(journal.id)
        assert frozen is not None
        kept._frozen = None  # as if it were stored, and its proxy killed
    recovered(journal, tmp_path)
    assert hosts(run) == [(f"h{number}.test", 1) for number in range(12)]
    assert head_of(run).loss_count == 0


def test_what_is_no_journal_is_left_alone(journal: Journal, tmp_path: Path) -> None:
    attempt, run = with_policy()
    journal.add(decision(attempt.pk))
    (journal._folder / f"{attempt.pk}.7.new").write_text("half of it")
    (tmp_path / "egress-journal" / "a-file").write_text("")
    recovered(journal, tmp_path)
    assert hosts(run) == [("a.test", 1)]
    assert (tmp_path / "egress-journal" / "a-file").exists()
    assert not journal._folder.exists()
