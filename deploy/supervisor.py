"""supervisord, except that what has ended is started again at once and not a second later.

supervisord notices an end when it happens, and looks for what is to be started before that: the
next look is up to a second away. A script, run by the virtual environment's Python.
"""

from __future__ import annotations

from supervisor import supervisord


class PromptSupervisor(supervisord.Supervisor):  # type: ignore[misc]  # it comes without types
    """Looks for what is to be started whenever it has seen what ended."""

    def reap(self, once: bool = False, recursionguard: int = 0) -> None:
        """See what has ended; it calls itself for each of several."""
        super().reap(once, recursionguard)
        if recursionguard == 0:
            for group in self.process_groups.values():
                group.transition()


if __name__ == "__main__":
    supervisord.Supervisor = PromptSupervisor
    supervisord.main()
