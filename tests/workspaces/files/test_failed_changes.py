"""What the record tells of changes that were begun and failed."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from pytest_django.fixtures import Settings

from tests.conftest import OWNER, Api
from tests.runs.agent.booted import RECORD
from tests.workspaces.boxes import HOME, Box
from tests.workspaces.conftest import Launcher

pytestmark = [pytest.mark.docker, pytest.mark.django_db]

DENIED = "file-permission-denied"


def foreign(box: Box) -> None:
    """Make a folder for all, in which a file that all may write to can only root replace."""
    box.run(
        f"cd {HOME} && mkdir sticky && printf old > sticky/file && chmod 666 sticky/file"
        " && chmod 1777 sticky",
        user="root",
    )


def tar_of(**files: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


CHANGES: list[tuple[str, str, Callable[[Box], Any]]] = [
    ("write", DENIED, lambda box: box.put("sticky/file", b"new", expect=403)),
    ("remove", DENIED, lambda box: box.delete("sticky/file", expect=403)),
    ("remove", DENIED, lambda box: box.delete("sticky", recursive="true", expect=403)),
    (
        "move",
        DENIED,
        lambda box: box.post("move", fromPath="sticky/file", toPath="there", expect=403),
    ),
    (
        "move",
        "bad-path",
        lambda box: box.post("move", fromPath="sticky", toPath="sticky/in", expect=400),
    ),
    ("mkdir", "file-exists", lambda box: box.post("mkdir", path="sticky", expect=409)),
    (
        "unpack",
        DENIED,
        lambda box: box.unpack("sticky", tar_of(file=b"new", more=b"more"), expect=403),
    ),
]


@pytest.mark.parametrize(
    ("action", "code", "change"), CHANGES, ids=[f"{each[0]}-{each[1]}" for each in CHANGES]
)
def test_a_change_that_fails_is_told_with_its_code_behind_its_beginning(
    box: Box, action: str, code: str, change: Callable[[Box], Any]
) -> None:
    foreign(box)
    assert change(box).body["code"] == code
    begun, failed = box.accesses()
    assert begun["action"] == action
    assert (begun["by"], "failed" in begun) == (OWNER, False)
    assert failed == {**begun, "failed": code}
    assert box.run("cd sticky && grep . *") == "old\n"


def test_a_change_that_succeeds_or_is_refused_before_it_begins_has_no_failure(box: Box) -> None:
    foreign(box)
    box.put("file", b"new")
    box.put("sticky/file", b"new", headers={"if-none-match": "*"}, expect=412)
    box.post("mkdir", path="folder")
    box.unpack("folder", tar_of(file=b"new"))
    box.post("move", fromPath="folder/file", toPath="there")
    box.delete("folder")
    told = box.accesses()
    assert [each["action"] for each in told] == ["write", "mkdir", "unpack", "move", "remove"]
    assert not [each for each in told if "failed" in each]


def test_of_each_change_that_a_full_record_still_took_its_failure_is_told(
    api: Api, make_launcher: Callable[..., Launcher], settings: Settings
) -> None:
    launcher = make_launcher()
    settings.SVC_INSTANCE_ID = launcher.instance_id
    run_id = uuid4()
    small = {"record": {**RECORD, "spoolBytes": 65536, "segmentBytes": 16384}}
    box = Box.of(api, launcher, run_id, launcher.launch(launcher.request(run_id, boot=small)))
    path, codes = "/".join(["x" * 200] * 10), []
    box.run(f"mkdir -p {path}")
    while "access-not-recorded" not in codes:
        place = f"/v1/workspaces/{box.workspace_id}/files/mkdir"
        answer = api.request("POST", place, {"ownerUserId": OWNER, "path": path})
        codes.append(answer.body["code"])
        assert len(codes) < 1000, "the spool is never full"
    assert set(codes) == {"file-exists", "access-not-recorded"}
    told = [each.get("failed") for each in box.accesses()]
    assert told == [None, "file-exists"] * (len(codes) - 1)
