"""What a container has already done, remembered across its restarts.

One empty file for each finished piece of work, written durably after it: a crash repeats the piece
that it interrupted and nothing before it.
"""

from __future__ import annotations

import os

from ..status_file import replace_file

SETUP_DONE = "setup-done"
DOTFILES_DONE = "dotfiles-done"
RECORD_LEFT = "record-left"
"""The last life has left the record in order, for the next one to go on with."""


def setup_step_done(index: int) -> str:
    """The marker of one setup step."""
    return f"setup-{index}-done"


class Markers:
    """The markers in the agent's state folder."""

    def __init__(self, state_directory: str) -> None:
        self._directory = state_directory

    def has(self, name: str) -> bool:
        """Whether that work was finished in an earlier boot or earlier in this one."""
        return os.path.exists(os.path.join(self._directory, name))

    def add(self, name: str) -> None:
        """Remember durably that the work is finished."""
        replace_file(self._directory, name, b"")

    def remove(self, name: str) -> None:
        """Forget it again."""
        try:
            os.unlink(os.path.join(self._directory, name))
        except FileNotFoundError:
            pass
