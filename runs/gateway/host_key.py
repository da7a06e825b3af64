"""The gateway's host key: an ed25519 key, made once and the same from then on."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

import asyncssh

ALGORITHM = "ssh-ed25519"
FORBIDDEN_MODE = stat.S_IRWXG | stat.S_IRWXO


class HostKeyError(Exception):
    """There is no usable host key; the message says why, on one line."""


def load_host_key(path: Path) -> asyncssh.SSHKey:
    """Return the host key in ``path``, made first where there is none.

    Of several gateways that start at once with the same path all get the same one. Raises
    ``HostKeyError``.
    """
    try:
        if not path.exists():
            _make(path)
        key = _read(path)
        _show(key, path.with_name(f"{path.name}.pub"))
        return key
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise HostKeyError(f"The host key {path} cannot be read or created: {reason}.") from error


def _read(path: Path) -> asyncssh.SSHKey:
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if mode & FORBIDDEN_MODE:
            raise HostKeyError(
                f"The host key {path} can be read by others (mode {stat.S_IMODE(mode):04o}). "
                f"If nobody has, run: chmod 600 {path}"
            )
        content = file.read(64 * 1024)
    try:
        return asyncssh.import_private_key(content)
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError, ValueError) as error:
        if "passphrase" in str(error).lower():
            raise HostKeyError(
                f"The host key {path} has a passphrase; it must have none."
            ) from None
        raise HostKeyError(
            f"The file {path} is not a private key. Move it away to have a new host key generated; "
            "clients that know the old one will complain."
        ) from error


def _show(key: asyncssh.SSHKey, path: Path) -> None:
    """Put the public half beside the key, for whoever writes ``known_hosts``."""
    line = key.export_public_key()
    with contextlib.suppress(OSError):
        if not path.exists() or path.read_bytes() != line:
            path.write_bytes(line)


def _make(path: Path) -> None:
    """Put a whole key in place at once, unless somebody else was quicker."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(asyncssh.generate_private_key(ALGORITHM).export_private_key())
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename, a link leaves a key alone that has appeared in the meantime.
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        temporary.unlink()
