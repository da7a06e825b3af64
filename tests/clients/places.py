"""Where the clients lie in the checkout, and how they are started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

from tests.architecture.sources import ROOT

CLIENTS = ROOT / "clients"
SVC = [sys.executable, "-m", "controlplane_cli.main"]
Svc = Callable[..., subprocess.CompletedProcess[str]]


def python_path() -> str:
    """Return the ``PYTHONPATH`` of a process that uses the clients of this checkout."""
    return os.pathsep.join(str(path.parent) for path in sorted(CLIENTS.glob("*/pyproject.toml")))
