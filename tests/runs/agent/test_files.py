"""Live file events, from real inotify."""

from __future__ import annotations

import select
from pathlib import Path

import pytest

from runs.agent.observe import files
from runs.agent.observe.files import LiveFiles
from runs.agent.record.frames import Kind
from tests.runs.agent.observed import Watching
from tests.support.waiting import LONG_WAIT


class Live:
    """The live events of a folder."""

    def __init__(self, base: Path, **members: int) -> None:
        self.root = base / "root"
        self.root.mkdir(exist_ok=True)
        self.watching = Watching(base, self.root)
        self.files = LiveFiles(
            self.watching.recording, str(self.root), {"ignored"}, list, **members
        )

    def told(self) -> list[tuple[str, str, str | None]]:
        """What has been told so far: change, path, old path."""
        while select.select([self.files.fd], [], [], 0)[0]:
            self.files.readable()
        self.files.flush()
        return [
            (meta["change"], meta["path"], meta.get("oldPath"))
            for meta in self.watching.metas(Kind.FILE_CHANGE)
        ]


@pytest.fixture
def live(tmp_path: Path) -> Live:
    """An empty folder that is watched."""
    return Live(tmp_path)


def test_a_file_that_is_made_and_written_is_one_event(live: Live) -> None:
    with (live.root / "a").open("w") as file:
        for _ in range(100):
            file.write("x")
            file.flush()
    assert live.told() == [("added", "a", None)]
    (meta,) = live.watching.metas(Kind.FILE_CHANGE)
    assert (meta["type"], meta["size"], meta["root"]) == ("file", 100, str(live.root))


def test_a_rename_names_both_paths_and_a_renamed_folder_is_still_watched(live: Live) -> None:
    (live.root / "d").mkdir()
    live.told()
    (live.root / "d").rename(live.root / "e")
    (live.root / "e/f").touch()
    assert live.told()[1:] == [("renamed", "e", "d"), ("added", "e/f", None)]


def test_what_was_made_in_a_new_folder_before_it_was_watched_is_told(live: Live) -> None:
    (live.root / "d/e").mkdir(parents=True)
    (live.root / "d/e/f").touch()
    assert {path for _, path, _ in live.told()} == {"d", "d/e", "d/e/f"}


def test_what_is_ignored_or_made_by_tools_is_not_watched(live: Live) -> None:
    for name in ("ignored", "node_modules", ".git"):
        (live.root / name).mkdir()
        (live.root / name / "x").touch()
    assert live.told() == []


def test_what_leaves_the_folder_is_deleted_and_no_longer_watched(
    live: Live, tmp_path: Path
) -> None:
    (live.root / "d").mkdir()
    live.told()
    (live.root / "d").rename(tmp_path / "outside")
    assert live.told()[1:] == [("deleted", "d", None)]
    (tmp_path / "outside/x").touch()
    assert live.told()[2:] == []


def test_the_limit_of_watches_is_named(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / "root" / name).mkdir(parents=True)
    live = Live(tmp_path, most_watches=2)
    assert live.files.watches == 2
    assert live.files.limit == "more than 2 folders"


def test_thousands_of_changes_are_all_told(live: Live) -> None:
    for number in range(5000):
        (live.root / str(number)).touch()
    assert len(live.told()) == 5000


@pytest.mark.parametrize("seconds", [LONG_WAIT, 0.0])
def test_the_end_does_not_wait_for_ever_for_whoever_goes_on_changing_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(files, "_LAST_READS_SECONDS", seconds)
    root = tmp_path / "root"
    root.mkdir()
    watching = Watching(tmp_path, root, files=True)
    watching.observers.before_start()
    (root / "late").touch()
    watching.observers.finish()
    assert [meta["path"] for meta in watching.metas(Kind.FILE_CHANGE)] == ["late"]
    told = [meta["reason"] for meta in watching.metas(Kind.COVERAGE_CHANGED)]
    quick = "live: files were changed quicker than could be read at the end"
    assert (quick in told) == (seconds == 0.0)
    watching.close()


def test_lost_notices_are_named_and_what_appeared_meanwhile_is_watched(live: Live) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(limit // 2 + 10):
        (live.root / "a").touch()
        (live.root / "a").rename(live.root / f"b{number % 2}")
    (live.root / "late").mkdir()
    live.told()
    assert live.watching.metas(Kind.FILE_WATCH_OVERFLOW) == [{"root": str(live.root)}]
    (live.root / "late/x").touch()
    assert live.told()[-1] == ("added", "late/x", None)
