"""What the rest of the house asks of accounts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth import get_user_model

from controlplane.errors import Fault, NotFound
from controlplane.serializers import camel_case


def needs_setup() -> bool:
    """Tell whether nobody can sign in to the admin yet."""
    return not get_user_model().objects.filter(is_staff=True, is_active=True).exists()


def refuse_unknown_credentials(
    credentials: Mapping[str, Any] | None, *, pointer: str = "/credentials"
) -> None:
    """Raise ``NotFound`` (``credentials-not-found``) for every profile or account that is named.

    No owner has connected an account, so whatever is named does not exist. ``pointer`` is where
    the credentials stand in the request's body.
    """
    faults = [
        Fault(
            "not-found",
            "There is no such profile or account.",
            pointer=f"{pointer}/{camel_case(name)}",
        )
        for name, value in (credentials or {}).items()
        if value is not None
    ]
    if faults:
        raise NotFound(
            "The credentials name profiles or accounts that do not exist.",
            code="credentials-not-found",
            errors=faults,
        )
