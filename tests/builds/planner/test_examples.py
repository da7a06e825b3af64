"""The examples are blueprints that this installation can plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builds.planner import Catalogue, plan
from workspaces.blueprint import Blueprint

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples").glob("*.json"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_a_blueprint_and_has_a_plan(path: Path) -> None:
    blueprint = Blueprint.parse(json.loads(path.read_text()))

    planned = plan(blueprint, "auto", Catalogue(base_images={"debian": "debian:bookworm-slim"}))

    assert planned.os_family == "debian"


def test_there_are_examples() -> None:
    assert "hello" in {path.stem for path in EXAMPLES}
