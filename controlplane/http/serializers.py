"""Serializer bases and fields of the wire: camelCase members, strict objects, safe strings.

Python names are snake_case and members camelCase; the renaming happens per declared field, so the
inside of opaque JSON (a blueprint, an event's data) is never touched.
"""

from __future__ import annotations

import re
import unicodedata
import uuid
from collections.abc import Mapping
from datetime import datetime
from functools import cache, partial
from typing import Any

from django.core.exceptions import ObjectDoesNotExist
from django.utils.functional import cached_property
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.fields import SkipField, empty
from rest_framework.utils.serializer_helpers import BindingDict

from controlplane.database.ids import OWNER_MAX_LENGTH
from controlplane.http.parsers import escape_pointer
from controlplane.spelling import MAX_SHOWN_NAME, camel_case, format_timestamp, suggestion

CANONICAL_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NAME_MAX_LENGTH = 120
MAX_UNKNOWN_MEMBERS = 100
"""No answer names more; a body may hold a hundred thousand."""


def has_control_character(text: str, *, allowed: str = "") -> bool:
    """Tell whether ``text`` holds a control, format, surrogate or separator-line character."""
    refused = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return any(unicodedata.category(c) in refused and c not in allowed for c in text)


JSON_KINDS = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "an array",
}


def json_kind(value: object) -> str:
    """Return what JSON calls the type of ``value``, with its article."""
    return JSON_KINDS.get(type(value), "an object")


def shown_name(name: str) -> str:
    """Return a member's or parameter's name that a client chose: bounded and printable."""
    text = name if name.isprintable() else name.encode("unicode_escape").decode("ascii")
    return text[:MAX_SHOWN_NAME]


class CamelCaseMixin:
    # A comment, because a docstring would become the description of every schema component:
    # declares fields in snake_case and shows them in camelCase.
    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        fields: dict[str, serializers.Field[Any, Any, Any, Any]] = {}
        for name, field in super().get_fields().items():  # type: ignore[misc]
            wire = camel_case(name)
            if wire != name and field.source is None:
                field.source = name
            fields[wire] = field
        return fields

    # The same for every instance: DRF would copy them for each, which takes longer than to fill
    # them, so that an instance could change its own.
    @cached_property
    def fields(self) -> BindingDict:
        kind: Any = type(self)
        return _fields_of(kind)


@cache
def _fields_of(serializer: type[Any]) -> BindingDict:
    owner = serializer()
    fields = BindingDict(owner)
    for name, field in owner.get_fields().items():
        fields[name] = field
    return fields


@cache
def _sources_of(serializer: Any) -> list[tuple[str, str, Any]]:
    """Return name, attribute and field of each member; a nested attribute is left to the field."""
    return [
        (name, field.source_attrs[0] if len(field.source_attrs) == 1 else "", field)
        for name, field in _fields_of(serializer).items()
    ]


class OutputSerializer(CamelCaseMixin, serializers.Serializer[Any]):
    # Shapes an answer; absent members are null where the field allows it, and left out elsewhere.
    def to_representation(self, instance: Any) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        # What DRF asks of each member of each row, asked once: a list is mostly this.
        read = instance.__getitem__ if isinstance(instance, Mapping) else partial(getattr, instance)
        for name, source, field in _sources_of(type(self)):
            try:
                value = read(source)
                if callable(value):
                    value = field.get_attribute(instance)
            except (AttributeError, KeyError, ObjectDoesNotExist):
                try:
                    value = field.get_attribute(instance)
                except SkipField:
                    continue
            if value is not None:
                value = field.to_representation(value)
            if value is not None or field.allow_null:
                shown[name] = value
        return shown


class InputSerializer(CamelCaseMixin, serializers.Serializer[Any]):
    # Reads a body: every member is known, with a suggestion for those that are not.
    body_required = False  # true where one of several members has to be given

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise serializers.ValidationError(
                {"non_field_errors": [f"An object is expected here, not {json_kind(data)}."]},
                code="wrong-type",
            )
        errors: dict[str, Any] = {}
        known = list(self.fields)
        for name in data:
            if name not in self.fields and len(errors) < MAX_UNKNOWN_MEMBERS:
                errors[shown_name(name)] = [
                    serializers.ErrorDetail(
                        f"This member is not known.{suggestion(name, known)}",
                        code="unknown-member",
                    )
                ]
        # null means absent: optional members of the wire are never null in Python.
        given = {name: value for name, value in data.items() if value is not None}
        try:
            values = super().to_internal_value(given)
        except serializers.ValidationError as exc:
            assert isinstance(exc.detail, dict)
            raise serializers.ValidationError({**exc.detail, **errors}) from exc
        if errors:
            raise serializers.ValidationError(errors)
        return values


class OwnedInputSerializer(InputSerializer):
    # Documents the owner's members; ``controlplane.http.requests`` reads them, from body and query.
    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        owner = OwnerField(
            required=False, help_text="The owner. Given here or in the query, also as `userId`."
        )
        synonym = OwnerField(required=False, help_text="A synonym of `ownerUserId`.")
        return {"ownerUserId": owner, "userId": synonym, **super().get_fields()}


class OwnerRequiredInputSerializer(OwnedInputSerializer):
    # For views that read with ``owner_required``: the description calls the owner required.
    pass


class QuerySerializer(CamelCaseMixin, serializers.Serializer[Any]):
    # Reads a query string; use ``read_query`` for the errors to name parameters.
    pass


class StringField(serializers.CharField):
    """A JSON string; ``CharField`` alone would read ``5`` as ``"5"``."""

    default_error_messages = {"wrong-type": "A string is expected here, not {kind}."}

    def to_internal_value(self, data: Any) -> str:
        """Return the text; raise ``ValidationError`` for anything else."""
        if not isinstance(data, str):
            self.fail("wrong-type", kind=json_kind(data))
        return super().to_internal_value(data)


class WholeNumberField(serializers.IntegerField):
    """A JSON number without a fraction; ``IntegerField`` alone would read ``"5"`` as ``5``.

    ``60.0`` is ``60``: JSON has one type of number.
    """

    default_error_messages = {"wrong-type": "A whole number is expected here, not {kind}."}

    def to_internal_value(self, data: Any) -> int:
        """Return the number; the base class checks its range."""
        if isinstance(data, float) and data.is_integer():
            return int(data)
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("wrong-type", kind="a fraction" if type(data) is float else json_kind(data))
        return data


class FlagField(serializers.BooleanField):
    """A JSON boolean; ``BooleanField`` alone would read ``"yes"`` and ``1`` as true."""

    default_error_messages = {"wrong-type": "true or false is expected here, not {kind}."}

    def to_internal_value(self, data: Any) -> bool:
        """Return the boolean; raise ``ValidationError`` for anything else."""
        if not isinstance(data, bool):
            self.fail("wrong-type", kind=json_kind(data))
        return data


class TextField(StringField):
    """A single-line string: trimmed, not empty, without control characters, of bounded length."""

    invisible_allowed = ""

    default_error_messages = {
        "control-character": "Control characters are not allowed here.",
    }

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("max_length", 255)
        super().__init__(**kwargs)

    def to_internal_value(self, data: Any) -> str:
        """Return the trimmed text; raise ``ValidationError`` for anything else."""
        text = super().to_internal_value(data)
        if has_control_character(text, allowed=self.invisible_allowed):
            self.fail("control-character")
        return text

    def run_validation(self, data: Any = empty) -> Any:
        """Refuse blank text with a code of our own before the base class does."""
        if isinstance(data, str) and not data.strip():
            self.fail("blank")
        return super().run_validation(data)


class NameField(TextField):
    """A name for people: runs of blanks count as one."""

    # The joiners that Persian and Indic scripts and composed emoji need.
    invisible_allowed = "\u200c\u200d"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=NAME_MAX_LENGTH, **kwargs)

    def to_internal_value(self, data: Any) -> str:
        """Return the name with single blanks."""
        if isinstance(data, str):
            blanks = "".join(" " if unicodedata.category(c) == "Zs" else c for c in data)
            data = " ".join(word for word in blanks.split(" ") if word)
            if not data.strip(self.invisible_allowed + " "):
                self.fail("blank")
        return super().to_internal_value(data)


class PatternField(TextField):
    """A :class:`TextField` that matches ``pattern`` as a whole; ``hint`` says what is expected."""

    def __init__(self, *, pattern: re.Pattern[str], hint: str, **kwargs: Any) -> None:
        self.pattern = pattern
        self.hint = hint
        super().__init__(**{"help_text": hint, **kwargs})

    def to_internal_value(self, data: Any) -> str:
        """Return the text when it matches."""
        text = super().to_internal_value(data)
        if not self.pattern.fullmatch(text):
            raise serializers.ValidationError(self.hint, code="invalid-format")
        return text


class IdField(serializers.UUIDField):
    """An id in its canonical text; DRF alone would also take numbers, braces and URNs."""

    def to_internal_value(self, data: Any) -> uuid.UUID:
        """Return the id."""
        if not isinstance(data, str) or not CANONICAL_UUID.fullmatch(data):
            self.fail("invalid", value=json_kind(data) if not isinstance(data, str) else data[:80])
        return uuid.UUID(data)


class OwnerField(TextField):
    """The owner a caller acts for: a free string, no table (specification, "Authentication")."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=OWNER_MAX_LENGTH, **kwargs)


@extend_schema_field({"type": "string", "format": "date-time"})
class TimestampField(serializers.Field[datetime, datetime, str, Any]):
    """An instant as ISO 8601 in UTC with milliseconds and ``Z``; for answers only."""

    def to_representation(self, value: datetime) -> str:
        """Return ``value`` cut to milliseconds."""
        return format_timestamp(value)


def page_of(item: type[OutputSerializer], name: str) -> type[OutputSerializer]:
    """Return the serializer of a keyset page of ``item``."""
    members = {
        "items": item(many=True),
        "next_cursor": serializers.CharField(required=False),
        "__doc__": "One page of a list; `nextCursor` leads to the next one, when there is one.",
    }
    return type(name, (OutputSerializer,), members)


def member_pointer(*names: str) -> str:
    """Return the JSON pointer of a member: ``member_pointer("spec", "harness")``."""
    return "".join(f"/{escape_pointer(name)}" for name in names)
