"""The manager `chezmoi`: the program where it is installed, else a reader of plain entries."""

from __future__ import annotations

import shutil
import subprocess

from . import chezmoi_source
from .errors import DotfilesError
from .tree import Folder


def apply(source: Folder, target: Folder) -> None:
    """Apply a chezmoi source directory."""
    if shutil.which("chezmoi") is None:
        chezmoi_source.apply(source, target)
        return
    places = ["--source", source.shown, "--destination", target.shown]
    command = ["chezmoi", "--no-tty", "--force", *places]
    has_config_template = any(
        name.startswith(".chezmoi.") and name.endswith(".tmpl") for name in source.names()
    )
    _run([*command, "init", "--apply"] if has_config_template else [*command, "apply"])


def _run(command: list[str]) -> None:
    ended = subprocess.run(command, check=False)
    if ended.returncode != 0:
        raise DotfilesError(f"chezmoi failed with exit code {ended.returncode}")
