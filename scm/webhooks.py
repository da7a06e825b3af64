"""Deliveries of the provider's webhooks: is it the provider, was it here before, what came of it.

A delivery is stored before it is acted upon. One that a crash, a busy installation or a provider
in trouble left undone is taken up by its next delivery, by an operator, or by the upkeep of the
build workers (:func:`keep_deliveries`). Acting twice does no harm (:mod:`scm.events`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import structlog
from django.conf import settings
from django.db import DatabaseError, InterfaceError
from django.db.models import Q
from django.db.models.functions import Now

from controlplane.database.locks import try_advisory_lock
from controlplane.errors import (
    BadRequest,
    Fault,
    ServiceUnavailable,
    Unauthorized,
    ValidationFailed,
)
from scm.events import EventDeferredError, apply_event, essence, installation_id
from scm.models import WebhookDelivery
from scm.provider import ProviderError

log = structlog.get_logger(__name__)

DELIVERY_HEADER = "x-github-delivery"
EVENT_HEADER = "x-github-event"
SIGNATURE_HEADER = "x-hub-signature-256"

TAKE_UP_AFTER = timedelta(minutes=1)
RETRY_AFTER = timedelta(minutes=5)
RETRY_FOR = timedelta(days=1)
TAKEN_UP_AT_ONCE = 20
"""Each of them may ask the provider for many pages."""
PRUNED_AT_ONCE = 5_000
APPLIED_AT_ONCE = 2
"""Deliveries that one API process acts upon as they come; a provider that is slow must not take all
of its threads. The others wait for the upkeep."""

_applying = threading.BoundedSemaphore(APPLIED_AT_ONCE)
_OPEN = (WebhookDelivery.Status.RECEIVED, WebhookDelivery.Status.FAILED)
_SIGNATURE = re.compile(r"sha256=[0-9a-fA-F]{64}")
_DELIVERY_ID = re.compile(r"[A-Za-z0-9._:-]{1,100}")
_EVENT = re.compile(r"[a-z0-9_]{1,100}")


def require_secret() -> bytes:
    """Return the secret that deliveries are signed with; ``ServiceUnavailable`` without one."""
    if not settings.SCM_APP_WEBHOOK_SECRET:
        raise ServiceUnavailable(
            "This installation has no SCM_APP_WEBHOOK_SECRET, so it cannot verify deliveries.",
            code="scm-webhook-secret-unset",
        )
    return str(settings.SCM_APP_WEBHOOK_SECRET).encode()


def read_headers(headers: Mapping[str, str]) -> tuple[str, str, str]:
    """Return delivery id, event and signature.

    Raises ``ValidationFailed`` for an id or an event that is missing or malformed, and
    ``Unauthorized`` for a signature that cannot be one, before the body is looked at.
    """
    faults = []
    for name, shape in ((DELIVERY_HEADER, _DELIVERY_ID), (EVENT_HEADER, _EVENT)):
        value = headers.get(name, "")
        if not value:
            faults.append(Fault("required", "This header is required.", header=name))
        elif not shape.fullmatch(value):
            faults.append(Fault("invalid", "This is not a valid value.", header=name))
    if faults:
        raise ValidationFailed(faults)
    signature = headers.get(SIGNATURE_HEADER, "")
    if not _SIGNATURE.fullmatch(signature):
        raise _not_the_provider()
    return headers[DELIVERY_HEADER], headers[EVENT_HEADER], signature.lower()


def require_signature(secret: bytes, signature: str, body: bytes) -> None:
    """Raise ``Unauthorized`` unless ``signature`` is that of the raw body; in constant time."""
    expected = f"sha256={hmac.new(secret, body, hashlib.sha256).hexdigest()}"
    if not hmac.compare_digest(expected.encode(), signature.encode()):
        raise _not_the_provider()


def _not_the_provider() -> Unauthorized:
    return Unauthorized(
        "The body is not signed with this installation's webhook secret.",
        code="scm-webhook-signature-invalid",
        errors=[
            Fault(
                "signature-invalid",
                "This must be sha256= and the HMAC-SHA-256 of the raw body, in hex.",
                header=SIGNATURE_HEADER,
            )
        ],
    )


def receive_delivery(*, delivery_id: str, event: str, body: bytes) -> WebhookDelivery:
    """Store a delivery whose signature is right, act upon it, and return what came of it.

    One that was stored before is acted upon again only while nothing came of it. Raises
    ``BadRequest`` for a body that is not a JSON object.
    """
    kept = essence(event, _read_payload(body))
    WebhookDelivery.objects.bulk_create(
        [
            WebhookDelivery(
                delivery_id=delivery_id,
                event=event,
                action=kept.get("action", "")[:100],
                external_installation_id=installation_id(kept),
                payload=kept,
            )
        ],
        ignore_conflicts=True,
    )
    delivery = WebhookDelivery.objects.get(delivery_id=delivery_id)
    if not _applying.acquire(blocking=False):
        return delivery
    try:
        return _act(delivery.pk, only_open=True)
    finally:
        _applying.release()


def _read_payload(body: bytes) -> Mapping[str, Any]:
    try:
        payload = json.loads(body.decode())
    except (ValueError, RecursionError):
        payload = None
    if not isinstance(payload, dict):
        raise BadRequest("The body is not a JSON object.", code="malformed-json")
    return payload


def apply_delivery(delivery_id: UUID) -> WebhookDelivery:
    """Act upon a stored delivery, whatever came of it before; its status says what came of it now.

    The provider is asked even if it was asked since the delivery came. Raises nothing but errors of
    the database. While somebody else is at it, it stays as it is.
    """
    return _act(delivery_id, only_open=False)


def _act(pk: UUID, *, only_open: bool) -> WebhookDelivery:
    with try_advisory_lock(f"scm-delivery-{pk}") as held:
        delivery = WebhookDelivery.objects.get(pk=pk)
        if not held or (only_open and delivery.status not in _OPEN):
            return delivery
        with structlog.contextvars.bound_contextvars(
            delivery_id=delivery.delivery_id, scm_event=str(delivery)
        ):
            outcome = _outcome(delivery, ask=not only_open)
        if outcome is None:
            return delivery
        status, error = outcome
        WebhookDelivery.objects.filter(pk=pk).update(status=status, error=error, processed_at=Now())
    return WebhookDelivery.objects.get(pk=pk)


def _outcome(delivery: WebhookDelivery, *, ask: bool) -> tuple[WebhookDelivery.Status, str] | None:
    """Return what comes of a delivery and why; None when it has to wait."""
    try:
        if apply_event(delivery, ask=ask):
            log.info("delivery_processed")
            return WebhookDelivery.Status.PROCESSED, ""
        return WebhookDelivery.Status.IGNORED, ""
    except EventDeferredError:
        log.info("delivery_deferred")
        return None
    except ProviderError as error:
        log.warning("delivery_failed", reason=error.detail, cause=error.cause)
        return WebhookDelivery.Status.FAILED, error.detail
    except (DatabaseError, InterfaceError):
        raise
    except Exception as error:
        log.exception("delivery_failed")
        return WebhookDelivery.Status.FAILED, f"An internal error ({type(error).__name__})."


def keep_deliveries(stopped: threading.Event) -> int:
    """Take up deliveries that were left undone, delete old ones, and return how many were deleted.

    Safe beside other workers that do the same; ends early once ``stopped`` is set.
    """
    failed = Q(
        status=WebhookDelivery.Status.FAILED,
        processed_at__lt=Now() - RETRY_AFTER,
        received_at__gt=Now() - RETRY_FOR,
    )
    received = Q(status=WebhookDelivery.Status.RECEIVED, received_at__lt=Now() - TAKE_UP_AFTER)
    left = WebhookDelivery.objects.filter(failed | received).order_by("received_at")
    for pk in list(left.values_list("pk", flat=True)[:TAKEN_UP_AT_ONCE]):
        if stopped.is_set():
            return 0
        _act(pk, only_open=True)
    oldest = timedelta(milliseconds=settings.SCM_DELIVERY_KEEP_MS)
    old = WebhookDelivery.objects.filter(received_at__lt=Now() - oldest).order_by("received_at")
    deleted, _ = WebhookDelivery.objects.filter(
        pk__in=old.values_list("pk", flat=True)[:PRUNED_AT_ONCE]
    ).delete()
    if deleted:
        log.info("deliveries_pruned", deliveries=deleted)
    return deleted
