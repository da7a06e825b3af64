"""What a run changed: what is reported is what a naive comparison of before and after says."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runs.agent.observe import text_versions
from runs.agent.observe.changes import Changes, ChangesFailed, Difference, Snapshot
from runs.agent.observe.diff import Change
from runs.agent.record.frames import Kind
from tests.runs.agent.observed import ACCOUNT, Watching, git
from tests.support.waiting import LONG_WAIT


class Compared:
    """The changes between two moments of a folder."""

    def __init__(self, base: Path, root: Path, **members: Any) -> None:
        self.changes = Changes(
            str(root), ACCOUNT, str(base), **{"patch_bytes": 1 << 22, "most": 1000, **members}
        )
        self.changes.seconds = LONG_WAIT
        self.start = self.changes.begin()

    def end(self) -> tuple[Snapshot, Difference]:
        """Compare now."""
        try:
            return self.changes.end()
        finally:
            self.changes.close()

    def kinds(self) -> dict[str, str]:
        """Which path changed how."""
        return {change.path: change.kind for change in self.end()[1].changes}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit."""
    root = tmp_path / "repo"
    root.mkdir()
    git(root, "init", "-q")
    (root / "kept").write_text("kept\n")
    (root / "long").write_text("".join(f"line {n}\n" for n in range(50)))
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    return root


def everything_below(folder: Path) -> dict[str, tuple[int, str]]:
    """Times and content of all files, for what must stay as it is."""
    return {
        str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_users_git_directory_stays_as_it_is_to_the_last_time(
    repository: Path, tmp_path: Path
) -> None:
    (repository / "dirt").write_text("dirt\n")
    git(repository, "add", "dirt")
    (repository / "dirt").write_text("kept\n")
    before = everything_below(repository)
    compared = Compared(tmp_path, repository)
    assert compared.end()[1].changes == []
    assert everything_below(repository) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["repo"]


def test_dirt_from_before_the_run_is_no_change_and_commits_during_it_are(
    repository: Path, tmp_path: Path
) -> None:
    (repository / "dirt").write_text("dirt\n")
    compared = Compared(tmp_path, repository)
    (repository / "kept").write_text("changed\n")
    git(repository, "commit", "-qam", "second")
    assert compared.kinds() == {"kept": "modified"}


def test_a_rebase_during_the_run_leaves_what_differs_in_the_end(
    repository: Path, tmp_path: Path
) -> None:
    git(repository, "branch", "upstream")
    (repository / "mine").write_text("mine\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "mine")
    compared = Compared(tmp_path, repository)
    git(repository, "checkout", "-q", "-b", "work")
    git(repository, "checkout", "-q", "upstream")
    (repository / "theirs").write_text("theirs\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "theirs")
    git(repository, "checkout", "-q", "work")
    git(repository, "rebase", "-q", "upstream")
    git(repository, "commit", "-q", "--amend", "-m", "mine, in other words")
    assert compared.kinds() == {"theirs": "added"}


@pytest.mark.slow
def test_one_change_among_twenty_thousand_files_is_found(repository: Path, tmp_path: Path) -> None:
    for folder in range(200):
        (repository / f"{folder}").mkdir()
        for number in range(100):
            (repository / f"{folder}" / f"{number}").write_text(f"{folder}/{number}\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "many")
    compared = Compared(tmp_path, repository, most=20_000)
    (repository / "77" / "7").write_text("changed\n")
    (repository / "78" / "8").unlink()
    assert compared.kinds() == {"77/7": "modified", "78/8": "deleted"}


def test_a_change_of_dirt_is_shown_against_the_dirt(repository: Path, tmp_path: Path) -> None:
    (repository / "dirt").write_text("one\n")
    compared = Compared(tmp_path, repository)
    (repository / "dirt").write_text("one\ntwo\n")
    (change,) = compared.end()[1].changes
    assert (change.added_lines, change.removed_lines) == (1, 0)
    assert change.patch is not None
    assert change.patch.endswith(b"@@ -1 +1,2 @@\n one\n+two\n")


def test_a_rename_with_an_edit_names_where_it_came_from(repository: Path, tmp_path: Path) -> None:
    compared = Compared(tmp_path, repository)
    (repository / "long").rename(repository / "moved")
    with (repository / "moved").open("a") as file:
        file.write("more\n")
    (change,) = compared.end()[1].changes
    assert (change.kind, change.old_path, change.added_lines) == ("renamed", "long", 1)


def test_modes_links_and_binaries_are_told_apart(repository: Path, tmp_path: Path) -> None:
    compared = Compared(tmp_path, repository)
    (repository / "kept").chmod(0o755)
    (repository / "long").unlink()
    (repository / "long").symlink_to("kept")
    (repository / "raw").write_bytes(b"\0\1\2")
    found = {change.path: change for change in compared.end()[1].changes}
    assert found["kept"].kind == "metadataChanged"
    assert found["long"].kind == "modified"
    assert found["long"].after is not None
    assert found["long"].after.shown_mode == "120000"
    assert found["long"].patch is not None
    assert found["raw"].binary
    assert found["raw"].patch == b""


def test_a_mode_that_git_does_not_keep_is_a_change_too(repository: Path, tmp_path: Path) -> None:
    compared = Compared(tmp_path, repository)
    (repository / "kept").chmod(0o600)
    assert compared.kinds() == {"kept": "metadataChanged"}


def test_what_the_repository_names_is_not_executed(repository: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\ncat\n")
    trap.chmod(0o755)
    for name in (
        *("core.fsmonitor", "core.sshCommand", "diff.external", "core.pager"),
        *("filter.x.clean", "filter.x.smudge", "filter.x.process", "diff.x.textconv"),
        *("diff.x.command", "core.editor", "gpg.program"),
    ):
        git(repository, "config", name, str(trap))
    (repository / ".gitattributes").write_text("* filter=x diff=x\n")
    compared = Compared(tmp_path, repository)
    (repository / "kept").write_text("changed\n")
    assert compared.kinds() == {"kept": "modified"}
    assert not (tmp_path / "sprung").exists()


def test_an_unborn_head_and_a_nested_repository_are_no_obstacle(tmp_path: Path) -> None:
    root = tmp_path / "new"
    nested = root / "nested"
    nested.mkdir(parents=True)
    git(root, "init", "-q")
    git(nested, "init", "-q")
    git(nested, "commit", "-qm", "first", "--allow-empty")
    compared = Compared(tmp_path, root)
    (root / "file").write_text("x\n")
    git(nested, "commit", "-qm", "second", "--allow-empty")
    assert compared.kinds() == {"file": "added", "nested": "modified"}


def test_what_is_ignored_is_left_out_and_new_rules_change_nothing(
    repository: Path, tmp_path: Path
) -> None:
    (repository / ".gitignore").write_text("out/\n")
    (repository / "out").mkdir()
    (repository / "out/a").write_text("a")
    (repository / "seen").write_text("s")
    compared = Compared(tmp_path, repository)
    (repository / "out/b").write_text("b")
    (repository / ".gitignore").write_text("seen\n")
    assert compared.kinds() == {".gitignore": "modified"}


def test_very_large_files_count_by_their_size(repository: Path, tmp_path: Path) -> None:
    compared = Compared(tmp_path, repository)
    with (repository / "huge").open("wb") as file:
        file.truncate(33 * 1024 * 1024)
    (change,) = compared.end()[1].changes
    assert (change.path, change.kind, change.patch) == ("huge", "added", None)
    assert change.after is not None
    assert change.after.hash is None


def test_a_repository_that_the_run_removed_still_has_its_changes(
    repository: Path, tmp_path: Path
) -> None:
    compared = Compared(tmp_path, repository)
    (repository / ".git").rename(tmp_path / "elsewhere")
    (repository / "kept").unlink()
    assert compared.kinds() == {"kept": "deleted"}


def test_patches_and_entries_have_limits_and_say_so(repository: Path, tmp_path: Path) -> None:
    compared = Compared(tmp_path, repository, patch_bytes=1000, most=3)
    for name in ("a", "b", "c", "d"):
        (repository / name).write_text(name * 300 + "\n")
    _, difference = compared.end()
    assert [change.path for change in difference.changes] == ["a", "b", "c"]
    assert [change.patch is None for change in difference.changes] == [False, False, True]
    assert difference.truncated
    assert difference.counts == {"added": 4}


def test_a_folder_that_became_a_link_to_elsewhere_is_not_followed(
    repository: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "not-of-this-run").write_text("x")
    compared = Compared(tmp_path, repository)
    repository.rename(tmp_path / "aside")
    repository.symlink_to(elsewhere)
    with pytest.raises(ChangesFailed, match="a link to elsewhere"):
        compared.end()


def test_a_folder_that_has_always_been_a_link_is_looked_at(
    repository: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(repository)
    compared = Compared(tmp_path, link)
    (repository / "fresh").write_text("x")
    assert compared.kinds() == {"fresh": "added"}


def test_a_snapshot_that_takes_too_long_fails_and_a_comparison_needs_one(
    repository: Path, tmp_path: Path
) -> None:
    changes = Changes(str(repository), ACCOUNT, str(tmp_path), patch_bytes=1, most=1)
    changes.seconds = 0.0
    with pytest.raises(ChangesFailed, match="not finished within 0 seconds"):
        changes.begin()
    with pytest.raises(ChangesFailed, match="no snapshot before"):
        changes.end()
    changes.close()


def test_without_a_repository_a_manifest_says_what_changed(tmp_path: Path) -> None:
    root = tmp_path / "plain"
    (root / "node_modules").mkdir(parents=True)
    (root / "old").write_text("same")
    (root / "gone").write_text("gone")
    compared = Compared(tmp_path, root)
    assert compared.start.method == "manifest"
    (root / "old").rename(root / "new")
    (root / "gone").unlink()
    (root / "node_modules/x").write_text("x")
    assert compared.kinds() == {"new": "renamed", "gone": "deleted"}


def plain_folder(tmp_path: Path) -> Path:
    """A folder without a repository, which git would not find one around either."""
    root = tmp_path / "plain"
    root.mkdir()
    return root


def changes_by_path(compared: Compared) -> dict[str, Change]:
    return {change.path: change for change in compared.end()[1].changes}


def test_without_a_repository_small_text_files_have_patches(tmp_path: Path) -> None:
    root = plain_folder(tmp_path)
    (root / "notes").write_text("one\ntwo\nthree\n")
    (root / "gone").write_text("was here")
    (root / "raw").write_bytes(b"\0\1\2")
    compared = Compared(tmp_path, root)
    (root / "notes").write_text("one\n2\nthree\n")
    (root / "gone").unlink()
    (root / "raw").write_bytes(b"text now\n")
    (root / "new file").write_text("hello\n")
    (root / "image").write_bytes(b"\x89PNG\0\0")
    found = changes_by_path(compared)
    assert found["notes"].patch == (
        b"diff --git a/notes b/notes\n--- a/notes\n+++ b/notes\n"
        b"@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
    )
    assert (found["notes"].added_lines, found["notes"].removed_lines) == (1, 1)
    assert found["gone"].patch == (
        b"diff --git a/gone b/gone\ndeleted file mode 100644\n--- a/gone\n+++ /dev/null\n"
        b"@@ -1 +0,0 @@\n-was here\n\\ No newline at end of file\n"
    )
    assert found["new file"].patch == (
        b"diff --git a/new file b/new file\nnew file mode 100644\n--- /dev/null\n"
        b"+++ b/new file\t\n@@ -0,0 +1 @@\n+hello\n"
    )
    for name in ("raw", "image"):
        assert (found[name].binary, found[name].patch) == (True, b"")


def test_what_is_kept_without_a_repository_is_bounded_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_versions, "TEXT_BYTES", 100)
    monkeypatch.setattr(text_versions, "KEPT_BYTES", 150)
    root = plain_folder(tmp_path)
    for name, size in (("a", 90), ("b", 90), ("c", 60), ("large", 101)):
        (root / name).write_text(name * size)
    compared = Compared(tmp_path, root)
    kept = sum(path.stat().st_size for path in tmp_path.glob("*/work/texts/*"))
    assert kept == 150
    for name in ("a", "b", "c", "large"):
        (root / name).write_text("changed\n")
    found = changes_by_path(compared)
    assert {name for name, change in found.items() if change.patch} == {"a", "c"}
    assert {name for name, change in found.items() if change.patch is None} == {"b", "large"}
    assert not list(tmp_path.glob("*/work"))


def test_patches_without_a_repository_have_the_limits_of_all_patches(tmp_path: Path) -> None:
    root = plain_folder(tmp_path)
    compared = Compared(tmp_path, root, patch_bytes=1000, most=3)
    for name in "abcd":
        (root / name).write_text(name * 400 + "\n")
    _, difference = compared.end()
    assert [change.patch is None for change in difference.changes] == [False, False, True]
    assert difference.truncated
    assert difference.counts == {"added": 4}


def test_files_of_very_many_differing_lines_are_compared_in_time(tmp_path: Path) -> None:
    root = plain_folder(tmp_path)
    (root / "many").write_text("a\nb\n" * 30_000)
    compared = Compared(tmp_path, root)
    (root / "many").write_text("b\nc\n" * 30_000)
    began = time.process_time()
    change = changes_by_path(compared)["many"]
    assert time.process_time() - began < 60
    assert change.kind == "modified"
    assert (change.added_lines, change.removed_lines) == (60_000, 60_000)


def test_the_record_of_a_run_without_a_repository_has_masked_patches(tmp_path: Path) -> None:
    root = plain_folder(tmp_path)
    (root / "kept").write_text("kept\n")
    watching = Watching(tmp_path, root, files=True)
    coverage = watching.observers.coverage()["files"]
    assert coverage["state"] == "limited"
    assert coverage["reason"].endswith("patches of small text files only")
    watching.observers.before_start()
    (root / "kept").write_text("a-secret-value\n")
    watching.observers.finish()
    (entry,) = watching.events(Kind.FILE_DIFF_ENTRY)
    assert entry.body.endswith(b"-kept\n+**************\n")
    (meta,) = watching.metas(Kind.FILE_DIFF_ENTRY)
    assert (meta["patchTruncated"], meta["addedLines"], meta["removedLines"]) == (False, 1, 1)
    watching.close()


def test_the_record_has_snapshots_and_masked_patches(repository: Path, tmp_path: Path) -> None:
    watching = Watching(tmp_path, repository, files=True)
    assert watching.observers.coverage()["files"]["state"] == "on"
    watching.observers.before_start()
    (repository / "kept").write_text("a-secret-value\n")
    watching.observers.finish()
    snapshots = watching.metas(Kind.FILE_SNAPSHOT_COMPLETED)
    assert [snapshot["when"] for snapshot in snapshots] == ["start", "end"]
    assert all(len(snapshot["tree"]) == 40 for snapshot in snapshots)
    (entry,) = watching.events(Kind.FILE_DIFF_ENTRY)
    assert entry.body.endswith(b"-kept\n+**************\n")
    (meta,) = watching.metas(Kind.FILE_DIFF_ENTRY)
    assert (meta["position"], meta["path"], meta["patchTruncated"]) == (1, "kept", False)
    watching.close()


_NAMES = st.binary(min_size=1, max_size=12).filter(
    lambda name: (
        b"/" not in name and b"\0" not in name and name not in (b".", b"..") and b"git" not in name
    )
)
_FILES = st.dictionaries(_NAMES, st.binary(max_size=40), max_size=5)


@settings(max_examples=25, deadline=None)
@given(before=_FILES, after=_FILES)
def test_changes_are_those_of_a_naive_comparison(
    before: dict[bytes, bytes], after: dict[bytes, bytes]
) -> None:
    with tempfile.TemporaryDirectory() as base:
        root = Path(base) / "repo"
        root.mkdir()
        git(root, "init", "-q")
        place = os.fsencode(root) + b"/"
        for name, content in before.items():
            Path(os.fsdecode(place + name)).write_bytes(content)
        compared = Compared(Path(base), root)
        for name in before:
            Path(os.fsdecode(place + name)).unlink()
        for name, content in after.items():
            Path(os.fsdecode(place + name)).write_bytes(content)
        told = dict(before)
        for change in compared.end()[1].changes:
            path = os.fsencode(change.path)
            if change.old_path is not None:
                del told[os.fsencode(change.old_path)]
            if change.kind == "deleted":
                del told[path]
            else:
                assert change.kind in ("renamed", "added") or before[path] != after[path]
                told[path] = after[path]
        assert told == after


_LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"\n", b"c \n", b"\xff\n"]), max_size=25)
_TEXTS = st.dictionaries(
    _NAMES,
    st.builds(bytes.__add__, _LINES.map(b"".join), st.sampled_from([b"", b"end"])),
    max_size=4,
)


@settings(max_examples=40, deadline=None)
@given(before=_TEXTS, after=_TEXTS)
def test_git_makes_what_came_after_of_what_was_before_with_the_patches(
    before: dict[bytes, bytes], after: dict[bytes, bytes]
) -> None:
    with tempfile.TemporaryDirectory() as base:
        root, copy = Path(base) / "plain", Path(base) / "copy"
        root.mkdir()
        copy.mkdir()
        for place in (root, copy):
            _write(place, before)
        compared = Compared(Path(base), root)
        for name in before:
            Path(os.fsdecode(os.fsencode(root) + b"/" + name)).unlink()
        _write(root, after)
        patches = b""
        for change in compared.end()[1].changes:
            old_path = change.old_path
            if old_path is not None:
                # One that only moved has no text.
                (copy / old_path).rename(copy / change.path)
                continue
            assert change.patch is not None
            patches += change.patch
        if patches:
            command = ["git", "apply", "--unidiff-zero", "--whitespace=nowarn", "-"]
            subprocess.run(command, cwd=copy, input=patches, check=True, capture_output=True)
        assert _read(copy) == _read(root)


def _write(root: Path, files: dict[bytes, bytes]) -> None:
    for name, content in files.items():
        Path(os.fsdecode(os.fsencode(root) + b"/" + name)).write_bytes(content)


def _read(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.iterdir()}
