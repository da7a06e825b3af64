"""The blueprint as JSON Schema, for the OpenAPI document."""

from __future__ import annotations

from .blueprint import Blueprint
from .egress import Egress
from .part import Part


def blueprint_schema() -> dict[str, object]:
    """Return the JSON Schema (2020-12, as OpenAPI 3.1 uses it) of a blueprint.

    It stands alone: what pydantic keeps under ``$defs`` is put in place, so that it can become a
    component under any name. Where a rule has no words in JSON Schema, the description says it.
    """
    return _alone(Blueprint)


def egress_schema() -> dict[str, object]:
    """Return the JSON Schema of an egress policy, in the same way."""
    return _alone(Egress)


def _alone(model: type[Part]) -> dict[str, object]:
    schema = model.model_json_schema(by_alias=True, mode="validation")
    definitions = schema.pop("$defs", {})
    placed = _in_place(schema, definitions)
    assert isinstance(placed, dict)
    return placed


def _in_place(node: object, definitions: dict[str, object]) -> object:
    """Return ``node`` with references resolved and pydantic's generated titles removed."""
    if isinstance(node, list):
        return [_in_place(entry, definitions) for entry in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        target = definitions[str(node["$ref"]).rpartition("/")[2]]
        assert isinstance(target, dict)
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return _in_place({**target, **beside}, definitions)
    result: dict[str, object] = {}
    for key, value in node.items():
        if key == "default" and isinstance(value, dict) and ("oneOf" in node or "anyOf" in node):
            continue  # generators of clients cannot tell which of the alternatives it is
        if key == "properties" and isinstance(value, dict):
            result[key] = {name: _in_place(entry, definitions) for name, entry in value.items()}
        elif key == "discriminator" or (key == "title" and isinstance(value, str)):
            continue  # the mapping of a discriminator can only point to components
        else:
            result[key] = _in_place(value, definitions)
    if result.get("type") == "array":
        result.setdefault("items", {})  # where nothing may be in it, and tools ask for it
    return result
