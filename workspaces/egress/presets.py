"""Lists of rules with names and versions: ours, and those of the operator."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from workspaces.blueprint import EgressRule

OURS = Path(__file__).with_name("presets.toml")
_RULES: TypeAdapter[list[EgressRule]] = TypeAdapter(list[EgressRule])


class PresetsError(Exception):
    """A file of presets cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Presets:
    """All presets that blueprints may name, by name and version."""

    by_name: Mapping[str, Mapping[int, tuple[EgressRule, ...]]]

    def find(self, wanted: str) -> tuple[str, tuple[EgressRule, ...]] | None:
        """Return ``name@version`` and rules; the latest version when ``wanted`` names none."""
        name, _, version = wanted.partition("@")
        versions = self.by_name.get(name, {})
        number = int(version) if version else max(versions, default=0)
        rules = versions.get(number)
        return None if rules is None else (f"{name}@{number}", rules)


def read_presets(theirs: str = "") -> Presets:
    """Return our presets and those in the file ``theirs``, which take the place of ours.

    Raises ``PresetsError``.
    """
    found = _read(OURS)
    if theirs:
        found |= _read(Path(theirs))
    return Presets(found)


def _read(path: Path) -> dict[str, dict[int, tuple[EgressRule, ...]]]:
    try:
        told = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PresetsError(f"{path} cannot be read: {error}") from error
    found: dict[str, dict[int, tuple[EgressRule, ...]]] = {}
    for name, versions in told.items():
        for version, preset in versions.items() if isinstance(versions, dict) else ():
            try:
                rules = _RULES.validate_python(preset["rules"])
                if any(rule.credential for rule in rules):
                    raise ValueError("a preset cannot have a credential")
                found.setdefault(name, {})[int(version)] = tuple(rules)
            except (KeyError, TypeError, ValueError, ValidationError) as error:
                raise PresetsError(f"{path}: the preset {name}.{version}: {error}") from error
        if name not in found:
            raise PresetsError(f"{path}: {name} has no version.")
    return found
