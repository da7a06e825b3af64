"""Keyset lists: ``{items, nextCursor}``, stable while rows are added, never a count.

A cursor is the position after the last item that was shown, in base64url; it means something only
to the list that gave it. Ids are UUIDv7, so an id is a position in time.
"""

from __future__ import annotations

import base64
import binascii
import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from django.db.models import Model, QuerySet
from rest_framework import serializers

from controlplane.database.ids import IdOrder
from controlplane.errors import Fault, ValidationFailed
from controlplane.http.serializers import QuerySerializer

M = TypeVar("M", bound=Model)
ORDER = "order_of_list"


def encode_cursor(*position: object) -> str:
    """Return the opaque text for a position in a list."""
    raw = json.dumps([str(part) for part in position], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def decode_cursor(cursor: str) -> uuid.UUID:
    """Return the position a cursor names; raise ``ValidationFailed`` when it is not one of ours."""
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        (position,) = json.loads(raw)
        return uuid.UUID(position)
    except (ValueError, TypeError, AttributeError, binascii.Error, RecursionError) as exc:
        raise ValidationFailed(
            [
                Fault(
                    "invalid-cursor",
                    "This cursor does not belong to this list.",
                    parameter="cursor",
                )
            ]
        ) from exc


class DecimalField(serializers.IntegerField):
    """A whole number in a query: digits only (``5x``, ``1e2`` and ``+5`` are refused)."""

    def to_internal_value(self, data: Any) -> int:
        """Return the number; the base class checks its range."""
        if not isinstance(data, str) or not data.isascii() or not data.isdecimal():
            self.fail("invalid")
        return super().to_internal_value(data)


def list_query(
    *, default: int, maximum: int, **fields: serializers.Field[Any, Any, Any, Any]
) -> type[QuerySerializer]:
    """Return the query serializer of a list: ``limit``, ``cursor`` and the given filters."""
    members: dict[str, Any] = {
        "limit": DecimalField(
            required=False,
            min_value=1,
            max_value=maximum,
            default=default,
            help_text=f"Maximum number of items (1 to {maximum}, default {default}).",
        ),
        "cursor": serializers.CharField(
            required=False,
            max_length=500,
            help_text="The nextCursor of the previous page.",
        ),
        **fields,
    }
    return type("ListQuery", (QuerySerializer,), members)


def page(
    rows: QuerySet[M],
    *,
    limit: int,
    cursor: str | None,
    key: str = "pk",
    order: IdOrder | None = None,
    present: Callable[[Sequence[M]], list[Any]],
    oldest: M | None = None,
) -> dict[str, Any]:
    """Return one page of ``rows``, newest first, as ``{items, nextCursor}``.

    ``key`` is the UUIDv7 column that orders the list, by ``order`` of it when that is given.
    ``nextCursor`` is absent on the last page. ``oldest`` is an item that is not stored, with a
    lower key than any that is.
    """
    ordered, by = (rows, key) if order is None else (rows.alias(**{ORDER: order}), ORDER)
    if cursor is not None:
        position = decode_cursor(cursor)
        before = position if order is None else position.bytes
        ordered = ordered.filter(**{f"{by}__lt": before})
    found = list(ordered.order_by(f"-{by}")[: limit + 1])
    if oldest is not None and len(found) <= limit:
        found.append(oldest)
    shown = found[:limit]
    answer: dict[str, Any] = {"items": present(shown)}
    if len(found) > limit:
        answer["nextCursor"] = encode_cursor(_value(shown[-1], key))
    return answer


def _value(row: Model, key: str) -> object:
    value: Any = row
    for part in key.split("__"):
        value = getattr(value, part)
    return value
