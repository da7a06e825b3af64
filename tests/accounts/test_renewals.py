"""What a tool in a workspace has renewed is used nowhere else until its owner approves."""

from __future__ import annotations

import base64
import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection, connections
from django.test import Client
from django.urls import reverse
from pytest_django.fixtures import Settings

from accounts.connected import reveal
from accounts.delivery import open_accounts
from accounts.models import ConnectedAccount, RenewedSecret
from accounts.providers import Provider
from accounts.renewal import KEPT_AN_ACCOUNT, Renewal, propose_renewed
from accounts.resolution import Reference
from accounts.sealing import SealError
from tests.accounts.connected import (
    KEY,
    approve,
    codex,
    connect,
    delete,
    mark_invalid,
    renewals,
    renewed_secrets,
)
from tests.conftest import OWNER, Api

pytestmark = pytest.mark.django_db

OTHER_KEY = base64.b64encode(bytes(32)).decode()
FIRST = codex("2026-01-01T00:00:00Z")
LATER = codex("2026-02-01T00:00:00Z", refresh_token="refresh-1111")
WORKSPACE, ANOTHER = uuid.uuid4(), uuid.uuid4()


@pytest.fixture(autouse=True)
def _key(settings: Settings) -> None:
    settings.SVC_CREDENTIALS_KEY = KEY
    settings.SVC_CREDENTIALS_KEY_PREVIOUS = ""


def stored(account: str) -> ConnectedAccount:
    return ConnectedAccount.objects.get(pk=account)


def propose(
    account: str, secret: str, *, workspace_id: uuid.UUID = WORKSPACE, generation: int = 1
) -> Renewal:
    return propose_renewed(
        uuid.UUID(account), secret, workspace_id=workspace_id, generation=generation
    )


def given(account: str, workspace_id: uuid.UUID) -> str:
    """The secret that a workspace is given."""
    reference = Reference(uuid.UUID(account), Provider.CODEX)
    (opened,) = open_accounts([reference], owner_user_id=OWNER, workspace_id=workspace_id)
    return opened.secret


def test_a_later_state_of_an_account_is_sealed_and_changes_nothing_of_the_account() -> None:
    account = connect("codex", secret=FIRST)
    before = stored(account)
    assert propose(account, LATER) is Renewal.PROPOSED
    after = stored(account)
    assert (after.sealed, after.metadata, after.last_synced_at) == (
        before.sealed,
        before.metadata,
        None,
    )
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_jsonb(row)::text FROM accounts_renewedsecret row")
        ((row,),) = cursor.fetchall()
    assert "refresh-1111" not in row
    assert b"refresh-1111".hex() not in row
    assert renewed_secrets(account) == [LATER]
    assert propose(account, LATER) is Renewal.UNCHANGED
    assert propose(account, FIRST) is Renewal.UNCHANGED


def test_it_is_given_to_the_workspace_that_it_came_from_and_to_no_other() -> None:
    account = connect("codex", secret=FIRST)
    propose(account, LATER)
    assert given(account, WORKSPACE) == LATER
    assert given(account, ANOTHER) == FIRST


def test_its_owner_sees_it_without_the_secret_and_approves_it() -> None:
    account = connect("codex", secret=FIRST)
    propose(account, LATER)
    propose(account, codex("2026-01-15T00:00:00Z"), workspace_id=ANOTHER)
    shown = {one["workspaceId"]: one for one in renewals(account)}
    assert set(shown) == {str(WORKSPACE), str(ANOTHER)}
    waiting = shown[str(WORKSPACE)]
    assert waiting["connectedAccountId"] == account
    assert waiting["metadata"]["lastRefresh"] == "2026-02-01T00:00:00Z"
    assert "refresh" not in json.dumps(waiting).replace("lastRefresh", "")

    answer = approve(account, waiting["renewalId"])

    assert answer.body["metadata"]["lastRefresh"] == "2026-02-01T00:00:00Z"
    assert "lastSyncedAt" in answer.body
    assert reveal(stored(account)) == LATER
    assert stored(account).generation == 1
    assert given(account, ANOTHER) == LATER
    assert renewals(account) == []
    assert approve(account, waiting["renewalId"], expect=404).body["code"] == "renewal-not-found"


def test_another_owner_neither_sees_nor_approves_it() -> None:
    account = connect("codex", secret=FIRST)
    propose(account, LATER)
    (waiting,) = renewals(account)
    path = f"/v1/connected-accounts/{account}/renewals"
    answer = Api().get(f"{path}?ownerUserId=usr_b", expect=404)
    assert answer.body["code"] == "connected-account-not-found"
    answer = approve(account, waiting["renewalId"], owner="usr_b", expect=404)
    assert answer.body["code"] == "connected-account-not-found"
    other = connect("codex", "other")
    assert approve(other, waiting["renewalId"], expect=404).body["code"] == "renewal-not-found"
    Api().post(f"{path}/{waiting['renewalId']}/approve", {}, expect=400)
    assert reveal(stored(account)) == FIRST


def test_an_earlier_state_than_the_account_has_is_not_approved() -> None:
    account = connect("codex", secret=FIRST)
    propose(account, LATER)
    (waiting,) = renewals(account)
    kept = RenewedSecret.objects.get()
    approve(account, waiting["renewalId"])
    kept.save(force_insert=True)  # as if it had come a moment later
    assert approve(account, str(kept.pk), expect=409).body["code"] == "renewal-outdated"
    assert given(account, WORKSPACE) == LATER


@pytest.mark.parametrize("act", ["connect", "delete", "mark_invalid"])
def test_who_connects_deletes_or_marks_an_account_does_away_with_it(act: str) -> None:
    account = connect("codex", secret=FIRST)
    propose(account, LATER)
    if act == "connect":
        connect("codex", secret=codex("2026-01-02T00:00:00Z"))
    else:
        {"delete": delete, "mark_invalid": mark_invalid}[act](account)
    assert not RenewedSecret.objects.exists()
    assert propose(account, LATER) is Renewal.OUTDATED


def test_a_workspace_proposes_its_last_state_alone() -> None:
    account = connect("codex", secret=FIRST)
    assert propose(account, codex("2026-01-15T00:00:00Z")) is Renewal.PROPOSED
    assert propose(account, LATER) is Renewal.UPDATED
    assert renewed_secrets(account) == [LATER]


def test_the_latest_of_many_workspaces_are_kept() -> None:
    account = connect("codex", secret=FIRST)
    for minute in range(KEPT_AN_ACCOUNT + 3):
        found = codex(f"2026-01-01T01:{minute:02}:00Z")
        propose(account, found, workspace_id=uuid.uuid4())
    kept = [json.loads(secret)["last_refresh"] for secret in renewed_secrets(account)]
    assert len(kept) == KEPT_AN_ACCOUNT
    assert kept[-1] == "2026-01-01T01:03:00Z"


@pytest.mark.parametrize(
    "found",
    [
        codex("2026-01-01T00:00:00Z", refresh_token="same moment"),
        codex("2025-12-31T23:59:59Z", refresh_token="earlier"),
        codex("2026-01-01T01:00:00+02:00", refresh_token="earlier, elsewhere"),
        codex("soon", refresh_token="no moment"),
        codex("9999-12-31T23:59:59-23:59", refresh_token="no moment there is"),
        codex((datetime.now(UTC) + timedelta(days=1)).isoformat(), refresh_token="not yet"),
        codex("2026-02-01T00:00:00Z", account="another"),
        json.dumps({"OPENAI_API_KEY": "key", "last_refresh": "2026-02-01T00:00:00Z"}),
        json.dumps({"last_refresh": "2026-02-01T00:00:00Z"}),
        "", "{", "[" * 60_000, "x" * 70_000,
    ],
    ids=["same", "earlier", "zone", "text", "overflow", "future", "other", "key", "none",
         "empty", "cut", "deep", "large"],
)  # fmt: skip
def test_what_is_not_surely_later_and_of_the_same_account_is_not_proposed(found: str) -> None:
    account = connect("codex", secret=FIRST)
    assert propose(account, found) is Renewal.REFUSED
    assert renewed_secrets(account) == []


def test_an_account_without_a_moment_takes_the_first_one_that_there_is() -> None:
    document = json.loads(codex())
    del document["last_refresh"]
    account = connect("codex", secret=json.dumps(document))
    assert propose(account, codex()) is Renewal.PROPOSED


def test_what_was_connected_again_since_takes_nothing_of_the_earlier_delivery() -> None:
    account = connect("codex", secret=FIRST)
    again = codex("2025-06-01T00:00:00Z", refresh_token="of the owner")
    assert connect("codex", secret=again) == account
    assert propose(account, LATER, generation=1) is Renewal.OUTDATED
    assert given(account, WORKSPACE) == again
    assert propose(account, LATER, generation=2) is Renewal.PROPOSED


def test_only_what_renews_itself_is_taken() -> None:
    assert propose(connect("github"), "ghp_" + "x" * 36) is Renewal.OUTDATED
    assert propose(str(uuid.uuid4()), LATER) is Renewal.OUTDATED


def test_nothing_is_taken_while_the_present_secret_does_not_open(settings: Settings) -> None:
    account = connect("codex")
    settings.SVC_CREDENTIALS_KEY = OTHER_KEY
    with pytest.raises(SealError):
        propose(account, LATER)


def test_of_one_workspace_that_is_read_twice_at_once_one_state_is_kept(
    transactional_db: None,
) -> None:
    account = connect("codex", secret=FIRST)

    def renew(minute: int) -> None:
        try:
            propose(account, codex(f"2026-01-01T00:{minute:02}:00Z"))
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(renew, [7, 3, 9, 1, 8, 2, 6, 4, 5]))
    assert len(renewed_secrets(account)) == 1


def test_a_rotation_of_the_key_seals_it_anew(settings: Settings) -> None:
    account = connect("codex", secret=FIRST)
    propose(account, LATER)
    settings.SVC_CREDENTIALS_KEY, settings.SVC_CREDENTIALS_KEY_PREVIOUS = OTHER_KEY, KEY
    call_command("rotatecredentials", stdout=StringIO())
    settings.SVC_CREDENTIALS_KEY_PREVIOUS = ""
    assert given(account, WORKSPACE) == LATER


def test_what_no_key_opens_is_given_to_nobody() -> None:
    account = connect("codex", secret=FIRST)
    propose(account, LATER)
    kept = RenewedSecret.objects.get()
    # Moved to another workspace, its seal does not open.
    RenewedSecret.objects.filter(pk=kept.pk).update(workspace_id=ANOTHER)
    assert given(account, ANOTHER) == FIRST
    assert approve(account, str(kept.pk), expect=409).body["code"] == "renewal-outdated"


def test_an_operator_approves_in_the_admin_without_seeing_the_secret() -> None:
    account = connect("codex", secret=FIRST)
    propose(account, LATER)
    kept = RenewedSecret.objects.get()
    staff = Client()
    staff.force_login(get_user_model().objects.create_superuser("ada", password="x"))
    page = staff.get(reverse("admin:accounts_renewedsecret_change", args=[kept.pk]))
    assert page.status_code == 200
    assert "refresh-1111" not in page.content.decode()
    assert "memory at" not in page.content.decode()
    chosen = {"action": "approve", "_selected_action": [str(kept.pk)]}
    answer = staff.post(reverse("admin:accounts_renewedsecret_changelist"), chosen)
    assert answer.status_code == 302
    assert reveal(stored(account)) == LATER
