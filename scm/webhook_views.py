"""The endpoint that the source-hosting provider delivers its webhooks to."""

from __future__ import annotations

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from controlplane.errors import PayloadTooLarge
from controlplane.http.body_limits import body_limit
from controlplane.http.serializers import OutputSerializer
from scm.models import WebhookDelivery
from scm.webhooks import (
    DELIVERY_HEADER,
    EVENT_HEADER,
    SIGNATURE_HEADER,
    read_headers,
    receive_delivery,
    require_secret,
    require_signature,
)

WEBHOOK_DESCRIPTION = """\
Only for the source-hosting provider. The signature is checked before the body is parsed.

Each delivery is applied once, by its id; one that was not applied (`failed`, or `received` while
too many others are in progress) is retried at its next delivery, or within minutes by the build
workers. Unknown events are accepted and `ignored`.

| Status | `code` | When |
|---|---|---|
| 400 | `validation-failed` | a header is missing |
| 400 | `malformed-json` | the body is not a JSON object |
| 401 | `scm-webhook-signature-invalid` | the signature is missing or wrong |
| 413 | `body-too-large` | the body is larger than the provider's own limit |
| 503 | `scm-webhook-secret-unset` | the installation has no `SCM_APP_WEBHOOK_SECRET` |
"""


class DeliverySerializer(OutputSerializer):
    """A delivery, and what came of it."""

    delivery_id = serializers.CharField(help_text="As the provider names it.")
    status = serializers.ChoiceField(choices=WebhookDelivery.Status.choices)


def _header(name: str, description: str) -> OpenApiParameter:
    return OpenApiParameter(
        name, str, OpenApiParameter.HEADER, required=True, description=description
    )


class WebhookViewSet(ViewSet):
    """Deliveries of the provider's webhooks."""

    @extend_schema(
        operation_id="scm.receiveWebhook",
        tags=["Source hosting"],
        summary="Take a delivery of the provider's webhook",
        description=WEBHOOK_DESCRIPTION,
        parameters=[
            _header(DELIVERY_HEADER, "The provider's id of the delivery."),
            _header(EVENT_HEADER, "The event's name."),
            _header(SIGNATURE_HEADER, "`sha256=` and the HMAC-SHA-256 of the raw body, in hex."),
        ],
        request=OpenApiTypes.OBJECT,
        responses={202: DeliverySerializer},
    )
    def create(self, request: Request) -> Response:
        """Take a delivery."""
        secret = require_secret()
        delivery_id, event, signature = read_headers(request.headers)
        body = _read_body(request)
        require_signature(secret, signature, body)
        media_type = request.content_type.partition(";")[0].strip().lower()
        if media_type not in ("", "application/json"):
            raise UnsupportedMediaType(media_type)
        delivery = receive_delivery(delivery_id=delivery_id, event=event, body=body)
        return Response(DeliverySerializer(delivery).data, status=202)


def _read_body(request: Request) -> bytes:
    """Return the raw body. It may be larger than that of any other request."""
    limit = body_limit(request.path_info)
    # Not ``request.body``, which has the limit of all others.
    body: bytes = request._request.read(limit + 1)
    if len(body) > limit:
        raise PayloadTooLarge(f"The body is larger than {limit} bytes.")
    return body
