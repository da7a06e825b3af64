"""Reading one request: body, query and owner, with every fault placed where it is.

The owner comes as ``ownerUserId`` or as its synonym ``userId``, in the body or the query. A route
that creates or lists requires it; on a route by id it is optional and, when given, has to match.
"""

from __future__ import annotations

from typing import Any, TypeVar

from rest_framework import serializers
from rest_framework.request import Request

from controlplane.errors import BadRequest, Fault, ValidationFailed
from controlplane.problems import faults_of
from controlplane.serializers import (
    InputSerializer,
    OwnerField,
    QuerySerializer,
    camel_case,
    suggestion,
)

OWNER_NAMES = ("ownerUserId", "userId")

S = TypeVar("S", bound=serializers.Serializer[Any])


class NoQuery(QuerySerializer):
    """A query that takes nothing but the owner."""


def _as_parameter(fault: Fault) -> Fault:
    """Move a fault of a serializer's pointer to the query parameter of that name."""
    name = fault.pointer.lstrip("/").split("/")[0]
    return Fault(fault.code, fault.detail, parameter=name)


def read_query(request: Request, serializer: type[QuerySerializer]) -> dict[str, Any]:
    """Return the query's parameters validated by ``serializer``.

    Raises ``ValidationFailed`` naming every parameter that is unknown, repeated or wrong.
    """
    known = [camel_case(str(name)) for name in serializer().fields] + list(OWNER_NAMES)
    faults = []
    values: dict[str, str] = {}
    for name, given in request.query_params.lists():
        shown = name[:80].encode("utf-8", "replace").decode()
        if name not in known:
            faults.append(
                Fault(
                    "unknown-parameter",
                    f"This parameter is not known.{suggestion(name, known)}",
                    parameter=shown,
                )
            )
        elif len(given) > 1:
            faults.append(
                Fault("repeated-parameter", "This parameter is given twice.", parameter=shown)
            )
        elif "\x00" in given[0] or any("\ud800" <= c <= "\udfff" for c in given[0]):
            faults.append(
                Fault("invalid-character", "The value cannot be stored.", parameter=shown)
            )
        elif name in serializer().fields:
            values[name] = given[0]
    reader = serializer(data=values)
    if not reader.is_valid():
        faults += [_as_parameter(fault) for fault in faults_of(reader.errors)]
    if faults:
        raise ValidationFailed(faults)
    return dict(reader.validated_data)


def read_body(request: Request, serializer: type[InputSerializer]) -> dict[str, Any]:
    """Return the body validated by ``serializer``; the owner's names are read separately.

    Raises ``ValidationFailed`` with a JSON pointer for every fault.
    """
    reader, faults = body_reader(request, serializer)
    if faults:
        raise ValidationFailed(faults)
    return dict(reader.validated_data)


def body_reader(request: Request, serializer: type[S]) -> tuple[S, list[Fault]]:
    """Return the validated serializer and the faults it found, for a view that adds its own."""
    data = request.data
    if isinstance(data, dict):
        data = {name: value for name, value in data.items() if name not in OWNER_NAMES}
    reader = serializer(data=data)
    reader.is_valid()
    return reader, faults_of(reader.errors)


def read_owner(request: Request, *, required: bool) -> tuple[str | None, list[Fault]]:
    """Return the owner the caller acts for, and what is wrong with how it was given.

    Body and query, and both names, may repeat the same owner; two different ones are a fault.
    """
    field = OwnerField()
    found: dict[str, str] = {}
    faults: list[Fault] = []
    body = request.data if request.method not in {"GET", "HEAD", "DELETE"} else None
    places: list[tuple[str, Any, bool]] = [
        (name, body[name], True)
        for name in OWNER_NAMES
        if isinstance(body, dict) and body.get(name) is not None
    ] + [
        (name, request.query_params[name], False)
        for name in OWNER_NAMES
        if name in request.query_params
    ]
    for name, value, in_body in places:
        place = {"pointer": f"/{name}"} if in_body else {"parameter": name}
        try:
            found[f"{'body' if in_body else 'query'} {name}"] = field.run_validation(value)
        except serializers.ValidationError as exc:
            faults += [Fault(f.code, f.detail, **place) for f in faults_of(exc.detail)]
    if len(set(found.values())) > 1:
        faults.append(
            Fault("owner-ambiguous", f"{' and '.join(found)} differ.", pointer="/ownerUserId")
        )
    if required and not found and not faults:
        fault_place = {"pointer": "/ownerUserId"} if body is not None else {}
        faults.append(
            Fault(
                "required",
                "Say whose this is: ownerUserId (or userId) is required.",
                **(fault_place or {"parameter": "ownerUserId"}),
            )
        )
    return (next(iter(found.values())) if found else None), faults


def require_owner(request: Request) -> str:
    """Return the owner; raise ``ValidationFailed`` when it is absent or wrong."""
    owner, faults = read_owner(request, required=True)
    if faults:
        raise ValidationFailed(faults)
    if owner is None:  # unreachable: required owners leave a fault behind
        raise BadRequest("The owner is missing.")
    return owner


def optional_owner(request: Request) -> str | None:
    """Return the owner when one is given; raise ``ValidationFailed`` when it is wrong."""
    owner, faults = read_owner(request, required=False)
    if faults:
        raise ValidationFailed(faults)
    return owner
