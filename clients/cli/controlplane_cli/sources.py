"""What ``svc up`` can be given: a blueprint, a folder or the address of a git repository."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from controlplane_cli.devcontainers.conversion import Translated, translate
from controlplane_cli.devcontainers.finding import Fetched, of_folder, project_of, read

BLUEPRINT_NAMES = ("svc.json", ".svc.json")
DEVCONTAINER_NAMES = ("devcontainer.json", ".devcontainer.json")
_GIT = re.compile(r"^(https?|ssh|git|file)://|^[\w.-]+@[\w.-]+:|\.git$")


@dataclass(frozen=True)
class Source:
    """A blueprint, a name for its workspace, and a folder whose files go into it."""

    blueprint: dict[str, Any]
    name: str
    folder: Path | None = None
    commands: list[tuple[str, str]] = field(default_factory=list)
    """Name and shell command of what is executed once the files are there."""
    ports: dict[int, str] = field(default_factory=dict)
    """Ports that people are led to, with what they are called."""
    warnings: list[str] = field(default_factory=list)
    """What was asked for and has no counterpart."""


def source_of(text: str, harness: str, *, local_env: bool = False) -> Source:
    """Return what is meant; raises ``ClickException`` when nothing can be."""
    path = Path(text)
    if path.is_dir():
        found = _blueprint_in(path)
        if found is not None:
            return Source(_read(found), path.resolve().name, path)
        return _of_folder(path, of_folder(path), harness, local_env=local_env)
    if path.is_file():
        if path.name in DEVCONTAINER_NAMES:
            return _of_folder(project_of(path), path, harness, local_env=local_env)
        return Source(_read(path), path.resolve().stem)
    if _GIT.search(text):
        return _of_repository(text, harness)
    raise click.ClickException(f"{text} is not a file, a folder or the URL of a git repository")


def _of_folder(folder: Path, told: Path | None, harness: str, *, local_env: bool) -> Source:
    name = folder.resolve().name
    if told is None:
        return Source({"harness": {"id": harness}}, name, folder)
    made = translate(
        read(told, folder), harness=harness, folder_name=name, copied=True, local_env=local_env
    )
    return _of_translated(made, made.name or name, folder)


def _of_repository(url: str, harness: str) -> Source:
    name = re.split(r"[/:]", url.rstrip("/"))[-1].removesuffix(".git")
    blueprint: dict[str, Any] = {"harness": {"id": harness}}
    source = Source(blueprint, name)
    with Fetched(url) as fetched:
        failure = fetched.fetch()
        if failure is not None:
            # The service may well reach what this machine does not.
            told = f"not looked for, as {url} cannot be read from here: {failure}"
            source = Source(blueprint, name, warnings=[f"devcontainer.json: {told}"])
        else:
            found, own = of_folder(fetched.root), _blueprint_in(fetched.root)
            if found is not None:
                # Somebody else wrote it: nothing of this machine's environment goes there.
                made = translate(
                    read(found, fetched.root), harness=harness, folder_name=name, copied=False
                )
                source = _of_translated(made, made.name or name, None)
            if own is not None:
                # It could name accounts of whoever starts it.
                source.warnings.append(f"{own.name}: not used; give svc up a checkout to use it")
    source.blueprint["sources"] = {"workspace": {"url": url}}
    return source


def _of_translated(made: Translated, name: str, folder: Path | None) -> Source:
    warnings = [f"devcontainer.json: {each}" for each in made.warnings]
    return Source(made.blueprint, name, folder, made.commands, made.ports, warnings)


def _blueprint_in(folder: Path) -> Path | None:
    return next((folder / name for name in BLUEPRINT_NAMES if (folder / name).is_file()), None)


def _read(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{path} is not a blueprint: {error}") from error
    if not isinstance(told, dict):
        raise click.ClickException(f"{path} is not a blueprint: it is not a JSON object")
    return dict(told.get("spec", told)) if "harness" not in told else told


def wanted_files(folder: Path) -> Callable[[Path], bool] | None:
    """Return which files of a folder are sent: in a git checkout not those that git ignores.

    Raises ``ClickException`` when it is a checkout and git cannot be asked.
    """
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory"],
            cwd=folder,
            capture_output=True,
            check=False,
        )
    except OSError as error:
        root = folder.resolve()
        if not any((each / ".git").exists() for each in (root, *root.parents)):
            return None
        told = f"git cannot be started ({error.strerror}), which knows what to leave out of {root}"
        raise click.ClickException(told) from error
    if listed.returncode != 0:
        return None
    ignored = {Path(name.decode("utf-8", "surrogateescape")) for name in listed.stdout.split(b"\0")}
    return lambda path: path not in ignored
