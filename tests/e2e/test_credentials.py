"""Connected accounts in a real workspace: how programs get them, and how they get away again."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from django.test import override_settings

from accounts.connected import reveal
from accounts.models import ConnectedAccount
from tests.accounts.connected import (
    KEY,
    SECRETS,
    approve,
    codex,
    connect,
    delete,
    mark_invalid,
    renewals,
    renewed_secrets,
)
from tests.stack.run_worker_process import RunWorkerProcess
from tests.stack.runs import Place
from tests.stack.service import Stack
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT
from workspaces.models import CredentialReference

pytestmark = [pytest.mark.docker, pytest.mark.slow]

LOOK = """\
for name in STAGING_TOKEN CLAUDE_CODE_OAUTH_TOKEN GH_TOKEN GITHUB_TOKEN; do
  printf '%s %s\\n' "$name" "$(printf %s "${!name}" | sha256sum | cut -c1-64)" >> ~/seen
done
"""
SPEC = {
    "lifecycle": {
        "setup": [{"id": "look", "run": LOOK}],
        "startup": {"steps": [{"id": "look again", "run": LOOK}]},
    },
    "runtime": {"persistence": "persistent"},
}
VARIABLES = {
    "STAGING_TOKEN": SECRETS["generic"],
    "CLAUDE_CODE_OAUTH_TOKEN": SECRETS["claude"],
    "GH_TOKEN": SECRETS["github"],
    "GITHUB_TOKEN": SECRETS["github"],
}
ALL = {"claude": "default", "codex": "default", "github": "default", "generic": ["STAGING_TOKEN"]}


@pytest.fixture(scope="module", autouse=True)
def _configured() -> Iterator[None]:
    """A key that API and worker share, and a worker that looks after accounts all the time."""
    changes = {"SVC_CREDENTIALS_KEY": KEY, "WORKER_CREDENTIALS_INTERVAL_MS": "500"}
    with mock.patch.dict(os.environ, changes), override_settings(SVC_CREDENTIALS_KEY=KEY):
        yield


@pytest.fixture(scope="module")
def stack(_configured: None, stack: Stack) -> Stack:
    """The service, started with the key."""
    return stack


@pytest.fixture
def accounts() -> dict[str, str]:
    """One account of each provider, connected anew."""
    names = {"generic": "STAGING_TOKEN"}
    return {provider: connect(provider, names.get(provider, "default")) for provider in SECRETS}


@pytest.fixture
def place(
    stack: Stack, accounts: dict[str, str], run_queue: str, tmp_path: Path
) -> Iterator[Place]:
    """A ready workspace that was given all of them, and a worker for its runs."""
    with override_settings(WORKSPACE_RUN_QUEUE=run_queue):
        started = stack.ready(SPEC, credentials=ALL)
        worker = RunWorkerProcess(tmp_path / "run-worker.log", RUN_STOP_GRACE_MS="1000")
        try:
            yield Place(stack, started, worker)
        finally:
            worker.stop()
            stack.container(started).remove(force=True)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


EXPECTED = [f"{name} {digest(secret)}" for name, secret in VARIABLES.items()]


def steps_saw(place: Place) -> list[str]:
    """What the lifecycle steps have written down, whether the container runs or not."""
    chunks, _ = place.stack.container(place.started).get_archive("/home/workspace/seen")
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        content = archive.extractfile("seen")
        return content.read().decode().splitlines() if content else []


def stored(account: str) -> ConnectedAccount:
    return ConnectedAccount.objects.get(pk=account)


def printed(place: Place, script: str) -> str:
    """Run a script as a one-shot run; return what it printed."""
    run = place.shell(script)
    place.completed(run)
    return place.output(run).decode().strip()


def seen(place: Place, name: str) -> str:
    """The digest of a variable as a one-shot run sees it; of nothing when it is not set."""
    return printed(place, f'printf %s "${name}" | sha256sum | cut -c1-64')


def test_every_program_is_given_the_accounts_and_no_record_shows_them(place: Place) -> None:
    stack, started = place.stack, place.started
    assert steps_saw(place) == EXPECTED * 2
    for name, secret in VARIABLES.items():
        assert seen(place, name) == digest(secret)

    file = "$HOME/.codex/auth.json"
    assert printed(place, f"sha256sum < {file} | cut -c1-64") == digest(SECRETS["codex"])
    assert printed(place, f"stat -L -c '%a %U' {file}; stat -L -f -c %T {file}").split() == [
        "600", "workspace", "tmpfs",
    ]  # fmt: skip

    asked = "printf 'protocol=https\\nhost=github.com\\n\\n' | git credential fill"
    found = f"{asked} | sed -n s/^password=//p | tr -d '\\n' | sha256sum | cut -c1-64"
    assert printed(place, found) == digest(SECRETS["github"])
    others = asked.replace("github.com", "example.org")
    refused = place.shell(f"GIT_TERMINAL_PROMPT=0 {others}")
    assert place.ended(refused)["exitCode"] != 0

    shown = printed(place, f"env; cat {file}; {asked}")
    inspected = json.dumps(stack.container(started).attrs)
    for secret in [*VARIABLES.values(), "refresh-0000"]:
        assert secret not in shown
        assert secret not in inspected
    rows = CredentialReference.objects.filter(attempt_id=started.answer["attemptId"])
    assert {bool(row.account.last_used_at and row.delivered_at) for row in rows} == {True}


def test_what_codex_renews_is_sealed_until_its_owner_approves_it(
    place: Place, accounts: dict[str, str]
) -> None:
    account = accounts["codex"]
    later = codex("2026-01-01T00:00:01Z", refresh_token="refresh-renewed-in-the-workspace")
    before = stored(account)
    # As Codex does it: truncated and written anew.
    script = f"printf %s '{later}' > ~/.codex/auth.json"
    place.inside(script)
    eventually(lambda: renewed_secrets(account) == [later], what="the renewed file is read")
    assert reveal(stored(account)) == reveal(before)
    (waiting,) = renewals(account)
    assert waiting["workspaceId"] == place.started.answer["workspaceId"]
    approve(account, waiting["renewalId"])
    after = stored(account)
    assert reveal(after) == later
    assert b"refresh-renewed" not in bytes(after.sealed or b"")
    # What is no later state of it changes nothing.
    place.inside(f"printf %s '{codex('2025-01-01T00:00:00Z')}' > ~/.codex/auth.json")
    marked = after.last_synced_at
    connect("generic", "ANOTHER")
    assert seen(place, "STAGING_TOKEN") == digest(SECRETS["generic"])
    assert stored(account).last_synced_at == marked
    assert reveal(stored(account)) == later
    assert renewals(account) == []


def test_a_workspace_that_its_engine_starts_again_is_given_its_accounts_again(place: Place) -> None:
    container = place.stack.container(place.started)
    container.restart(timeout=int(LONG_WAIT))
    eventually(
        lambda: steps_saw(place) == EXPECTED * 3, what="the startup step has seen them again"
    )
    assert seen(place, "STAGING_TOKEN") == digest(SECRETS["generic"])


def test_what_is_deleted_or_marked_invalid_goes_from_the_running_workspace(
    place: Place, accounts: dict[str, str]
) -> None:
    delete(accounts["generic"])
    mark_invalid(accounts["codex"])
    rows = CredentialReference.objects.filter(attempt_id=place.started.answer["attemptId"])
    eventually(
        lambda: rows.filter(withdrawn_at__isnull=False).count() == 2, what="both are withdrawn"
    )
    assert seen(place, "STAGING_TOKEN") == digest("")
    assert seen(place, "CLAUDE_CODE_OAUTH_TOKEN") == digest(SECRETS["claude"])
    assert printed(place, "test -e ~/.codex/auth.json && echo there || echo gone") == "gone"


def test_nothing_of_them_is_left_when_the_workspace_has_stopped(place: Place) -> None:
    container = place.stack.container(place.started)
    container.stop(timeout=int(LONG_WAIT))
    left = b"".join(container.export())
    for secret in [*VARIABLES.values(), "refresh-0000"]:
        assert secret.encode() not in left


def test_an_account_that_cannot_be_opened_fails_the_sandbox_by_name(stack: Stack) -> None:
    account = connect("generic", "MOVED")
    other = connect("generic", "OTHER")
    ConnectedAccount.objects.filter(pk=account).update(sealed=stored(other).sealed)
    failed = stack.failed({}, credentials={"generic": [account]})
    error: Any = failed.body["error"]
    assert error["code"] == "connected-account-unopened"
    assert "MOVED" in error["message"]
    assert stack.engine.containers.list(all=True, filters={"name": failed.answer["runId"]}) == []
