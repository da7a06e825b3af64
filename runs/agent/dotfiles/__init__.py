"""Applying a dotfiles checkout; runs as the workspace's user, never as root."""

from __future__ import annotations

import os
import sys

from . import chezmoi, copy, stow
from .detection import detect
from .errors import DotfilesError
from .tree import Folder


def apply(source: str, manager: str, home: str, target: str) -> int:
    """Apply the checkout; `auto` looks at it to find its manager. Returns the exit code."""
    # Modes are the checkout's or the manager's own, not those of whoever started the workspace.
    os.umask(0o022)
    try:
        with Folder.open(source) as checkout, _target_folder(home, target) as into:
            if manager == "auto":
                manager = detect(source)
                print(f"dotfiles: applying {source} with {manager}", flush=True)
            {"copy": copy.apply, "stow": stow.apply, "chezmoi": chezmoi.apply}[manager](
                checkout, into
            )
    except DotfilesError as error:
        return _failed(str(error))
    except RecursionError:
        return _failed(f"the directories in {source} are nested too deeply")
    except OSError as error:
        return _failed(f"{error.filename or source}: {error.strerror}")
    return 0


def _target_folder(home: str, target: str) -> Folder:
    if target == "home":
        return Folder.open(home)
    with Folder.open(home) as folder:
        return folder.make(".config", 0o755)


def _failed(reason: str) -> int:
    print(f"dotfiles: {reason}", file=sys.stderr)
    return 1
