"""Giving the accounts of an attempt to its workspace: opened for the moment that takes, no longer.

What is opened goes to the agent in the container on the standard input of an exec, and to the masks
of what the worker itself records and stores. It is in no row, file, environment or argument.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now

from accounts import delivery
from accounts.delivery import DeliveryError, OpenedAccount
from accounts.resolution import Reference
from controlplane.database.retries import DATABASE_RETRY_SECONDS, retry_database
from controlplane.errors import JobError
from controlplane.security.redaction import redact
from scm.provider.hosts import clone_base
from workspaces import services as workspaces
from workspaces.models import Attempt, BuildJob, CredentialReference

log = structlog.get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CredentialDelivery:
    """The accounts of one claimed job, as its worker gives them out.

    Waits for a database that is away until ``cancelled`` is set, as everything about the job does.
    """

    job: BuildJob
    references: Sequence[Reference]
    cancelled: threading.Event

    @classmethod
    def of(cls, job: BuildJob, cancelled: threading.Event) -> CredentialDelivery:
        """Return what the job's attempt is to be given."""
        references = retry_database(
            lambda: workspaces.references_of(job.attempt),
            timeout=DATABASE_RETRY_SECONDS,
            cancelled=cancelled,
        )
        return cls(job, references, cancelled)

    def document(self) -> bytes:
        """Open the accounts for the workspace that is being launched.

        Raises ``DeliveryError``, and ``LeaseLost`` when the job is somebody else's by now.
        """

        def open_ours() -> Sequence[OpenedAccount]:
            with transaction.atomic():
                BuildJob.objects.lock(self.job.fence)
                opened = self._open()
                note_delivered(self.job.attempt, opened)
            return opened

        opened = self._persistently(open_ours)
        content = document_of(opened)
        delivery.stamp_used(opened)
        return content

    def masks(self) -> Sequence[str]:
        """Return every text that must not be recorded; raises ``DeliveryError``."""
        return delivery.masks(self._persistently(self._open))

    def without_secrets(self, error: JobError) -> JobError:
        """Return the failure of a launch as it may be stored.

        The agent masks what it tells; this is for what the engine tells beside it.
        """
        if not self.references:
            return error
        try:
            message = redact(error.message, self.masks())
        except DeliveryError:
            # They do not open any more, so nobody can say what of the output is theirs.
            message = error.message.partition("\n")[0]
        return type(error)(error.code, message)

    def _open(self) -> Sequence[OpenedAccount]:
        owner = self.job.attempt.workspace.owner_user_id
        return delivery.open_accounts(self.references, owner_user_id=owner)

    def _persistently(self, read: Callable[[], T]) -> T:
        return retry_database(read, timeout=DATABASE_RETRY_SECONDS, cancelled=self.cancelled)


def document_of(opened: Sequence[OpenedAccount]) -> bytes:
    """Return the document for a workspace; git shows its token to the configured provider only."""
    host = urlsplit(clone_base(settings.SCM_API_BASE_URL)).netloc
    return delivery.document(opened, github_host=host)


def note_delivered(attempt: Attempt, opened: Sequence[OpenedAccount]) -> None:
    """Write which connection of each account an attempt's workspace is being given."""
    for account in opened:
        CredentialReference.objects.filter(attempt=attempt, account_id=account.account_id).update(
            delivered_generation=account.generation, delivered_at=Now(), withdrawn_at=None
        )
