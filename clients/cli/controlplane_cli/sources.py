"""What ``svc up`` can be given: a blueprint, a folder or the address of a git repository."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

BLUEPRINT_NAMES = ("svc.json", ".svc.json")
_GIT = re.compile(r"^(https?|ssh|git|file)://|^[\w.-]+@[\w.-]+:|\.git$")


@dataclass(frozen=True)
class Source:
    """A blueprint, a name for its workspace, and a folder whose files go into it."""

    blueprint: dict[str, Any]
    name: str
    folder: Path | None = None


def source_of(text: str, harness: str) -> Source:
    """Return what is meant; raises ``ClickException`` when nothing can be."""
    path = Path(text)
    if path.is_dir():
        found = [path / name for name in BLUEPRINT_NAMES if (path / name).is_file()]
        blueprint = _read(found[0]) if found else {"harness": {"id": harness}}
        return Source(blueprint, path.resolve().name, path)
    if path.is_file():
        return Source(_read(path), path.resolve().stem)
    if _GIT.search(text):
        name = re.split(r"[/:]", text.rstrip("/"))[-1].removesuffix(".git")
        blueprint = {"harness": {"id": harness}, "sources": {"workspace": {"url": text}}}
        return Source(blueprint, name)
    raise click.ClickException(f"{text} is not a file, a folder or the URL of a git repository")


def _read(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{path} is not a blueprint: {error}") from error
    if not isinstance(told, dict):
        raise click.ClickException(f"{path} is not a blueprint: it is not a JSON object")
    return dict(told.get("spec", told)) if "harness" not in told else told


def wanted_files(folder: Path) -> Callable[[Path], bool] | None:
    """Return which files of a folder are sent: in a git checkout not those that git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory"],
        cwd=folder,
        capture_output=True,
        check=False,
    )
    if listed.returncode != 0:
        return None
    ignored = {Path(name.decode("utf-8", "surrogateescape")) for name in listed.stdout.split(b"\0")}
    return lambda path: path not in ignored
