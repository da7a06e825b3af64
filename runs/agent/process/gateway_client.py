"""Who takes part in a run from outside, as the run's loop sees it."""

from __future__ import annotations

from typing import Callable, List, Optional, Tuple

Watch = Tuple[int, int, Callable[[int], None]]
"""A descriptor, the events to wait for, and who is told which of them have come."""


class Client:
    """Who takes part in a run from outside; this one is nobody."""

    def is_over(self) -> bool:
        """Whether nothing is asked for any more: the run ends with what it has started."""
        return True

    def accepts(self) -> bool:
        """Whether more output may be read for the client."""
        return True

    def watches(self, accepts: bool) -> List[Watch]:
        """Descriptors to wait for. `accepts`: whether input can be taken now."""
        return []

    def deadline(self) -> Optional[float]:
        """When `tick` must be called next (monotonic seconds), if nothing happens before."""
        return None

    def tick(self) -> None:
        """The loop has turned: do what is due, and send what has come together."""

    def stop(self) -> None:
        """Everything of the run is being ended."""
