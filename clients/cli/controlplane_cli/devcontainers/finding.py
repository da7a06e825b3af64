"""Where the ``devcontainer.json`` of a folder or of a git repository lies."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

import click

from controlplane_cli.devcontainers.jsonc import read_jsonc

NAMES = (".devcontainer/devcontainer.json", ".devcontainer.json")
_MOST_BYTES = 1024 * 1024
_CLONE_SECONDS = 120.0
_SPARSE = (
    "/.devcontainer.json",
    "/.devcontainer/devcontainer.json",
    "/.devcontainer/*/devcontainer.json",
    *("/svc.json", "/.svc.json"),
)


def of_folder(folder: Path) -> Path | None:
    """Return the file that counts; raises ``ClickException`` where there are several."""
    for name in NAMES:
        if (folder / name).is_file():
            return folder / name
    several = sorted(folder.glob(".devcontainer/*/devcontainer.json"))
    if len(several) > 1:
        names = "\n  ".join(str(each) for each in several)
        raise click.ClickException(f"name one of these: svc up FILE\n  {names}")
    return several[0] if several else None


def project_of(path: Path) -> Path:
    """Return the folder that a ``devcontainer.json`` describes."""
    for parent in path.resolve().parents:
        if parent.name == ".devcontainer":
            return parent.parent
    return path.resolve().parent


def read(path: Path, root: Path) -> dict[str, Any]:
    """Return what a file says; it has to lie in ``root``, as a link may lead anywhere."""
    try:
        if not path.resolve().is_relative_to(root.resolve()):
            raise ValueError("it is a link to another place")
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError("it is larger than 1 MiB")
        told = read_jsonc(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        shown = PurePosixPath(path).name
        raise click.ClickException(f"{shown} cannot be read: {error}") from error
    if not isinstance(told, dict):
        raise click.ClickException(f"{path.name} cannot be read: it is no JSON object")
    return told


class Fetched:
    """What describes a workspace in a git repository, fetched here and removed at the end."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._folder = tempfile.TemporaryDirectory(prefix="svc-up-")
        self.root = Path(self._folder.name) / "checkout"

    def __enter__(self) -> Fetched:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def fetch(self) -> str | None:
        """Fetch the few files there may be; return why that failed, or None."""
        git = ["git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"]
        clone = ["clone", "-q", "--depth=1", "--filter=blob:none", "--no-checkout"]
        steps = [
            [*git, *clone, "--", self._url, str(self.root)],
            [*git, "-C", str(self.root), "sparse-checkout", "set", "--no-cone", *_SPARSE],
            [*git, "-C", str(self.root), "checkout", "-q"],
        ]
        # Nobody is asked for a password, and no other program than git's own is started.
        environ = {
            **os.environ,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "true",
            "GIT_ALLOW_PROTOCOL": "https:http:git:ssh:file",
            "GIT_SSH_COMMAND": os.environ.get("GIT_SSH_COMMAND", "ssh -oBatchMode=yes"),
            "GIT_LFS_SKIP_SMUDGE": "1",
        }
        try:
            for step in steps:
                done = subprocess.run(
                    step,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    check=False,
                    timeout=_CLONE_SECONDS,
                )
                if done.returncode != 0:
                    told = done.stderr.decode("utf-8", "replace").strip().splitlines()
                    return told[-1] if told else f"git ended with {done.returncode}"
        except subprocess.TimeoutExpired:
            return f"git took longer than {_CLONE_SECONDS:.0f} seconds"
        except OSError as error:
            return f"git cannot be started: {error.strerror}"
        return None
