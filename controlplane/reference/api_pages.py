"""``docs/users/api.md``: the description of the API as a page to read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from controlplane.reference.schema_tables import Schema, members_table, one_line, type_words

INTRODUCTION: Final = """\
# The API

Made from [`openapi.json`](../../openapi.json) by `make schema`; do not edit it. A running
installation shows the same at `/docs`. All of it is one contract: every answer of the test suite is
held against it. The [blueprint](blueprint.md) and the [codes](errors.md) have pages of their own.
"""

_COMPONENT: Final = "#/components/schemas/"
_ELSEWHERE: Final = {"Blueprint": "[blueprint](blueprint.md)"}
_METHODS: Final = ("get", "post", "put", "patch", "delete")


def api_page(document: Schema) -> str:
    """Return the page of an OpenAPI document."""
    lines = [INTRODUCTION, str(document["info"]["description"]).strip(), "", *_overview(document)]
    for tag in document["tags"]:
        lines += [f"## {tag['name']}", "", tag["description"], ""]
        for path, method, operation in _operations(document):
            if tag["name"] in operation["tags"]:
                lines += _operation(path, method, operation)
    lines += ["## Objects", "", "What requests and answers are made of.", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        if name not in _ELSEWHERE:
            lines += _component(name, schema)
    text = "\n".join(lines).rstrip() + "\n"
    for name, link in _ELSEWHERE.items():
        text = text.replace(f"[{name}](#{name.lower()})", link)
    return text


def _operations(document: Schema) -> Iterator[tuple[str, str, Schema]]:
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if method in methods:
                yield path, method.upper(), methods[method]


def _overview(document: Schema) -> list[str]:
    lines = ["| | |", "|---|---|"]
    for tag in document["tags"]:
        anchor = tag["name"].lower().replace(" ", "-")
        paths = [
            f"`{method} {path}`"
            for path, method, operation in _operations(document)
            if tag["name"] in operation["tags"]
        ]
        lines.append(f"| [{tag['name']}](#{anchor}) | {', '.join(paths)} |")
    return [*lines, ""]


def _operation(path: str, method: str, operation: Schema) -> list[str]:
    summary = f"{operation['summary']}."
    more = str(operation.get("description", "")).strip()
    lines = [f"### `{method} {path}`", "", summary]
    if more and more != summary:
        lines += ["", more]
    parameters = operation.get("parameters", [])
    if parameters:
        lines += ["", "| Parameter | In | Type | Meaning |", "|---|---|---|---|"]
        lines += [_parameter(one) for one in parameters]
    body = operation.get("requestBody")
    told = [f"Request: {_content(body)}."] if body else []
    told += [
        f"Answer {status}: {_content(answer) or 'without a body'}."
        for status, answer in operation["responses"].items()
        if "application/problem+json" not in answer.get("content", {})
    ]
    return [*lines, "", " ".join(told), ""]


def _parameter(parameter: Schema) -> str:
    needed = "**required** " if parameter.get("required") and parameter["in"] != "path" else ""
    cells = (
        f"`{parameter['name']}`",
        parameter["in"],
        type_words(parameter.get("schema", {})),
        needed + one_line(parameter.get("description", "")),
    )
    return "| " + " | ".join(cells).rstrip() + " |"


def _content(place: Schema) -> str:
    shown = []
    for kind, media in place.get("content", {}).items():
        schema = media.get("schema", {})
        words = type_words(schema) if "$ref" in schema else ""
        shown.append(words or f"`{kind}`")
    return " or ".join(dict.fromkeys(shown))


def _component(name: str, schema: Schema) -> list[str]:
    lines = [f"### {name}", ""]
    description: Any = schema.get("description")
    if description:
        lines += [str(description).strip(), ""]
    if schema.get("properties"):
        return [*lines, *members_table(schema), ""]
    return [*lines, f"{type_words(schema)}.", ""]
