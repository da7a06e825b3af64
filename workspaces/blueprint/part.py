"""What all parts of a blueprint have in common."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticKnownError

T = TypeVar("T")


MAX_ENTRIES: Final = 1000
"""No array of a blueprint may be longer, whatever it holds: each faulty entry costs time."""


def tuple_of_array(value: object) -> object:
    """Return a JSON array as the tuple that strict validation wants; all else as it is."""
    if not isinstance(value, list):
        return value
    if len(value) > MAX_ENTRIES:
        limits = {"field_type": "Array", "max_length": MAX_ENTRIES, "actual_length": len(value)}
        raise PydanticKnownError("too_long", limits)
    return tuple(value)


Many = Annotated[tuple[T, ...], BeforeValidator(tuple_of_array)]
"""A JSON array, held as a tuple."""


class Part(BaseModel):
    """What all parts of a blueprint have in common: strict, closed, frozen, camelCase."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        validate_default=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        """Leave out known members that are null, as everywhere in a body; no unknown ones."""
        if not isinstance(data, dict) or None not in data.values():
            return data
        known = {field.alias for field in cls.model_fields.values()}
        return {
            name: value for name, value in data.items() if value is not None or name not in known
        }
