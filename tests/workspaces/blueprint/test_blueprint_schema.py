"""The schema that is published says what the parser accepts."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tests.workspaces.blueprint.blueprints import FULL, MINIMAL, places, with_value
from workspaces.blueprint import Blueprint, blueprint_schema


class TestSchema:
    def test_the_schema_is_sound_and_stands_alone(self) -> None:
        schema = blueprint_schema()
        jsonschema.Draft202012Validator.check_schema(schema)
        text = json.dumps(schema)
        assert "$ref" not in text
        assert "$defs" not in text

    @pytest.mark.parametrize("document", [FULL, MINIMAL, Blueprint.parse(MINIMAL).to_wire()])
    def test_what_is_accepted_satisfies_the_schema(self, document: object) -> None:
        jsonschema.validate(document, blueprint_schema())

    def test_the_schema_refuses_unknown_members_at_every_level(self) -> None:
        validator = jsonschema.Draft202012Validator(blueprint_schema())
        for path in places(FULL):
            place: Any = FULL
            for part in path:
                place = place[part]
            if isinstance(place, dict) and path != ("runtime", "env"):
                document = with_value("/".join(map(str, [*path, "unknown"])), 1)
                assert not validator.is_valid(document), path

    def test_every_member_is_described(self) -> None:
        def undescribed(schema: Any, path: str) -> list[str]:
            found = []
            for name, member in schema.get("properties", {}).items():
                if "description" not in member:
                    found.append(f"{path}/{name}")
                found += undescribed(member, f"{path}/{name}")
            for key in ("oneOf", "anyOf"):
                for option in schema.get(key, ()):
                    found += undescribed(option, path)
            return found + (undescribed(schema["items"], path) if "items" in schema else [])

        assert undescribed(blueprint_schema(), "") == []

    def test_what_nothing_reads_of_access_is_not_described_as_a_choice(self) -> None:
        schema: Any = blueprint_schema()
        ssh = schema["properties"]["access"]["properties"]["ssh"]
        assert set(ssh["properties"]) == {"enabled", "listenPort", "authorizedKeysRef"}
        for name, member in ssh["properties"].items():
            assert member["description"].startswith("Accepted for compatibility; has no"), name
