"""Which installation is meant, and for whom: the environment, or a file of contexts.

The file is ``~/.config/svc/config.json`` (``SVC_CONFIG`` names another)::

    {
      "current": "work",
      "contexts": {"work": {"baseUrl": "https://svc.example", "owner": "usr_ada"}}
    }

``SVC_BASE_URL`` and ``SVC_OWNER_USER_ID`` (or its older name ``SVC_OWNER``) go before it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

DEFAULT_URL, DEFAULT_OWNER = "http://localhost:4000", "usr_local"


@dataclass(frozen=True)
class Context:
    """An installation and an owner; ``name`` is where they come from."""

    name: str
    base_url: str
    owner: str


def config_path() -> Path:
    """Return where the file is, or would be."""
    if "SVC_CONFIG" in os.environ:
        return Path(os.environ["SVC_CONFIG"])
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "svc" / "config.json"


def read_config() -> dict[str, Any]:
    """Return what the file says; raises ``ClickException`` when it is no such file."""
    try:
        told = json.loads(config_path().read_text())
        if not isinstance(told["contexts"], dict):
            raise TypeError("contexts is not an object")
    except FileNotFoundError:
        return {"current": None, "contexts": {}}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise click.ClickException(f"{config_path()} cannot be read: {error}") from error
    return dict(told)


def write_config(told: dict[str, Any]) -> None:
    """Store the file."""
    path = config_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(told, indent=2) + "\n")
    partial.replace(path)


def chosen(name: str | None) -> Context:
    """Return the context that counts; ``name`` is one that was asked for."""
    told = read_config()
    wanted = name or os.environ.get("SVC_CONTEXT") or told.get("current")
    found = told["contexts"].get(wanted, {}) if wanted else {}
    if wanted and not found:
        raise click.ClickException(f"there is no context {wanted}: svc config set {wanted} …")
    if name:
        return Context(name, found["baseUrl"], found.get("owner", DEFAULT_OWNER))
    return Context(
        wanted or "environment",
        os.environ.get("SVC_BASE_URL") or found.get("baseUrl") or DEFAULT_URL,
        os.environ.get("SVC_OWNER_USER_ID")
        or os.environ.get("SVC_OWNER")
        or found.get("owner")
        or DEFAULT_OWNER,
    )
