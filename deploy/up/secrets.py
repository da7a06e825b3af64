"""The secrets of one installation: generated once, kept in one file, never overwritten."""

from __future__ import annotations

import base64
import os
import secrets
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

_GENERATED: Mapping[str, Callable[[], str]] = {
    "SVC_INSTANCE_ID": lambda: f"svc-{secrets.token_hex(4)}",
    "SVC_DB_PASSWORD": lambda: secrets.token_hex(32),
    "SVC_RABBITMQ_PASSWORD": lambda: secrets.token_hex(32),
    "SVC_REGISTRY_PASSWORD": lambda: secrets.token_hex(32),
    "WORKSPACE_SSH_GATEWAY_TOKEN": lambda: secrets.token_hex(32),
    "WEB_AUTH_SECRET": lambda: secrets.token_hex(32),
    "SVC_CREDENTIALS_KEY": lambda: base64.b64encode(secrets.token_bytes(32)).decode(),
    "SVC_RECORD_SIGNING_KEY": lambda: base64.b64encode(secrets.token_bytes(32)).decode(),
}
_HEAD = (
    "# Made by the set-up, once. Keep a copy: the database and the sealed accounts cannot be\n"
    "# opened without it. Settings of your own may be added; the environment wins over this file.\n"
)


def ensure_secrets(path: Path) -> list[str]:
    """Add the secrets that are missing from the file and return their names.

    Lines that exist are never changed, whatever they hold. The file is readable by its owner only.
    """
    _close(path)
    present = read_settings(path)
    missing = [name for name in _GENERATED if name not in present]
    if missing:
        text = path.read_text() if path.exists() else _HEAD
        if text and not text.endswith("\n"):
            text += "\n"
        text += "".join(f"{name}={_GENERATED[name]()}\n" for name in missing)
        write_private(path, text)
    return missing


def _close(path: Path) -> None:
    """Have nobody but its owner read the file, and say so when others could."""
    if not path.exists():
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode != 0o600:
        path.chmod(0o600)
    if mode & 0o077:
        print(
            f"warning: {path} had mode {mode:o} and has 600 now; "
            "whoever could read it may know the secrets",
            file=sys.stderr,
        )


def read_settings(path: Path) -> dict[str, str]:
    """The KEY=value lines of a file; comments and blank lines are skipped, quotes taken off."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return {}
    found = {}
    for line in lines:
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and name.strip() and not name.lstrip().startswith("#"):
            value = value.strip()
            if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
                value = value[1:-1]
            found[name.strip()] = value
    return found


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step by one that only its owner may read."""
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        partial.unlink()
        error.filename = str(path)
        raise
    partial.replace(path)
