"""Opening accounts for a workspace, and taking back what a tool has renewed."""

from __future__ import annotations

import base64
import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from django.core.checks import run_checks
from django.db import connections
from pytest_django.fixtures import Settings

from accounts import delivery
from accounts.connected import reveal
from accounts.delivery import DeliveryError, OpenedAccount, open_accounts
from accounts.models import ConnectedAccount
from accounts.providers import Provider
from accounts.renewal import Renewal, store_renewed
from accounts.resolution import Reference
from accounts.sealing import SealError
from tests.accounts.connected import KEY, SECRETS, codex, connect, delete, mark_invalid
from tests.conftest import OWNER

pytestmark = pytest.mark.django_db
OTHER_KEY = base64.b64encode(bytes(32)).decode()


@pytest.fixture(autouse=True)
def _key(settings: Settings) -> None:
    settings.SVC_CREDENTIALS_KEY = KEY
    settings.SVC_CREDENTIALS_KEY_PREVIOUS = ""


def reference(account: str, provider: str = "generic") -> Reference:
    return Reference(uuid.UUID(account), Provider(provider))


def failure(*references: Reference, owner: str = OWNER) -> DeliveryError:
    with pytest.raises(DeliveryError) as caught:
        open_accounts(references, owner_user_id=owner)
    assert not any(secret in caught.value.message for secret in SECRETS.values())
    return caught.value


def stored(account: str) -> ConnectedAccount:
    return ConnectedAccount.objects.get(pk=account)


# ---------------------------------------------------------------- opening


def test_accounts_are_opened_in_the_order_they_were_resolved() -> None:
    github, variable = connect("github"), connect("generic", "FIRST")
    opened = open_accounts([reference(variable), reference(github, "github")], owner_user_id=OWNER)
    assert [(one.provider, one.name, one.secret) for one in opened] == [
        ("generic", "FIRST", SECRETS["generic"]),
        ("github", "default", SECRETS["github"]),
    ]


def test_an_opened_account_does_not_show_its_secret_by_accident() -> None:
    (opened,) = open_accounts([reference(connect("generic", "A"))], owner_user_id=OWNER)
    assert SECRETS["generic"] not in f"{opened} {opened!r} {[opened]}"


def test_the_document_is_what_the_agent_expects() -> None:
    account = connect("codex")
    opened = open_accounts([reference(account, "codex")], owner_user_id=OWNER)
    assert json.loads(delivery.document(opened)) == {
        "version": 1,
        "accounts": [
            {"id": account, "provider": "codex", "name": "default", "secret": SECRETS["codex"]}
        ],
    }
    assert json.loads(delivery.document([])) == {"version": 1, "accounts": []}


def test_a_deleted_an_unknown_and_another_owner_s_account_are_gone_alike() -> None:
    account = connect("generic", "A")
    foreign = failure(reference(account), owner="usr_b")
    unknown = failure(reference(str(uuid.uuid4())))
    delete(account)
    gone = failure(reference(account))
    assert {foreign.code, unknown.code, gone.code} == {"connected-account-gone"}
    assert foreign.message == gone.message


def test_an_invalid_account_is_called_by_its_name() -> None:
    account = connect("github", "work")
    mark_invalid(account)
    refused = failure(reference(account, "github"))
    assert refused.code == "connected-account-invalid"
    assert "“work”" in refused.message


def test_an_account_of_another_provider_than_was_resolved_is_not_given() -> None:
    assert failure(reference(connect("github"), "claude")).code == "connected-account-mismatch"


def test_without_a_key_nothing_is_opened_and_nothing_is_asked_for(settings: Settings) -> None:
    account = connect("generic", "A")
    settings.SVC_CREDENTIALS_KEY = ""
    assert failure(reference(account)).code == "credentials-key-unset"
    assert open_accounts([], owner_user_id=OWNER) == []


def test_a_seal_that_another_key_made_does_not_open_until_that_key_is_known(
    settings: Settings,
) -> None:
    account = connect("generic", "A")
    settings.SVC_CREDENTIALS_KEY = OTHER_KEY
    assert failure(reference(account)).code == "connected-account-unopened"
    settings.SVC_CREDENTIALS_KEY_PREVIOUS = KEY
    assert open_accounts([reference(account)], owner_user_id=OWNER)


def test_a_seal_that_was_moved_to_another_row_does_not_open() -> None:
    mine, other = connect("generic", "A"), connect("generic", "B")
    ConnectedAccount.objects.filter(pk=other).update(sealed=stored(mine).sealed)
    assert failure(reference(other)).code == "connected-account-unopened"


def test_what_cannot_be_opened_may_be_left_out() -> None:
    good, bad = connect("generic", "A"), connect("generic", "B")
    mark_invalid(bad)
    left: list[tuple[str, str]] = []
    opened = open_accounts(
        [reference(bad), reference(good)],
        owner_user_id=OWNER,
        leave_out=lambda one, why: left.append((str(one.account_id), why.code)),
    )
    assert [one.name for one in opened] == ["A"]
    assert left == [(bad, "connected-account-invalid")]


def test_more_than_programs_can_be_started_with_is_refused() -> None:
    accounts = [connect("generic", f"V{number}", "x" * 65_536) for number in range(5)]
    assert open_accounts([reference(one) for one in accounts[:4]], owner_user_id=OWNER)
    refused = failure(*(reference(one) for one in accounts))
    assert refused.code == "credentials-too-large"


def test_a_document_that_no_agent_takes_is_refused() -> None:
    opened = [
        OpenedAccount(uuid.uuid4(), Provider.CODEX, "default", 1, "x" * delivery.MAX_DOCUMENT_BYTES)
    ]
    with pytest.raises(DeliveryError) as caught:
        delivery.document(opened)
    assert caught.value.code == "credentials-too-large"


def test_of_a_document_every_token_is_masked_and_what_is_none_is_not() -> None:
    secret = codex(access_token="access-0000", id_token="id-0000")
    opened = [OpenedAccount(uuid.uuid4(), Provider.CODEX, "default", 1, secret)]
    masks = delivery.masks(opened)
    assert {"access-0000", "id-0000", "refresh-0000"} == set(masks)


def test_use_is_stamped() -> None:
    account = connect("generic", "A")
    opened = open_accounts([reference(account)], owner_user_id=OWNER)
    assert stored(account).last_used_at is None
    delivery.stamp_used(opened)
    assert stored(account).last_used_at is not None


# ---------------------------------------------------------------- renewing


def test_a_later_state_of_an_account_is_sealed_in_the_place_of_the_earlier() -> None:
    account = connect("codex", secret=codex("2026-01-01T00:00:00Z"))
    before = stored(account)
    later = codex("2026-01-01T00:00:00.5Z", refresh_token="refresh-1111")
    assert store_renewed(before.pk, later, generation=1) is Renewal.STORED
    after = stored(account)
    assert reveal(after) == later
    assert after.metadata["lastRefresh"] == "2026-01-01T00:00:00.5Z"
    assert after.last_synced_at is not None
    assert (after.generation, after.status) == (before.generation, "active")
    assert b"refresh-1111" not in bytes(after.sealed or b"")
    assert store_renewed(before.pk, later, generation=1) is Renewal.UNCHANGED


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
def test_what_is_not_surely_later_and_of_the_same_account_changes_nothing(found: str) -> None:
    account = connect("codex", secret=codex("2026-01-01T00:00:00Z"))
    before = bytes(stored(account).sealed or b"")
    assert store_renewed(uuid.UUID(account), found, generation=1) is Renewal.REFUSED
    assert bytes(stored(account).sealed or b"") == before
    assert stored(account).last_synced_at is None


def test_an_account_without_a_moment_takes_the_first_one_that_there_is() -> None:
    document = json.loads(codex())
    del document["last_refresh"]
    account = uuid.UUID(connect("codex", secret=json.dumps(document)))
    assert store_renewed(account, codex(), generation=1) is Renewal.STORED


def test_what_was_connected_again_since_is_not_overwritten_by_the_workspace() -> None:
    account = connect("codex", secret=codex("2026-01-01T00:00:00Z"))
    again = codex("2025-06-01T00:00:00Z", refresh_token="of the owner")
    assert connect("codex", secret=again) == account
    later = codex("2026-03-01T00:00:00Z")
    assert store_renewed(uuid.UUID(account), later, generation=1) is Renewal.OUTDATED
    assert reveal(stored(account)) == again
    assert store_renewed(uuid.UUID(account), later, generation=2) is Renewal.STORED


def test_what_was_deleted_or_marked_invalid_does_not_come_back() -> None:
    deleted, invalid = connect("codex"), connect("codex", "other")
    delete(deleted)
    mark_invalid(invalid)
    later = codex("2026-03-01T00:00:00Z")
    for account in (deleted, invalid, str(uuid.uuid4())):
        assert store_renewed(uuid.UUID(account), later, generation=1) is Renewal.OUTDATED
    assert stored(deleted).sealed is None
    assert stored(invalid).status == "invalid"


def test_only_what_renews_itself_is_taken_back() -> None:
    account = uuid.UUID(connect("github"))
    assert store_renewed(account, "ghp_" + "x" * 36, generation=1) is Renewal.OUTDATED


def test_nothing_is_taken_back_while_the_present_secret_does_not_open(settings: Settings) -> None:
    account = uuid.UUID(connect("codex"))
    settings.SVC_CREDENTIALS_KEY = OTHER_KEY
    with pytest.raises(SealError):
        store_renewed(account, codex("2026-03-01T00:00:00Z"), generation=1)


def test_of_many_workspaces_at_once_the_latest_wins(transactional_db: None) -> None:
    account = uuid.UUID(connect("codex", secret=codex("2026-01-01T00:00:00Z")))

    def renew(minute: int) -> None:
        try:
            found = codex(f"2026-01-01T00:{minute:02}:00Z", refresh_token=f"minute {minute}")
            store_renewed(account, found, generation=1)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(renew, [7, 3, 9, 1, 8, 2, 6, 4, 5]))
    assert "minute 9" in reveal(stored(str(account)))


# ---------------------------------------------------------------- the key at start


@pytest.mark.parametrize(
    ("present", "previous", "expected"),
    [
        (KEY, "", []),
        (KEY, OTHER_KEY, []),
        ("", "", ["accounts.W001"]),
        ("", KEY, ["accounts.E001"]),
        (KEY, KEY.rstrip("="), ["accounts.W002"]),
    ],
)
def test_the_key_is_checked_at_start(
    settings: Settings, present: str, previous: str, expected: list[str]
) -> None:
    settings.SVC_CREDENTIALS_KEY = present
    settings.SVC_CREDENTIALS_KEY_PREVIOUS = previous
    found = [check for check in run_checks() if (check.id or "").startswith("accounts.")]
    assert [check.id for check in found] == expected
    assert all(check.hint for check in found)


def test_workspaces_have_to_wait_longer_than_workers_stay_away(settings: Settings) -> None:
    settings.WORKER_CREDENTIALS_INTERVAL_MS = 30_000
    for waits, expected in ((60_000, []), (59_999, ["accounts.W003"])):
        settings.WORKSPACE_CREDENTIALS_TIMEOUT_MS = waits
        found = [check for check in run_checks() if (check.id or "").startswith("accounts.")]
        assert [check.id for check in found] == expected
