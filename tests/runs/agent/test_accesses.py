"""What PID 1 records of the calls that reach a workspace's files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from runs.agent.boot.boot_record import BootRecord
from runs.agent.config import parse
from runs.agent.files import writing
from runs.agent.masking.masker import Masker
from runs.agent.process.program import Account
from runs.agent.record.frames import Kind, decode, frames
from tests.runs.agent.booted import RECORD, Workspace
from tests.runs.agent.file_calls import recorded, wire_with


def full_record(workspace: Workspace) -> tuple[BootRecord, dict[str, Any]]:
    """Return a boot's record without room for one more access, and such an access."""
    config = parse(workspace.config(record={**RECORD, "spoolBytes": 65536, "segmentBytes": 16384}))
    account = Account(name="", uid=os.geteuid(), gid=os.getegid(), groups=())
    record = BootRecord(
        config, str(workspace.state), boot_id="boot", account=account, masker=Masker(())
    )
    access = {"action": "mkdir", "path": "/" + "x" * 200, "by": "usr_test"}
    taken = 0
    while record.reported(dict(access)):
        taken += 1
        assert taken < 1000, "the spool is never full"
    return record, access


def test_a_failure_finds_room_in_a_record_that_takes_no_more_accesses(
    workspace: Workspace,
) -> None:
    record, access = full_record(workspace)
    assert not record.reported(dict(access))
    assert record.reported({**access, "failed": "file-exists"})
    folder = workspace.state / "runs" / workspace.run_id
    stored = b"".join(part.read_bytes() for part in sorted(folder.glob("*.seg")))
    last = [decode(content) for content in frames(stored)][-1]
    assert last.kind == Kind.FILE_ACCESSED
    assert json.loads(last.meta) == {**access, "failed": "file-exists"}


def test_a_change_whose_object_goes_away_as_it_begins_is_told_as_failed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    def gone(told: dict[str, Any]) -> None:
        if "failed" not in told:
            folder.rmdir()

    with wire_with() as wire, recorded(gone) as (log, told), pytest.raises(FileNotFoundError):
        writing.remove(wire, log, {}, os.fsencode(folder))
    begun, failed = told
    assert failed == {**begun, "failed": "file-not-found"}
