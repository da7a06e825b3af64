"""What the rest of the house asks of accounts."""

from __future__ import annotations

from typing import Any

import pytest

from accounts.services import refuse_unknown_credentials
from controlplane.errors import NotFound


@pytest.mark.parametrize("credentials", [None, {}, {"profile_id": None, "claude": None}])
def test_naming_nobody_is_fine(credentials: dict[str, Any] | None) -> None:
    refuse_unknown_credentials(credentials)


def test_every_profile_and_account_that_does_not_exist_is_told() -> None:
    with pytest.raises(NotFound) as refusal:
        refuse_unknown_credentials({"profile_id": "p", "claude": "c", "codex": None})
    assert refusal.value.code == "credentials-not-found"
    assert [fault.pointer for fault in refusal.value.errors] == [
        "/credentials/profileId",
        "/credentials/claude",
    ]


def test_the_pointer_is_where_the_credentials_stand() -> None:
    with pytest.raises(NotFound) as refusal:
        refuse_unknown_credentials({"github": "g"}, pointer="/spec/credentials")
    assert [fault.pointer for fault in refusal.value.errors] == ["/spec/credentials/github"]
    assert "g" not in refusal.value.detail.split()
