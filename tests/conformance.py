"""Holding every answer of the suite against ``openapi.json``."""

from __future__ import annotations

import json
import re
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.validators import validator_for

ALWAYS_DESCRIBED = {400, 409}
"""Problems that an operation has to declare by their status."""
FORMATS = FormatChecker(formats=["uuid"])
"""Those of the description that jsonschema, or a function below, can check."""
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)
ROOT = Path(__file__).resolve().parent.parent


@FORMATS.checks("date-time", raises=ValueError)
def _is_instant(value: object) -> bool:
    """Tell whether a text is an instant of RFC 3339; what is no text has no format."""
    if not isinstance(value, str):
        return True
    return bool(_INSTANT.fullmatch(value)) and datetime.fromisoformat(value).tzinfo is not None


@cache
def document() -> dict[str, Any]:
    """Return the committed description of the API."""
    loaded: dict[str, Any] = json.loads((ROOT / "openapi.json").read_text())
    return loaded


@cache
def _templates() -> list[tuple[re.Pattern[str], str]]:
    """Return the described paths as patterns, those without parameters first."""
    paths = sorted(document()["paths"], key=lambda path: path.count("{"))
    return [(re.compile(re.sub(r"\{[^/]+\}", "[^/]+", path) + r"\Z"), path) for path in paths]


def codes_told(method: str, path: str) -> set[str]:
    """Return the codes in the table of an operation, by which clients know what can go wrong."""
    template = next(found for pattern, found in _templates() if pattern.match(path))
    description = document()["paths"][template][method.lower()]["description"]
    rows = re.findall(r"^\| \d{3} \| (.*?) \|", description, re.MULTILINE)
    return {code for row in rows for code in re.findall(r"`([^`]+)`", row)}


def assert_media_described(method: str, path: str, status: int, content_type: str) -> None:
    """Fail unless the document has an answer of this type that is no JSON; "": of no content."""
    template = next(found for pattern, found in _templates() if pattern.match(path))
    responses = document()["paths"][template][method.lower()]["responses"]
    response = responses.get(str(status), {})
    media = content_type.partition(";")[0]
    if not media and str(status) in responses:
        assert "content" not in response, f"{method} {template} {status} has no content"
        return
    assert media in response.get("content", {}), f"{method} {template} {status} {content_type!r}"


def assert_described(method: str, path: str, status: int, content_type: str, body: Any) -> None:
    """Fail unless the document has this operation and its answer has the described shape."""
    template = next((found for pattern, found in _templates() if pattern.match(path)), None)
    problem = content_type.startswith("application/problem+json")
    if template is None or method.lower() not in document()["paths"][template]:
        assert problem, f"{method} {path} answered {status} and is not described"
        schema: Any = {"$ref": "#/components/schemas/Problem"}
    else:
        responses = document()["paths"][template][method.lower()]["responses"]
        assert str(status) in responses or status not in ALWAYS_DESCRIBED, (
            f"{method} {template} answered {status}, which it does not declare"
        )
        response = responses.get(str(status), responses["default"])
        media = "application/problem+json" if problem else "application/json"
        assert media in response.get("content", {}), (
            f"{method} {template} answered {status} {content_type}, which is not described"
        )
        schema = response["content"][media]["schema"]
    whole = {**schema, "components": document()["components"]}
    validator_class = validator_for(whole, default=Draft202012Validator)
    faults = [
        f"{'/'.join(map(str, error.absolute_path))}: {error.message[:300]}"
        for error in validator_class(whole, format_checker=FORMATS).iter_errors(body)
    ]
    assert not faults, f"{method} {template or path} {status}: {faults}"
