"""The pages that are made from the code say what it says."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from pytest_django.fixtures import Settings

from controlplane.reference.schema_tables import members_table, type_words
from tests.docs.pages import ROOT
from workspaces.blueprint import blueprint_schema
from workspaces.blueprint_reference import blueprint_page

COMMANDS = {"blueprintreference": "blueprint.md", "apireference": "api.md"}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_committed_page_is_what_the_code_says(command: str) -> None:
    call_command(command, check=True)


@pytest.mark.parametrize(("command", "name"), COMMANDS.items())
def test_another_page_is_refused_with_the_difference_and_mended(
    command: str, name: str, settings: Settings, tmp_path: Path
) -> None:
    settings.BASE_DIR = tmp_path
    page = tmp_path / "docs" / "users" / name
    page.parent.mkdir(parents=True)
    with pytest.raises(CommandError, match="make schema"):
        call_command(command, check=True, stdout=io.StringIO())
    page.write_text((ROOT / "docs" / "users" / name).read_text() + "By hand.\n")
    told = io.StringIO()
    with pytest.raises(CommandError, match="is not what the code says"):
        call_command(command, check=True, stdout=told)
    assert "-By hand." in told.getvalue().splitlines()
    assert "By hand." in page.read_text()
    call_command(command)
    call_command(command, check=True)


def test_every_member_of_a_blueprint_has_a_row_with_its_description() -> None:
    def members(schema: Any) -> list[tuple[str, str]]:
        found = [(name, one["description"]) for name, one in schema.get("properties", {}).items()]
        for inner in (*schema.get("properties", {}).values(), schema.get("items", {})):
            found += members(inner) if inner else []
        for option in (*schema.get("oneOf", ()), *schema.get("anyOf", ())):
            found += members(option)
        return found

    page = blueprint_page()
    wanted = members(blueprint_schema())
    assert len(wanted) > 60
    for name, description in wanted:
        row = rf"^\| `{name}` \| .*\| {re.escape(' '.join(description.split()))} \|$"
        assert re.search(row, page, re.MULTILINE), name


def test_every_component_that_the_api_page_links_to_is_there() -> None:
    page = (ROOT / "docs" / "users" / "api.md").read_text()
    components = json.loads((ROOT / "openapi.json").read_text())["components"]["schemas"]
    headings = {each.lower() for each in re.findall(r"^### (\w+)$", page, re.MULTILINE)}
    assert headings == {name.lower() for name in components} - {"blueprint"}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "string", "maxLength": 5}, "text, at most 5 characters"),
        ({"type": "string", "format": "uuid"}, "UUID"),
        ({"type": "integer", "minimum": 1, "maximum": 9}, "integer, 1 to 9"),
        ({"type": "integer", "minimum": 1}, "integer, at least 1"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, "array of `a`, `b`"),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, "true or false"),
        ({"oneOf": [{"const": "x"}, {"type": "integer"}]}, "`x` or integer"),
        ({"$ref": "#/components/schemas/Run"}, "[Run](#run)"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "object of text"),
        ({}, "any value"),
    ],
)
def test_what_a_value_has_to_be_is_said_in_words(schema: dict[str, Any], words: str) -> None:
    assert type_words(schema) == words


def test_a_table_says_what_is_required_and_what_is_the_default() -> None:
    schema = {
        "required": ["a"],
        "properties": {
            "a": {"type": "string", "description": "One | two."},
            "b": {"type": "boolean", "default": False},
            "c": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        },
    }
    assert members_table(schema)[2:] == [
        "| `a` | text | **required** | One \\| two. |",
        "| `b` | true or false | `false` |  |",
        "| `c` | integer |  |  |",
    ]
