"""What can go wrong while the system is set up, in words for the person at the terminal."""

from __future__ import annotations


class SetupError(Exception):
    """The set-up cannot go on. The message says what is wrong and what to do next."""


class MissingPartsError(SetupError):
    """Programs are missing that the set-up may not or cannot install; names all of them at once."""


class StartError(SetupError):
    """A service of ours did not come up; the message carries the end of its log."""
