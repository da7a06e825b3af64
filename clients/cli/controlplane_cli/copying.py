"""``svc cp``: files and folders between this machine and a workspace."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import click

from controlplane_cli.session import Session
from controlplane_client import NotFound, Workspace

_KEPT_BYTES = 1024 * 1024
"""So much input is sent from memory; more of it goes through a temporary file."""


def place(text: str) -> tuple[str | None, str]:
    """Return workspace and path of ``WORKSPACE:PATH``; None and a path of this machine."""
    name, colon, path = text.partition(":")
    if not colon or "/" in name or name in {"", "."}:
        return None, text
    return name, path or "."


def copy(session: Session, source: str, target: str) -> None:
    """Copy; exactly one of both is in a workspace."""
    (from_name, from_path), (to_name, to_path) = place(source), place(target)
    if (from_name is None) == (to_name is None):
        raise click.UsageError(
            "exactly one of the two must be WORKSPACE:PATH, the other a local path"
        )
    if from_name is not None:
        _download(session.workspace(from_name), from_path, to_path)
    elif to_name is not None:
        _upload(session.workspace(to_name), from_path, to_path)


def _download(workspace: Workspace, path: str, local: str) -> None:
    if local == "-":
        for part in workspace.files.stream(path):
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        return
    target = Path(local)
    name = Path(path).name
    if target.is_dir() and name != "..":
        target /= name
    for name in workspace.files.download(path, target):
        click.echo(f"skipped, because it points outside the folder: {name}", err=True)


def _upload(workspace: Workspace, local: str, path: str) -> None:
    if local == "-":
        _upload_input(workspace, path)
        return
    source = Path(local)
    if not source.exists():
        raise click.ClickException(f"there is no {source}")
    if path.endswith("/") or _is_folder(workspace, path):
        path = f"{path.rstrip('/')}/{source.resolve().name}"
    workspace.files.upload(source, path)


def _upload_input(workspace: Workspace, path: str) -> None:
    source = sys.stdin.buffer
    beginning = source.read(_KEPT_BYTES)
    if len(beginning) < _KEPT_BYTES:
        workspace.files.write(path, beginning)
        return
    # Sent once all of it is there: then a try that breaks off can be repeated from its beginning.
    with tempfile.TemporaryFile() as file:
        file.write(beginning)
        shutil.copyfileobj(source, file)
        file.seek(0)
        workspace.files.write(path, file)


def _is_folder(workspace: Workspace, path: str) -> bool:
    try:
        return workspace.files.stat(path).is_dir
    except NotFound:
        return False
