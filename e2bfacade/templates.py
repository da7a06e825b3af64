"""Templates are blueprints of the operator: ``<template>.json`` in a folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from e2bfacade.refused import Refused

BUILT_IN: dict[str, dict[str, Any]] = {"base": {"harness": {"id": "shell"}}}
"""What there is without a file: E2B's default template, as an empty workspace with a shell."""

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")


class Templates:
    """Reads the folder anew each time, so a file that was changed counts at once."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        """Return the names of all templates."""
        files = [] if self._folder is None else sorted(self._folder.glob("*.json"))
        return sorted({*BUILT_IN, *(each.stem for each in files if _NAME.fullmatch(each.stem))})

    def blueprint(self, name: str) -> dict[str, Any]:
        """Return the blueprint of a template. Raises ``Refused``."""
        # E2B's names may have a team before them and a tag behind.
        missing = Refused(
            404, "not_found", f"There is no template {name[:64]!r}; there are: {self._listed()}."
        )
        if _NAME.fullmatch(name) is None:
            raise missing
        try:
            content = (self._folder / f"{name}.json").read_bytes() if self._folder else None
        except FileNotFoundError:
            content = None
        except OSError as error:
            raise self._unusable(name, error.strerror or "it cannot be read") from None
        if content is None:
            if name not in BUILT_IN:
                raise missing
            return json.loads(json.dumps(BUILT_IN[name]))  # type: ignore[no-any-return]
        try:
            found = json.loads(content)
        except ValueError as error:
            raise self._unusable(name, f"no JSON: {error}") from None
        # An example of a whole request serves as well as its blueprint alone.
        spec = found.get("spec", found) if isinstance(found, dict) else None
        if not isinstance(spec, dict):
            raise self._unusable(name, "no object")
        return spec

    def _listed(self) -> str:
        return ", ".join(self.names()[:20])

    @staticmethod
    def _unusable(name: str, why: str) -> Refused:
        return Refused(500, "internal", f"The operator's template {name} cannot be used: {why}.")
