"""What recorders have to mask because of credentials, while these change under their eyes.

A value is written down here before anybody can read it, and a tool that renews its own writes it
into its file before it is of any use. So whoever looks whether the files have changed, each time
before a text is masked, knows every value that can be in the text.
"""

from __future__ import annotations

import os
import re
from typing import Dict, List, Mapping, Optional, Tuple

from ..config import Config
from ..process.program import Account as User
from .account_store import CODEX, VALUES, path_of, read_codex, read_renewable, read_values
from .document import decoded, lines_of, tokens_of
from .home import Home

_MAX_RENEWED = 64
_MAX_FILES = 4
# The file is the user's: no more of it is believed than that it may hold tokens. Otherwise what is
# recorded could be made unreadable with it.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{20,8192}")

_Version = Optional[Tuple[int, int, int]]


def live_values(config: Config, user: User) -> Optional[LiveValues]:
    """What a recorder of the workspace masks besides; None when it has no credentials."""
    if config.credentials is None:
        return None
    return LiveValues(config.credentials, config.home, config.env, user)


class LiveValues:
    """All values that were delivered, or made by a tool, since this was made."""

    def __init__(self, place: str, home: str, env: Mapping[str, str], user: User) -> None:
        self._place = place
        self._user = user
        self._home = Home(home, env, user, path_of(place, *CODEX))
        self._delivered_path = os.path.join(place, VALUES)
        self._renewed_paths = (path_of(place, *CODEX), self._home.path)
        self._seen: Dict[str, _Version] = {}
        self._delivered: Dict[bytes, None] = {}
        self._renewed: List[bytes] = []
        self._files: List[str] = []

    def changed(self) -> bool:
        """Whether there are values that there were not at the last call; costs a few `stat`."""
        known = len(self._delivered), list(self._renewed), list(self._files)
        if self._is_new(self._delivered_path):
            self._delivered.update(dict.fromkeys(read_values(self._place)))
        for path in self._renewed_paths:
            if self._is_new(path):
                self._take(self._renewed_at(path))
        return known != (len(self._delivered), self._renewed, self._files)

    def values(self) -> List[bytes]:
        """All of them."""
        lines = [line for file in self._files for line in lines_of(file)]
        return [*self._delivered, *self._renewed, *lines]

    def _renewed_at(self, path: str) -> Optional[str]:
        if path != self._home.path:
            return read_renewable(self._place, self._user)
        # Root must not follow where the user lets a path lead: both are opened as they are.
        try:
            folder = os.open(self._home.folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
        except OSError:
            return None
        try:
            return read_codex(CODEX[1], self._user, folder)
        finally:
            os.close(folder)

    def _take(self, secret: Optional[str]) -> None:
        if secret is None:
            return
        for token in filter(_TOKEN.fullmatch, tokens_of(decoded(secret))):
            value = token.encode()
            if value not in self._delivered and value not in self._renewed:
                self._renewed.append(value)
        del self._renewed[:-_MAX_RENEWED]
        if secret not in self._files:
            self._files.append(secret)
        del self._files[:-_MAX_FILES]

    def _is_new(self, path: str) -> bool:
        version: _Version = None
        try:
            found = os.lstat(path)
            version = found.st_ino, found.st_mtime_ns, found.st_size
        except OSError:
            pass
        is_new = version is not None and version != self._seen.get(path)
        self._seen[path] = version
        return is_new
