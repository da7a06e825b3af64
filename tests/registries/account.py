"""The account of the registry that tests use, as each kind of client takes it."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

PUSH_REGISTRY = os.environ.get("REGISTRY_PUSH_REGISTRY", "127.0.0.1:5000")
USERNAME = os.environ.get("REGISTRY_USERNAME", "")
PASSWORD = os.environ.get("REGISTRY_PASSWORD", "")
"""Both are empty where somebody else's registry asks for no account."""

BASIC = (USERNAME, PASSWORD) if USERNAME else None
"""As ``requests`` takes it."""
ENGINE = {"username": USERNAME, "password": PASSWORD} if USERNAME else None
"""As Docker's SDK takes it for one push or pull."""


def docker_config(folder: Path) -> str:
    """Write the settings of Docker's command line and return their folder, its ``--config``."""
    encoded = base64.b64encode(f"{USERNAME}:{PASSWORD}".encode()).decode()
    auths = {PUSH_REGISTRY: {"auth": encoded}} if USERNAME else {}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"auths": auths}))
    return str(folder)
