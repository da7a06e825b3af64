"""What the rest of the house asks of accounts."""

from __future__ import annotations

import base64
import uuid
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from accounts.connected import connect_account, delete_account
from accounts.profiles import ensure_default_profile
from accounts.providers import Provider
from accounts.services import refuse_credentials
from controlplane.errors import NotFound, ServiceUnavailable

pytestmark = pytest.mark.django_db
OWNER = "usr_a"


@pytest.fixture
def account(settings: Settings) -> str:
    """The id of a connected account of the owner, called ``work``."""
    settings.SVC_CREDENTIALS_KEY = base64.b64encode(bytes(32)).decode()
    made = connect_account(
        owner_user_id=OWNER, provider=Provider.GITHUB, name="work", secret="ghp_" + "g" * 36
    )
    return str(made.pk)


@pytest.mark.parametrize("credentials", [None, {}, {"profile_id": None, "claude": None}])
def test_naming_nobody_is_fine(credentials: dict[str, Any] | None) -> None:
    refuse_credentials(credentials, owner_user_id=OWNER)


def test_every_profile_and_account_that_does_not_exist_is_told() -> None:
    with pytest.raises(NotFound) as refusal:
        refuse_credentials({"profile_id": "p", "claude": "c", "codex": None}, owner_user_id=OWNER)
    assert refusal.value.code == "credentials-not-found"
    assert [fault.pointer for fault in refusal.value.errors] == [
        "/credentials/profileId",
        "/credentials/claude",
    ]


def test_the_pointer_is_where_the_credentials_stand() -> None:
    with pytest.raises(NotFound) as refusal:
        refuse_credentials({"github": "g"}, owner_user_id=OWNER, pointer="/spec/credentials")
    assert [fault.pointer for fault in refusal.value.errors] == ["/spec/credentials/github"]
    assert "g" not in refusal.value.detail.split()


def test_what_exists_is_not_called_absent(account: str) -> None:
    profile = str(ensure_default_profile(OWNER).pk)
    for named in ({"github": account}, {"github": "work"}, {"profileId": profile}):
        with pytest.raises(ServiceUnavailable) as refusal:
            refuse_credentials(named, owner_user_id=OWNER)
        assert refusal.value.code == "credentials-unsupported"


def test_what_is_anothers_deleted_or_another_providers_is_absent(account: str) -> None:
    def absent(named: dict[str, str], owner: str = OWNER) -> None:
        with pytest.raises(NotFound):
            refuse_credentials(named, owner_user_id=owner)

    absent({"github": account}, "usr_b")
    absent({"github": "work"}, "usr_b")
    absent({"claude": account})
    absent({"profile_id": str(ensure_default_profile(OWNER).pk)}, "usr_b")
    delete_account(uuid.UUID(account), owner_user_id=OWNER)
    absent({"github": account})
