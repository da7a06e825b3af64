"""Reading one request: owner, query and body, with every fault at once and placed where it is.

The owner comes as ``ownerUserId`` or as its synonym ``userId``, in the body or the query, whatever
the method: to pass over an owner would be to act for any. A route that creates or lists requires
it; on a route by id it is optional unless ``SVC_REQUIRE_OWNER`` is set, and has to match when it is
given. Behind a proxy that names the caller (``controlplane.http.identity``) it is the caller, need
not be said, and can be nobody else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from rest_framework import serializers
from rest_framework.request import Request

from controlplane.errors import Fault, NotFound, ValidationFailed
from controlplane.http.identity import verified_owner
from controlplane.http.problems import faults_of
from controlplane.http.serializers import (
    InputSerializer,
    OwnerField,
    QuerySerializer,
    shown_name,
)
from controlplane.spelling import camel_case, suggestion

OWNER_NAMES = ("ownerUserId", "userId")
MAX_PARAMETER_FAULTS = 100


class NoQuery(QuerySerializer):
    """A query that takes nothing but the owner."""


class OwnerOnly(InputSerializer):
    """A body that takes nothing but the owner: that of all routes which have no other."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a request says, and what is wrong with it."""

    owner: str | None
    query: dict[str, Any]
    body: dict[str, Any]
    faults: list[Fault] = field(default_factory=list)

    @property
    def required_owner(self) -> str:
        """The owner of a request that was read with ``owner_required``."""
        assert self.owner is not None
        return self.owner


def read(
    request: Request,
    *,
    query: type[QuerySerializer] = NoQuery,
    body: type[InputSerializer] | None = OwnerOnly,
    owner_required: bool = False,
    by_id: bool = False,
) -> Reading:
    """Return what ``request`` says; raise ``ValidationFailed`` naming everything that is wrong.

    ``body`` is None where the body is content, which the view reads.

    ``by_id`` is for routes that name one thing of an owner: there the operator decides whether the
    owner has to be said (``SVC_REQUIRE_OWNER``).
    """
    required = owner_required or (by_id and settings.SVC_REQUIRE_OWNER)
    reading = examine(request, query=query, body=body, owner_required=required)
    if reading.faults:
        raise ValidationFailed(reading.faults)
    return reading


def examine(
    request: Request,
    *,
    query: type[QuerySerializer] = NoQuery,
    body: type[InputSerializer] | None = OwnerOnly,
    owner_required: bool = False,
) -> Reading:
    """Return what ``request`` says, with its faults, for a view that looks for more of them.

    Raises ``NotFound`` (``owner-not-found``) when it says another owner than its caller.
    """
    caller = verified_owner(request)
    required = owner_required and caller is None
    owner, faults = _read_owner(request, body, required=required)
    if caller is not None and not faults:
        # Told before anything is looked up: no answer depends on what the other owner has.
        if owner not in (None, caller):
            raise NotFound("You may not act for this owner.", code="owner-not-found")
        owner = caller
    parameters, parameter_faults = _read_query(request, query)
    members, member_faults = _read_body(request, body) if body else ({}, [])
    return Reading(owner, parameters, members, [*faults, *parameter_faults, *member_faults])


def _read_query(
    request: Request, serializer: type[QuerySerializer]
) -> tuple[dict[str, Any], list[Fault]]:
    """Return the query's parameters, and what is unknown, repeated or wrong among them."""
    reader = serializer()
    known = [camel_case(str(name)) for name in reader.fields] + list(OWNER_NAMES)
    faults: list[Fault] = []
    values: dict[str, str] = {}
    for name, given in request.query_params.lists():
        if len(faults) >= MAX_PARAMETER_FAULTS:
            break
        shown = shown_name(name)
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
        elif name in OWNER_NAMES:
            continue  # read with the body's
        elif "\x00" in given[0]:
            faults.append(
                Fault("invalid-character", "The value cannot be stored.", parameter=shown)
            )
        else:
            values[name] = given[0]
    reader = serializer(data=values)
    if not reader.is_valid():
        faults += [_as_parameter(fault) for fault in faults_of(reader.errors)]
        return {}, faults
    return dict(reader.validated_data), faults


def _as_parameter(fault: Fault) -> Fault:
    """Move a fault of a serializer's pointer to the query parameter of that name."""
    name = fault.pointer.lstrip("/").split("/")[0]
    return Fault(fault.code, fault.detail, parameter=name)


def _read_body(
    request: Request, serializer: type[InputSerializer]
) -> tuple[dict[str, Any], list[Fault]]:
    """Return the body's members but the owner's, and what is wrong with them."""
    data = request.data
    if isinstance(data, dict):
        data = {name: value for name, value in data.items() if name not in OWNER_NAMES}
    if data is None:  # DRF would call a null "not given"
        return {}, [Fault("wrong-type", "An object is expected here, not null.")]
    reader = serializer(data=data)
    if not reader.is_valid():
        return {}, faults_of(reader.errors)
    return dict(reader.validated_data), []


def _read_owner(
    request: Request, serializer: type[InputSerializer] | None, *, required: bool
) -> tuple[str | None, list[Fault]]:
    """Return the owner the caller acts for, and what is wrong with how it was given.

    Body and query, and both names, may repeat the same owner; two different ones are a fault.
    """
    owner = OwnerField()
    found: dict[str, str] = {}
    faults: list[Fault] = []
    body = request.data if serializer else None
    places: list[tuple[str, Any, bool]] = [
        (name, body[name], True)
        for name in OWNER_NAMES
        if isinstance(body, dict) and body.get(name) is not None
    ] + [
        (name, request.query_params[name], False)
        for name in OWNER_NAMES
        if name in request.query_params
    ]
    for name, value, from_body in places:
        place = {"pointer": f"/{name}"} if from_body else {"parameter": name}
        try:
            found[f"{name} in the {'body' if from_body else 'query'}"] = owner.run_validation(value)
        except serializers.ValidationError as exc:
            faults += [Fault(f.code, f.detail, **place) for f in faults_of(exc.detail)]
    usual_in_body = serializer not in (None, OwnerOnly)
    place = {"pointer": "/ownerUserId"} if usual_in_body else {"parameter": "ownerUserId"}
    if len(set(found.values())) > 1:
        faults.append(Fault("owner-ambiguous", f"{' and '.join(found)} differ.", **place))
    if required and not found and not faults:
        detail = "ownerUserId (or userId) is required."
        faults.append(Fault("required", detail, **place))
    return (next(iter(found.values())) if found else None), faults
