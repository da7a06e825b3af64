"""The kinds of values that requests about runs are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from drf_spectacular.utils import extend_schema_field
from pydantic import ValidationError
from rest_framework import serializers

from controlplane.http.pagination import DecimalField
from controlplane.http.serializers import StringField, WholeNumberField
from controlplane.spelling import suggestion
from runs.agent.record.frames import KIND_NAMES, STREAM_NAMES
from workspaces.blueprint.faults import faults_of
from workspaces.blueprint.part import Part
from workspaces.blueprint.running import Env

INT64_MAX = 2**63 - 1
KIND_NUMBERS = {name: number for number, name in KIND_NAMES.items()}
STREAM_NUMBERS = {name: number for number, name in STREAM_NAMES.items()}


class ExactTextField(StringField):
    """A string that is kept character for character, of at most ``max_bytes`` in UTF-8."""

    default_error_messages = {
        "too-long": "At most {limit} bytes of UTF-8 are taken here.",
    }

    def __init__(self, *, max_bytes: int, **kwargs: Any) -> None:
        self.max_bytes = max_bytes
        super().__init__(**{"trim_whitespace": False, "allow_blank": True, **kwargs})

    def to_internal_value(self, data: Any) -> str:
        """Return the text as it is."""
        text = super().to_internal_value(data)
        if len(text.encode()) > self.max_bytes:
            self.fail("too-long", limit=self.max_bytes)
        return text


class TimeLimitField(WholeNumberField):
    """Milliseconds below the operator's ceiling, which the description does not name."""

    default_error_messages = {"above-ceiling": "This installation allows at most {ceiling}."}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(min_value=1, **kwargs)

    def to_internal_value(self, data: Any) -> int:
        """Return the number of milliseconds."""
        number = super().to_internal_value(data)
        if number > settings.RUN_MAX_TIME_LIMIT_MS:
            self.fail("above-ceiling", ceiling=settings.RUN_MAX_TIME_LIMIT_MS)
        return number


class _Environment(Part):
    """Environment variables with the blueprint's limits."""

    env: Env


@extend_schema_field({"type": "object", "additionalProperties": {"type": "string"}})
class EnvironmentField(serializers.Field[Any, Any, Any, Any]):
    """Environment variables, with the limits and reserved names of a blueprint's."""

    def to_internal_value(self, data: Any) -> dict[str, str]:
        """Return the variables; raise ``ValidationError`` naming each that is wrong."""
        try:
            return dict(_Environment.model_validate({"env": data}).env)
        except ValidationError as error:
            detail: dict[str, list[serializers.ErrorDetail]] = {}
            for fault in faults_of(error, model=_Environment, pointer=""):
                name = fault.pointer.removeprefix("/env").removeprefix("/")
                name = name.replace("~1", "/").replace("~0", "~")
                told = serializers.ErrorDetail(fault.detail, code=fault.code)
                detail.setdefault(name or "non_field_errors", []).append(told)
            raise serializers.ValidationError(detail) from error

    def to_representation(self, value: Mapping[str, str]) -> dict[str, str]:
        """Return the variables."""
        return dict(value)


class OffsetField(DecimalField):
    """A number of 64 bits in a query: a sequence, or a place in a stream."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"min_value": 0, "max_value": INT64_MAX, **kwargs})


class NamesField(serializers.CharField):
    """Names out of a table with commas between them; becomes the set of their numbers."""

    def __init__(self, *, numbers: Mapping[str, int], **kwargs: Any) -> None:
        self.numbers = numbers
        super().__init__(max_length=2_000, **kwargs)

    def to_internal_value(self, data: Any) -> frozenset[int]:  # type: ignore[override]
        """Return the numbers; raise ``ValidationError`` naming every unknown name."""
        names = [name.strip() for name in super().to_internal_value(data).split(",")]
        known = list(self.numbers)
        faults = [
            serializers.ErrorDetail(
                f"{name[:80]!r} is not a kind of event.{suggestion(name, known)}"
                if name
                else "A name is expected here.",
                code="not-allowed" if name else "blank",
            )
            for name in dict.fromkeys(names)
            if name not in self.numbers
        ]
        if faults:
            raise serializers.ValidationError(faults)
        return frozenset(self.numbers[name] for name in names)
