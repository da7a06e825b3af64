"""Sealing a record that ended: the seal is made, signed with this installation's key, and kept."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db import connection

from runs.models import Run, RunHead, RunLoss
from runs.record import export_format, signatures


def signing_key() -> bytes | None:
    """Return the private key of ``SVC_RECORD_SIGNING_KEY``; None when records are not signed."""
    text: str = settings.SVC_RECORD_SIGNING_KEY
    return signatures.decode_key(text) if text else None


def public_key() -> bytes | None:
    """Return the public key that goes with it; None when records are not signed."""
    private = signing_key()
    return None if private is None else signatures.public_key_of(private)


def seal(run: Run, head: RunHead, sealed_at: datetime | None = None) -> None:
    """Set what ends the record on ``head``, which is locked and complete but for that.

    The loss spans have to be stored: the seal covers them. ``sealed_at`` is when the transaction
    began, by the database's clock; it is asked for where the caller does not know it.
    """
    if sealed_at is None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT now()")
            (sealed_at,) = cursor.fetchone()
    losses = RunLoss.objects.filter(run_number=run.number).order_by("position")
    found = losses.iterator() if head.loss_count else ()
    lines = (export_format.loss_line(loss) for loss in found)
    told = export_format.seal_of(export_format.header_line(run), lines, head, sealed_at, run.pk)
    head.sealed_at, head.seal = sealed_at, told
    private = signing_key()
    if private is not None:
        public = signatures.public_key_of(private)
        head.signature = signatures.sign(told, private=private)
        head.public_key, head.key_id = public, signatures.key_id(public)
