"""Deliveries that are garbage, killed half way or met by a hostile user: whole sets or none."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from runs.agent.credentials.document import MAX_BYTES, MAX_SECRET_BYTES
from runs.agent.record.frames import Stream
from runs.agent.session.channel import ToClient
from tests.runs.agent.booted import PYTHON, Workspace, step
from tests.runs.agent.connected import Session
from tests.runs.agent.credentialed import (
    ALL,
    CLAUDE,
    GENERIC,
    GITHUB,
    Credentialed,
    account,
    codex,
    document,
    identity,
)
from tests.runs.agent.recorded import Runs

AS_ROOT = os.geteuid() == 0
SECRET = "a-canary-in-the-wrong-place"


@pytest.fixture
def configured(credentialed: Credentialed) -> Credentialed:
    """A workspace with a place for credentials, that is not booted."""
    credentialed.workspace.write_config(credentials=str(credentialed.place))
    return credentialed


def one(**members: Any) -> bytes:
    """A document with one account, some of whose members are replaced."""
    return document({**account(1, "claude", SECRET), **members})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        SECRET.encode(),
        b"\xff" + SECRET.encode(),
        b"null",
        b"[]",
        b"[" * 100_000,
        json.dumps({"version": 1}).encode(),
        json.dumps({"version": True, "accounts": []}).encode(),
        json.dumps({"version": 1, "accounts": {}}).encode(),
        json.dumps({"version": 1, "accounts": [], SECRET: 1}).encode(),
        json.dumps({"version": 1, "accounts": [SECRET]}).encode(),
        json.dumps({"version": 1, "accounts": [{SECRET: 1}]}).encode(),
        document(*(account(number, "generic", SECRET, f"V{number}") for number in range(300))),
        one(id=SECRET),
        one(id=identity(1).replace("8", "A")),
        one(provider=SECRET),
        one(provider=["claude"]),
        one(name=7),
        one(secret=""),
        one(secret=None),
        one(secret=f"{SECRET}\n"),
        one(secret=f"{SECRET}\0"),
        one(secret=f"{SECRET}\ud800"),
        one(secret="x" * (MAX_SECRET_BYTES + 1)),
        one(host="github.com"),
        one(provider="github", host=f"evil.example/{SECRET}"),
        one(provider="github", secret=f"{SECRET}\npassword=other"),
        one(provider="codex"),
        one(provider="codex", secret=json.dumps([SECRET])),
        one(provider="generic", name=f"NAME={SECRET}"),
        one(provider="generic", name="SVC_RUN_ID"),
        document(account(1, "claude", SECRET), account(1, "github", SECRET)),
        document(account(1, "claude", SECRET), account(2, "claude", SECRET)),
        document(account(1, "generic", SECRET, "N"), account(2, "generic", SECRET, "N")),
        document() + b" " * MAX_BYTES,
    ],
    ids=range(35),
)
def test_what_is_no_document_is_refused_without_repeating_any_of_it(
    configured: Credentialed, content: bytes
) -> None:
    configured.deliver(*ALL)
    before = configured.files()
    ended = configured.call("deliver", stdin=content)
    assert ended.returncode == 2, ended
    assert ended.stderr
    assert SECRET.encode() not in ended.stdout + ended.stderr
    assert configured.files() == before


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"version": 1, "ids": ["x"]}', b'{"version": 1}']
)
def test_a_withdrawal_that_makes_no_sense_removes_nothing(
    configured: Credentialed, content: bytes
) -> None:
    configured.deliver(*ALL)
    before = configured.files()
    assert configured.call("withdraw", stdin=content).returncode == 2
    assert configured.files() == before


def test_a_delivery_killed_at_any_moment_leaves_the_old_set_or_the_new(
    configured: Credentialed,
) -> None:
    old, new = "the-old-value-0123456789", "the-new-value-0123456789"
    delivery = document(
        account(1, "claude", new), account(3, "github", new), account(2, "codex", codex(new))
    )
    configured.deliver(
        account(1, "claude", old), account(3, "github", old), account(2, "codex", codex(old))
    )
    seen = set()
    for call in range(1, 400):
        done = configured.killed_at(call, delivery)
        files = configured.files()
        holds = {word for word in (old, new) if any(word in text for text in files.values())}
        assert len(holds) == 1, files
        assert set(files) == {"accounts.json", "gitconfig", "codex/auth.json", "github/token"}
        assert json.loads(configured.auth.read_text())["tokens"]["access_token"] in holds
        seen |= holds
        if done:
            break
    else:
        pytest.fail("it never came to its end")
    assert seen == {old, new}
    configured.deliver(*ALL)
    assert len([*configured.place.glob("set-*")]) == 1
    assert {path.name for path in configured.place.iterdir() if "set-" not in path.name} == {
        "credentials",
        "values.json",
        "lock",
    }


def test_a_place_that_is_not_the_agents_own_takes_nothing(configured: Credentialed) -> None:
    configured.place.chmod(0o777)
    ended = configured.call("deliver", stdin=document(*ALL))
    assert (ended.returncode, [*configured.place.iterdir()]) == (4, [])
    configured.place.rmdir()
    assert configured.call("deliver", stdin=document(*ALL)).returncode == 4
    configured.place.symlink_to("/tmp")
    assert configured.call("deliver", stdin=document(*ALL)).returncode == 4


@pytest.mark.skipif(not AS_ROOT, reason="only root can tell the users apart")
def test_the_user_cannot_act_as_the_control_plane(configured: Credentialed) -> None:
    configured.deliver(*ALL)
    agent = f"{configured.workspace.archive} credentials"
    config = f"--config {configured.workspace.config_path}"
    for action in ("collect", "deliver", "withdraw"):
        ended = configured.as_user(f"{agent} {action} {config} < /dev/null")
        assert ended.returncode != 0
        assert b"canary" not in ended.stdout + ended.stderr
    for closed in ("credentials/accounts.json", "values.json", "lock"):
        assert configured.as_user(f"cat {configured.place / closed}").returncode != 0
    assert configured.as_user(f"ls {configured.place}").returncode != 0
    assert configured.as_user(f"touch {configured.place}/x").returncode != 0
    assert configured.as_user(f"mv {configured.current}/codex /tmp/").returncode != 0


PLANTS = pytest.mark.parametrize(
    "plant",
    [
        "ln -sfn {0}/accounts.json {0}/codex/auth.json",
        "rm {0}/codex/auth.json && mkfifo {0}/codex/auth.json",
        "rm {0}/codex/auth.json && mkdir -p {0}/codex/auth.json/a/b/c",
        "rm {0}/codex/auth.json",
        "head -c 70000 /dev/zero > {0}/codex/auth.json",
        "printf '\\377' > {0}/codex/auth.json",
        "printf '[]' > {0}/codex/auth.json",
        "printf '{{' > {0}/codex/auth.json",
    ],
    ids=["link", "fifo", "directory", "removed", "large", "bytes", "list", "half"],
)


@PLANTS
def test_recorders_are_not_disturbed_by_what_a_program_puts_there(
    workspace: Workspace, plant: str
) -> None:
    credentialed = Credentialed(workspace)
    runs = Runs(workspace)
    workspace.write_config(credentials=str(credentialed.place))
    credentialed.deliver(*ALL)
    planted = plant.format(credentialed.current)
    in_home = planted.replace(f"{credentialed.current}/codex", "~/.codex")
    steps = "; sleep 0.05; ".join(
        ["echo one", planted, "echo two", f"rm -rf ~/.codex/*; {in_home}", "echo three $GH_TOKEN"]
    )
    shown = runs.run("sh", "-c", steps).stream(Stream.STDOUT)
    assert shown == b"one\ntwo\nthree " + b"*" * len(GITHUB) + b"\n"


@PLANTS
def test_a_file_that_makes_no_sense_is_not_collected_and_yields_to_the_next_delivery(
    configured: Credentialed, plant: str
) -> None:
    configured.deliver(*ALL)
    assert configured.as_user(plant.format(configured.current)).returncode == 0
    assert configured.collect() == []
    configured.withdraw(1)
    configured.deliver(*ALL)
    assert configured.auth.read_text() == codex()
    assert len([*configured.place.glob("set-*")]) == 1


def test_a_link_that_cannot_be_made_is_noted_and_the_boot_goes_on(
    credentialed: Credentialed,
) -> None:
    credentialed.as_user("echo in the way > ~/.codex")
    boot = credentialed.boot(startup=[step("env -0 > environment")])
    (note,) = credentialed.deliver(*ALL)["notes"]
    assert str(credentialed.auth) in note
    assert boot.settle()["phase"] == "ready"
    assert credentialed.environment()["GH_TOKEN"] == GITHUB
    spool = credentialed.workspace.state / "runs" / credentialed.workspace.run_id
    recorded = b"".join(path.read_bytes() for path in spool.glob("*.seg"))
    assert note.encode() in recorded
    assert credentialed.collect() == [{"id": identity(2), "secret": codex()}]


def test_programs_of_a_session_have_the_accounts_and_a_new_one_has_the_new(
    workspace: Workspace,
) -> None:
    credentialed = Credentialed(workspace)
    runs = Runs(workspace)
    workspace.write_config(credentials=str(credentialed.place))
    credentialed.deliver(*ALL)
    show = ("sh", "-c", 'echo "$CLAUDE_CODE_OAUTH_TOKEN $SERVICE_LOGIN"')
    session = Session(runs)
    program = session.command(*show)
    program.until(ToClient.EXIT)
    # Its user sees them; its record does not.
    assert program.output().decode().split() == [CLAUDE, GENERIC]
    record = session.record()
    assert all(CLAUDE.encode() not in event.body for event in record.events)
    assert any(b"*" * len(CLAUDE) in event.body for event in record.events)

    credentialed.deliver(account(1, "claude", "another-value-of-the-account"))
    later = runs.run(*show, env={"SERVICE_LOGIN": "of the run"}).stream(Stream.STDOUT)
    assert later == b"*" * 28 + b" of the run\n"


def test_a_pipe_that_stays_open_does_not_keep_others_waiting(configured: Credentialed) -> None:
    argv = [PYTHON, "-I", str(configured.workspace.archive), "credentials", "deliver"]
    argv += ["--config", str(configured.workspace.config_path)]
    stuck = subprocess.Popen(argv, stdin=subprocess.PIPE)
    try:
        configured.deliver(*ALL)
    finally:
        stuck.kill()
        stuck.communicate()
