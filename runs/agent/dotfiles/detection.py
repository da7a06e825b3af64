"""Which manager a checkout was written for, and which of its entries are never dotfiles."""

from __future__ import annotations

import os
from typing import Iterable

# The book-keeping of version control systems; everything else in a checkout is the owner's.
VCS_NAMES = frozenset({".git", ".hg", ".svn", ".bzr", "CVS", "_darcs"})

_CHEZMOI_FILES = (".chezmoiroot", ".chezmoiversion")
_CHEZMOI_PREFIXES = ("dot_", "private_")
_STOW_FILES = (".stow-local-ignore", ".stowrc")


def detect(source: str) -> str:
    """`chezmoi`, `stow` or `copy`, by the marks that the first two leave in a checkout."""
    names = os.listdir(source)
    if any(_is_chezmoi(name) for name in names):
        return "chezmoi"
    packages = (os.path.join(source, name) for name in names if name not in VCS_NAMES)
    if _has_stow_file(source) or any(_has_stow_file(package) for package in packages):
        return "stow"
    return "copy"


def _is_chezmoi(name: str) -> bool:
    is_config_template = name.startswith(".chezmoi.") and name.endswith(".tmpl")
    return name in _CHEZMOI_FILES or is_config_template or name.startswith(_CHEZMOI_PREFIXES)


def _has_stow_file(folder: str) -> bool:
    marks: Iterable[str] = (os.path.join(folder, name) for name in _STOW_FILES)
    return any(os.path.isfile(mark) for mark in marks)
