"""The layers of ``pyproject.toml`` hold every part of an app that they name part by part."""

from __future__ import annotations

from tests.architecture.sources import CONTRACTS, ROOT

AGENT = "runs.agent"


def test_every_part_of_runs_stands_in_the_layers() -> None:
    layers: list[str] = CONTRACTS["contracts"][0]["layers"]
    named = {part for layer in layers for part in layer.split(" : ") if part.startswith("runs.")}
    found = {
        f"runs.{path.stem}"
        for path in (ROOT / "runs").iterdir()
        if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").exists()
    }
    assert AGENT in found
    assert named == found
    assert layers[-1] == AGENT
