"""The system account a service runs as: never root when a proper account exists."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Account:
    """Who a service runs as; the caller's own account unless the caller is root."""

    name: str
    uid: int
    gid: int

    @classmethod
    def for_service(cls, *names: str) -> Account:
        """The first of these accounts that exists when we are root, else our own."""
        if os.geteuid() == 0:
            for name in names:
                try:
                    entry = pwd.getpwnam(name)
                except KeyError:
                    continue
                return cls(name=name, uid=entry.pw_uid, gid=entry.pw_gid)
        return cls(name="", uid=os.geteuid(), gid=os.getegid())

    @property
    def switched(self) -> bool:
        """True when the service runs as somebody else than the caller."""
        return self.uid != os.geteuid()

    def command(self, *argv: str | Path) -> list[str]:
        """The command, run as this account: no login shell, no su, no environment of its own."""
        plain = [str(argument) for argument in argv]
        if not self.switched:
            return plain
        return [
            "setpriv",
            f"--reuid={self.uid}",
            f"--regid={self.gid}",
            "--init-groups",
            "--",
            *plain,
        ]

    def own(self, path: Path, mode: int) -> None:
        """Make a directory or file this account's own, with the given mode."""
        if self.switched:
            os.chown(path, self.uid, self.gid)
        path.chmod(mode)

    def make_directory(self, path: Path, mode: int = 0o700) -> Path:
        """The directory, created when absent, owned by this account."""
        path.mkdir(parents=True, exist_ok=True)
        self.own(path, mode)
        return path

    def write(self, path: Path, text: str, mode: int = 0o600) -> None:
        """Write a file of this account's that nobody else may read, not even for a moment."""
        partial = path.with_name(path.name + ".partial")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        self.own(partial, mode)
        partial.replace(path)


def first_closed_parent(directory: Path) -> Path | None:
    """The first parent of `directory` that other accounts may not pass through, or None."""
    resolved = directory.resolve()
    for parent in [*reversed(resolved.parents), resolved]:
        if parent.exists() and not parent.stat().st_mode & 0o001:
            return parent
    return None
