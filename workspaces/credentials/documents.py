"""What a workspace is given of its accounts, which are opened for the moment that takes.

What is opened goes to the agent in the container on the standard input of an exec, and to the masks
of what the worker itself records and stores. It is in no row, file, environment or argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from django.conf import settings
from django.db.models.functions import Now

from accounts import delivery
from accounts.delivery import OpenedAccount
from scm.provider.hosts import clone_base
from workspaces.models import Attempt, CredentialReference
from workspaces.services import placeholders_of


def document_of(opened: Sequence[OpenedAccount]) -> bytes:
    """Return the document for a workspace; git shows its token to the configured provider only."""
    host = urlsplit(clone_base(settings.SCM_API_BASE_URL)).netloc
    return delivery.document(opened, github_host=host)


def as_delivered(attempt: Attempt, opened: Sequence[OpenedAccount]) -> list[OpenedAccount]:
    """Return what a workspace gets of its accounts: of bound ones the placeholder.

    What it gets is in the document, and what it must never get is not.
    """
    instead = placeholders_of(attempt)
    return [
        replace(account, secret=instead.get(account.account_id, account.secret))
        for account in opened
    ]


def note_delivered(attempt: Attempt, opened: Sequence[OpenedAccount]) -> None:
    """Write which connection of each account an attempt's workspace is being given."""
    for account in opened:
        CredentialReference.objects.filter(attempt=attempt, account_id=account.account_id).update(
            delivered_generation=account.generation, delivered_at=Now(), withdrawn_at=None
        )
