"""Changes: files, diff, and whose doing they are."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runs.agent.record.frames import Kind
from runs.models import Run
from runs.record.reading import change_list as reading
from tests.conftest import Api
from tests.runs.record_factory import Source, make_run
from workspaces.models import Workspace

pytestmark = pytest.mark.django_db

START = datetime(2026, 1, 1, tzinfo=UTC)


def changes(api: Api, run: Run) -> dict[str, Any]:
    body: dict[str, Any] = api.get(f"/v1/runs/{run.pk}/changes").body
    return body


@pytest.fixture
def run() -> Run:
    return make_run()


@pytest.fixture
def source(run: Run) -> Source:
    source = Source(run)
    source.open()
    source.started()
    return source


def entry(source: Source, position: int, path: Any, body: bytes = b"", **values: Any) -> None:
    told = {
        "position": position,
        "root": "/w",
        "path": path,
        "change": "modified",
        "binary": False,
        "patchTruncated": False,
    }
    source.event(Kind.FILE_DIFF_ENTRY, told | values, body=body)


def test_a_run_that_changed_nothing_has_no_files(api: Api, run: Run) -> None:
    assert changes(api, run) == {
        "files": [],
        "diff": "",
        "truncated": False,
        "exclusive": True,
        "overlappingRunIds": [],
    }


def test_files_and_patches_come_in_order(api: Api, run: Run, source: Source) -> None:
    entry(source, 1, "a b", b"--- a\n+++ b\n", addedLines=1, removedLines=2, sizeBefore=3)
    entry(source, 2, "new", b"patch", change="renamed", oldPath="old", modeAfter="100755")
    entry(source, 3, "image", change="added", binary=True, sizeAfter=2**40)
    source.append()
    body = changes(api, run)
    assert body["diff"] == "--- a\n+++ b\npatch\n"
    assert body["files"] == [
        {
            "path": "a b",
            "change": "modified",
            "binary": False,
            "addedLines": 1,
            "removedLines": 2,
            "sizeBefore": "3",
        },
        {
            "path": "new",
            "oldPath": "old",
            "change": "renamed",
            "binary": False,
            "modeAfter": "100755",
        },
        {"path": "image", "change": "added", "binary": True, "sizeAfter": str(2**40)},
    ]


def test_what_is_not_utf8_is_given_exactly_too(api: Api, run: Run, source: Source) -> None:
    def told(raw: bytes) -> dict[str, str]:
        return {"text": raw.decode(errors="replace"), "base64": base64.b64encode(raw).decode()}

    entry(source, 1, told(b"a\xff"), b"+\xfe\n", oldPath=told(b"\n\xff"))
    source.append()
    body = changes(api, run)
    (file,) = body["files"]
    assert base64.b64decode(file["pathBase64"]) == b"a\xff"
    assert base64.b64decode(file["oldPathBase64"]) == b"\n\xff"
    assert base64.b64decode(body["diffBase64"]) == b"+\xfe\n"
    assert (file["path"], body["diff"]) == ("a\ufffd", "+\ufffd\n")


def test_truncation_is_told_wherever_it_happened(
    api: Api, source: Source, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry(source, 1, "a", b"x" * 100 + b"\n")
    entry(source, 2, "b", b"y" * 100 + b"\n")
    source.append()
    assert changes(api, run)["truncated"] is False
    monkeypatch.setattr(reading, "MAX_DIFF_BYTES", 150)
    body = changes(api, run)
    assert (body["truncated"], body["diff"]) == (True, "x" * 100 + "\n")
    monkeypatch.setattr(reading, "MAX_FILES", 1)
    body = changes(api, run)
    assert ([file["path"] for file in body["files"]], body["truncated"]) == (["a"], True)
    monkeypatch.undo()
    source.event(Kind.FILE_DIFF_AVAILABLE, {"root": "/w", "truncated": True})
    source.append()
    assert changes(api, run)["truncated"] is True


def test_a_patch_that_was_cut_is_marked(api: Api, run: Run, source: Source) -> None:
    entry(source, 1, "a", patchTruncated=True)
    source.append()
    body = changes(api, run)
    assert body["truncated"] is True
    assert body["files"][0]["patchTruncated"] is True


def test_the_baseline_says_what_was_compared(api: Api, run: Run, source: Source) -> None:
    for when, tree in (("start", "a" * 40), ("end", "b" * 40)):
        told = {"root": "/w", "when": when, "method": "git", "tree": tree, "files": 3}
        source.event(Kind.FILE_SNAPSHOT_COMPLETED, told)
    source.append()
    assert changes(api, run)["baseline"] == {
        "root": "/w",
        "method": "git",
        "tree": "a" * 40,
        "endTree": "b" * 40,
        "fileCount": "3",
    }


@pytest.mark.parametrize("change", ["exploded", "", "x" * 60])
def test_a_forged_change_breaks_nothing(api: Api, run: Run, source: Source, change: str) -> None:
    entry(source, 1, "a", change=change)
    source.event(Kind.FILE_SNAPSHOT_COMPLETED, {"when": "start", "files": "x", "root": []})
    source.event(Kind.FILE_DIFF_AVAILABLE, {"truncated": "yes"})
    source.append()
    assert len(changes(api, run)["files"]) == 1


def timed(workspace: Workspace, begin: int | None, end: int | None, **values: Any) -> Run:
    finished = None if end is None else START + timedelta(minutes=end)
    status = Run.Status.RUNNING if end is None else Run.Status.COMPLETED
    started = None if begin is None else START + timedelta(minutes=begin)
    return make_run(
        workspace=workspace, status=status, started_at=started, finished_at=finished, **values
    )


def test_runs_at_the_same_time_are_named(api: Api) -> None:
    workspace = Workspace.objects.create(owner_user_id="usr_test", name="w")
    run = timed(workspace, 10, 20)
    timed(workspace, 0, 9)
    timed(workspace, 21, 30)
    timed(workspace, 21, None)
    timed(workspace, None, 25)
    timed(workspace, 0, None, mode=Run.Mode.BOOT)
    make_run(started_at=START + timedelta(minutes=15))
    assert changes(api, run)["exclusive"] is True
    overlapping = [
        timed(workspace, *times)
        for times in ((0, 10), (20, 30), (12, 15), (0, 30), (10, 20), (0, None), (20, None))
    ]
    body = changes(api, run)
    assert body["exclusive"] is False
    assert body["overlappingRunIds"] == [str(other.pk) for other in overlapping]


def test_a_run_that_goes_on_overlaps_all_that_came_since(api: Api) -> None:
    workspace = Workspace.objects.create(owner_user_id="usr_test", name="w")
    run = timed(workspace, 10, None)
    timed(workspace, 0, 9)
    later = timed(workspace, 100, 101)
    assert changes(api, run)["overlappingRunIds"] == [str(later.pk)]
