"""Opening accounts for a workspace."""

from __future__ import annotations

import base64
import json
import uuid

import pytest
from django.core.checks import run_checks
from pytest_django.fixtures import Settings

from accounts import delivery
from accounts.delivery import DeliveryError, OpenedAccount, open_accounts
from accounts.models import ConnectedAccount
from accounts.providers import Provider
from accounts.resolution import Reference
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
