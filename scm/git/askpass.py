"""What git signs in with, and how it gets to know it: over a descriptor, and in no other way.

A token in an argument, in a variable or in a file can be read by others and outlives its use. So
the token is in a memory file that only ``git`` and what it starts inherit; a credential helper of
one line, which names nothing but the descriptor's number, reads it when the server asks.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from scm.git_urls import SourceUrl, parse_url

_UNSENDABLE = ("\n", "\r", "\0")
_NOEXEC_SEAL = 0x0008
"""``MFD_NOEXEC_SEAL``, which Python does not name yet."""


@dataclass(frozen=True, slots=True)
class GitCredential:
    """A name and a secret for one origin. Raises ``ValueError`` for what git cannot be told."""

    origin: str
    """Scheme, host and port of the only server that is shown the secret: ``https://host``."""
    secret: str = field(repr=False)
    name: str = "x-access-token"

    def __post_init__(self) -> None:
        """Refuse what would end a line of git's protocol for credentials."""
        for text in (self.name, self.secret):
            if not text or any(character in text for character in _UNSENDABLE):
                raise ValueError("A credential is one line of text.")
        if self._origin.scheme not in ("http", "https"):
            raise ValueError("A credential can only be used with an HTTP server.")

    @property
    def _origin(self) -> SourceUrl:
        return parse_url(self.origin.rstrip("/") + "/")

    def is_for(self, source: SourceUrl) -> bool:
        """Whether ``source`` is at this very origin: scheme, host and port are the same."""
        origin = self._origin
        return (origin.scheme, origin.host, origin.port) == (
            source.scheme,
            source.host,
            source.port,
        )

    @contextmanager
    def descriptor(self) -> Iterator[int]:
        """Yield a descriptor of a memory file that says the credential in git's words."""
        descriptor = _memory_file()
        try:
            os.write(descriptor, f"username={self.name}\npassword={self.secret}\n".encode())
            yield descriptor
        finally:
            os.close(descriptor)

    def helper(self, descriptor: int) -> tuple[str, str]:
        """Return the entry of git's configuration that reads ``descriptor``, for this origin only.

        Opening it anew reads it from its beginning, however often git asks.
        """
        origin = self._origin
        command = f'!f() {{ if test "$1" = get; then cat /proc/self/fd/{descriptor}; fi; }}; f'
        return (
            f"credential.{origin.scheme}://{origin.host_in_url}:{origin.port}.helper",
            command,
        )


def _memory_file() -> int:
    """Return a descriptor of an empty file that is on no disk, for nobody to execute."""
    try:
        return os.memfd_create("svc-credential", os.MFD_CLOEXEC | _NOEXEC_SEAL)
    except OSError as error:
        # Linux knows the flag since 6.3, and insists on it where that is configured.
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create("svc-credential", os.MFD_CLOEXEC)
