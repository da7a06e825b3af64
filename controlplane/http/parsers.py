"""Reading request bodies: strict JSON within limits.

DRF's own parser hands NUL characters and lone surrogates to the database (which refuses them as a
server error), and a body nested 100 000 deep ends in ``RecursionError``. Everything that cannot be
stored or answered is refused here, with a pointer where there is one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import IO, Any, NoReturn

from django.conf import settings
from django.http.request import RawPostDataException
from rest_framework.parsers import BaseParser

from controlplane.errors import BadRequest, Fault, PayloadTooLarge, ValidationFailed


def escape_pointer(token: str) -> str:
    """Escape one reference token of a JSON pointer (RFC 6901 section 3)."""
    return token.replace("~", "~0").replace("/", "~1")


_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")


def _refuse_too_much(text: str) -> None:
    """Refuse what is nested too deep or has too many values, before anything is made of it."""
    structure = _STRING.sub("", text)
    if structure.count(",") >= settings.SVC_MAX_BODY_VALUES:
        raise BadRequest(
            f"The body has more than {settings.SVC_MAX_BODY_VALUES} members and elements.",
            code="body-too-many-values",
        )
    depth = 0
    for bracket in _BRACKET.findall(structure):
        depth += 1 if bracket in "[{" else -1
        if depth > settings.SVC_MAX_BODY_DEPTH:
            raise BadRequest(
                f"The body is nested deeper than {settings.SVC_MAX_BODY_DEPTH} levels.",
                code="body-too-deep",
            )


def _refuse_constant(name: str) -> NoReturn:
    raise BadRequest(f"The body is not JSON: {name} is not a JSON number.", code="malformed-json")


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise BadRequest(f"The number {text[:40]} is out of range.", code="malformed-json")
    return value


def _parse_int(text: str) -> int:
    if len(text) > 40:
        raise BadRequest(f"The number {text[:40]}… is out of range.", code="malformed-json")
    return int(text)


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise BadRequest(
                f"The member {name[:80]!r} appears twice in one object.", code="duplicate-member"
            )
        members[name] = value
    return members


def _unstorable(value: Any, pointer: str, faults: list[Fault]) -> None:
    """Collect every string, also member names, that PostgreSQL or UTF-8 cannot hold."""
    if isinstance(value, str):
        problem = (
            "contains the NUL character"
            if "\x00" in value
            else "contains a lone surrogate"
            if any("\ud800" <= character <= "\udfff" for character in value)
            else ""
        )
        if problem:
            faults.append(Fault("invalid-character", f"The text {problem}.", pointer=pointer))
    elif isinstance(value, dict):
        for name, member in value.items():
            shown = name.encode("utf-8", "replace").decode().replace("\x00", "?")
            place = f"{pointer}/{escape_pointer(shown)}"
            if shown != name:
                faults.append(
                    Fault("invalid-character", "The member's name cannot be stored.", pointer=place)
                )
            _unstorable(member, place, faults)
    elif isinstance(value, list):
        for index, member in enumerate(value):
            _unstorable(member, f"{pointer}/{index}", faults)


def parse_json(body: bytes) -> Any:
    """Parse ``body`` as one JSON value that can be stored and answered.

    Raises ``PayloadTooLarge`` past ``SVC_MAX_BODY_BYTES``; ``BadRequest`` (``malformed-json``,
    ``body-too-deep``, ``body-too-many-values``, ``duplicate-member``) or ``ValidationFailed``
    otherwise.
    """
    if len(body) > settings.SVC_MAX_BODY_BYTES:
        raise PayloadTooLarge(f"The body is larger than {settings.SVC_MAX_BODY_BYTES} bytes.")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise BadRequest(
            f"The body is not UTF-8 (byte {exc.start}).", code="malformed-json"
        ) from exc
    if text.startswith("\ufeff"):
        raise BadRequest("The body begins with a byte order mark.", code="malformed-json")
    _refuse_too_much(text)
    try:
        value = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_parse_float,
            parse_int=_parse_int,
            object_pairs_hook=_unique_members,
        )
    except json.JSONDecodeError as exc:
        raise BadRequest(
            f"The body is not JSON: {exc.msg} at line {exc.lineno}, column {exc.colno}.",
            code="malformed-json",
        ) from exc
    faults: list[Fault] = []
    _unstorable(value, "", faults)
    if faults:
        raise ValidationFailed(faults)
    return value


class StrictJSONParser(BaseParser):
    """The only parser of the API: ``application/json``, within the limits of the settings."""

    media_type = "application/json"

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the body's JSON value; see :func:`parse_json` for what it raises."""
        try:
            # Where files are written a body may be of any size, and this is not one of them.
            body: bytes = stream.read(settings.SVC_MAX_BODY_BYTES + 1)
        except RawPostDataException:  # the body was read before, for the signature of a webhook
            body = stream.body  # type: ignore[attr-defined]
        return parse_json(body)
