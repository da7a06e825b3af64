"""What all parts of a blueprint have in common."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic.alias_generators import to_camel

T = TypeVar("T")


def tuple_of_array(value: object) -> object:
    """Return a JSON array as the tuple that strict validation wants; all else as it is."""
    return tuple(value) if isinstance(value, list) else value


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
