"""What a set of accounts puts into the user's home: the link that leads a tool to its file.

Everything here is done by a child that has become the user, within a time limit: wherever the user
has let a path lead, nothing is read or written that the user could not read or write.
"""

from __future__ import annotations

import os
from typing import Mapping, Optional

from ..observe.helper import HelperFailed, Send, ask
from ..process.program import Account as User
from .account_store import CODEX, read_codex

_SECONDS = 10.0


class Home:
    """The place in a user's home where a tool looks for its file; `target` is that file."""

    def __init__(self, home: str, env: Mapping[str, str], user: User, target: str) -> None:
        folder = env.get("CODEX_HOME", "")
        self.folder = folder if folder.startswith("/") else os.path.join(home, ".codex")
        self.path = os.path.join(self.folder, CODEX[1])
        self._user = user
        self._target = target

    def found(self) -> Optional[str]:
        """What lies at the place instead of the link, if the tool can use it."""

        def read(send: Send) -> None:
            secret = read_codex(self.path, self._user)
            if secret is not None:
                send({}, secret.encode())

        try:
            messages = ask(self._user, _SECONDS, read)
        except HelperFailed:
            return None
        return messages[0][1].decode() if messages else None

    def link(self) -> str:
        """Have the place lead to the file, whatever is there; returns why that was not possible."""

        def put(send: Send) -> None:
            try:
                os.makedirs(self.folder, mode=0o700, exist_ok=True)
                if self._is_linked():
                    return
                temporary = f"{self.path}.{os.urandom(8).hex()}"
                os.symlink(self._target, temporary)
                try:
                    os.rename(temporary, self.path)
                except OSError:
                    os.unlink(temporary)
                    raise
            except OSError as error:
                send({"failure": error.strerror}, b"")

        try:
            messages = ask(self._user, _SECONDS, put)
        except HelperFailed as failed:
            return str(failed)
        return str(messages[0][0]["failure"]) if messages else ""

    def unlink(self, *, also: Optional[str] = None) -> None:
        """Remove the link, and a file in its place with this very content; leave anything else."""

        def take(send: Send) -> None:
            if self._is_linked() or (also and read_codex(self.path, self._user) == also):
                os.unlink(self.path)

        if not os.path.lexists(self.path):
            return
        try:
            ask(self._user, _SECONDS, take)
        except HelperFailed:
            # It leads nowhere any more.
            pass

    def _is_linked(self) -> bool:
        try:
            return os.readlink(self.path) == self._target
        except OSError:
            return False
