"""JSON Schemas as tables of Markdown, for the references in ``docs/users``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

Schema = Mapping[str, Any]

_COMPONENT: Final = "#/components/schemas/"
_PLAIN: Final = {"string": "text", "boolean": "true or false", "number": "number"}
_FORMATS: Final = {"uuid": "UUID", "date-time": "time", "uri": "URI"}


def members_table(schema: Schema) -> list[str]:
    """Return the lines of a table of an object's members: name, type, default, meaning."""
    required = schema.get("required", ())
    lines = ["| Member | Type | Default | Meaning |", "|---|---|---|---|"]
    for name, member in schema.get("properties", {}).items():
        default = "**required**" if name in required else _default(without_null(member))
        cells = (f"`{name}`", type_words(member), default, one_line(member.get("description", "")))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def type_words(schema: Schema) -> str:
    """Return what a value has to be, in words, with its limits."""
    schema = without_null(schema)
    if "$ref" in schema:
        name = str(schema["$ref"]).removeprefix(_COMPONENT)
        return f"[{name}](#{name.lower()})"
    if len(schema.get("allOf", ())) == 1:
        return type_words(schema["allOf"][0])
    options = [one for one in schema.get("oneOf", schema.get("anyOf", ())) if one]
    if options:
        words = dict.fromkeys(type_words(one) for one in options)
        return " or ".join(words)
    if "enum" in schema or "const" in schema:
        allowed = schema.get("enum", [schema.get("const")])
        return ", ".join(f"`{value}`" for value in allowed if value not in (None, ""))
    return _of_type(schema)


def without_null(schema: Schema) -> Schema:
    """Return the schema of a member that may be absent as that of the member."""
    options = schema.get("anyOf", schema.get("oneOf", ()))
    kept = [one for one in options if one.get("type") != "null" and one.get("enum") != [None]]
    if len(options) == len(kept) or len(kept) != 1:
        return schema
    beside = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
    return {**kept[0], **beside}


def one_line(text: str) -> str:
    """Return a text as one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def _of_type(schema: Schema) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next(each for each in kind if each != "null")
    if kind == "array":
        items = type_words(schema.get("items", {}))
        return f"array of {items}" + _most(schema, "maxItems", "entries", "minItems")
    if kind == "integer":
        return "integer" + _range(schema)
    if kind == "number":
        return "number" + _range(schema)
    if kind == "object":
        values = schema.get("additionalProperties")
        more = _most(schema, "maxProperties", "entries")
        return (f"object of {type_words(values)}" if isinstance(values, dict) else "object") + more
    words = _FORMATS.get(schema.get("format", ""), _PLAIN.get(str(kind), "any value"))
    return words + _most(schema, "maxLength", "characters")


def _most(schema: Schema, most: str, unit: str, least: str = "") -> str:
    found = []
    if schema.get(least, 0) > 0:
        found.append(f"at least {schema[least]}")
    if most in schema:
        found.append(f"at most {schema[most]} {unit}")
    return "".join(f", {each}" for each in found)


def _range(schema: Schema) -> str:
    if "minimum" in schema and "maximum" in schema:
        return f", {schema['minimum']} to {schema['maximum']}"
    if "minimum" in schema:
        return f", at least {schema['minimum']}"
    return f", at most {schema['maximum']}" if "maximum" in schema else ""


def _default(schema: Schema) -> str:
    default = schema.get("default")
    if default is None:
        return ""
    if isinstance(default, (dict, list)):
        return "" if default and isinstance(default, dict) else f"`{json.dumps(default)}`"
    return f"`{default}`" if isinstance(default, str) else f"`{json.dumps(default)}`"
