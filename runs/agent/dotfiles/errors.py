"""The one error of this package."""

from __future__ import annotations


class DotfilesError(Exception):
    """The checkout cannot be applied; the message names the file and says what to do."""
