"""The manager `stow`: each top-level directory of the checkout is a package for GNU Stow."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess

from .detection import VCS_NAMES
from .errors import DotfilesError
from .tree import Folder

_SKELETON = "/etc/skel"


def apply(source: Folder, target: Folder, skeleton: str = _SKELETON) -> None:
    """Run `stow` for all packages.

    Directories are made, not linked (`--no-folding`): a program that writes a new file into
    `~/.config` must not write it into the checkout. Files that the system put into the new home
    give way when nobody has changed them, since stow refuses to replace a file.
    """
    if shutil.which("stow") is None:
        raise DotfilesError("the program stow is not installed: add the package stow")
    packages = [name for name in source.names() if _is_package(source, name)]
    if not packages:
        raise DotfilesError(
            f"{source.shown} has no top-level directory, so there is nothing to stow"
        )
    for name in packages:
        with source.enter(name) as package:
            _make_way(package, target, skeleton)

    command = ["stow", "--no-folding", f"--dir={source.shown}", f"--target={target.shown}", "--"]
    ended = subprocess.run(command + packages, cwd=source.shown, check=False)
    if ended.returncode != 0:
        raise DotfilesError(f"stow failed with exit code {ended.returncode}")


def _is_package(source: Folder, name: str) -> bool:
    found = source.find(name)
    return found is not None and stat.S_ISDIR(found.st_mode) and name not in VCS_NAMES


def _make_way(package: Folder, target: Folder, skeleton: str) -> None:
    for name in package.names():
        found = package.find(name)
        # What stow's option --dotfiles makes of a name; harmless without the option.
        shown = "." + name[4:] if name.startswith("dot-") else name
        existing = target.find(shown)
        if found is None or existing is None:
            continue
        original = os.path.join(skeleton, shown)
        if stat.S_ISDIR(found.st_mode):
            if stat.S_ISDIR(existing.st_mode):
                with package.enter(name) as below, target.enter(shown) as into:
                    _make_way(below, into, original)
        elif stat.S_ISREG(existing.st_mode) and _is_copy_of(target, shown, original):
            target.remove(shown)


def _is_copy_of(target: Folder, name: str, original: str) -> bool:
    try:
        with open(original, "rb") as file:
            return target.read(name) == file.read()
    except OSError:
        return False
