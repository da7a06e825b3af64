"""Where the clients lie in the checkout."""

from __future__ import annotations

import os

from tests.architecture.sources import ROOT

CLIENTS = ROOT / "clients"


def python_path() -> str:
    """Return the ``PYTHONPATH`` of a process that uses the clients of this checkout."""
    return os.pathsep.join(str(path.parent) for path in sorted(CLIENTS.glob("*/pyproject.toml")))
