"""Booting as root, as every container does: what user processes may and may not do.

Without root nobody can become another user, so the conftest leaves this file out.
"""

from __future__ import annotations

import os
import pwd
import stat

from runs.agent.record.frames import Kind
from tests.runs.agent.booted import USER, Workspace, bash_step, step
from tests.runs.agent.recorded import Runs


def test_user_processes_are_the_users_in_every_respect(workspace: Workspace) -> None:
    workspace.boot(
        startup=[step("grep -E '^(Uid|Gid|Groups|CapEff|CapPrm)' /proc/self/status > who")]
    ).settle()
    entry = pwd.getpwnam(USER)
    facts = dict(line.split(":", 1) for line in workspace.read("who").splitlines())
    assert facts["Uid"].split() == [str(entry.pw_uid)] * 4
    assert facts["Gid"].split() == [str(entry.pw_gid)] * 4
    assert set(facts["Groups"].split()) == {
        str(group) for group in os.getgrouplist(USER, entry.pw_gid)
    }
    assert int(facts["CapEff"], 16) == 0
    assert int(facts["CapPrm"], 16) == 0


def test_a_program_may_open_its_output_by_name_and_not_read_it(workspace: Workspace) -> None:
    workspace.boot(
        startup=[
            bash_step("echo named >/dev/stderr; echo too >/dev/stdout; echo done > written"),
            bash_step("chmod 666 /dev/stdout 2>/dev/null; cat </dev/stdout; echo $? > read"),
        ]
    ).settle()
    assert workspace.status()["phase"] == "ready"
    assert workspace.read("written") == "done\n"
    assert workspace.read("read") == "1\n"


def test_the_working_directory_is_made_for_the_user(workspace: Workspace) -> None:
    workspace.boot().settle()
    for folder in (workspace.directory, workspace.directory.parent):
        assert folder.owner() == USER
        assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_a_working_directory_that_is_closed_to_the_user_is_what_the_message_says(
    workspace: Workspace,
) -> None:
    closed = workspace.root / "closed"
    closed.mkdir(mode=0o700)
    record = Runs(workspace).run("no-such-program", cwd=str(closed))
    (started,) = record.metas(Kind.PROCESS_STARTED)
    told = f"cannot enter the working directory {closed}: Permission denied"
    assert started["startFailed"] == told
    assert record.exit == {"code": 126, "signal": None, "reason": "startFailed"}


def test_an_existing_working_directory_keeps_its_owner(workspace: Workspace) -> None:
    workspace.directory.mkdir(parents=True)
    assert workspace.boot().settle()["phase"] == "ready"
    assert workspace.directory.owner() == "root"


def test_a_harness_that_only_root_can_reach_fails_the_boot(workspace: Workspace) -> None:
    private = workspace.root / "private"
    private.mkdir(mode=0o700)
    (private / "a-harness").touch(mode=0o755)
    boot = workspace.boot(
        foreground={"kind": "harness", "command": ["a-harness"]}, env={"PATH": str(private)}
    )
    assert boot.settle()["phase"] == "failed"


def test_an_unknown_user_fails_the_boot_with_its_name(workspace: Workspace) -> None:
    assert workspace.boot(user="somebody-else").wait() == 70
    assert "the user somebody-else does not exist" in workspace.status()["message"]
