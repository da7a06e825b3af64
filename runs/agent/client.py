"""Who takes part in a run from outside, as the run's loop sees it."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple


class Client:
    """Who takes part in a run from outside; this one is nobody."""

    def accepts(self, *, at_the_end: bool) -> bool:
        """Whether more output may be read for the client; at the end of a run it must take more."""
        return True

    def output(self, stream: int) -> Optional[Callable[[bytes], None]]:
        """What is to be given a copy of a stream."""
        return None

    def started(self) -> None:
        """The record exists, and the program has been started or could not be."""

    def poll_events(self, read: bool) -> List[Tuple[int, int]]:
        """Descriptors to wait for. `read`: whether input can be taken now."""
        return []

    def handle(self, fd: int, events: int) -> None:
        """One of them is ready."""

    def ended(self, ending: Dict[str, Any]) -> None:
        """The leader has ended and its output has been read."""
