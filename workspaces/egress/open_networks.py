"""The networks that the proxy serves, and what is open in each of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from workspaces.egress import name_server
from workspaces.egress.host_policy import Policy
from workspaces.egress.name_addresses import AskedNames

if TYPE_CHECKING:  # what makes certificates is loaded with the first workspace
    from workspaces.egress.bound.authorities import Authority

StillAllowed = Callable[[Policy], bool]
"""Whether another policy would allow a connection in the same way."""


class Revoked(Exception):
    """The policy was replaced, and what was allowed is not any more; or nothing may pass."""


@dataclass(eq=False, slots=True)
class _Open:
    task: asyncio.Task[object]
    still_allowed: StillAllowed
    revoked: bool = False


@dataclass(slots=True)
class Network:
    """The network of one workspace or build with a policy.

    ``placeholders`` are those of its bound accounts; ``no_authority`` says why there is none.
    """

    attempt_id: UUID
    policy: Policy
    owner_user_id: str = ""
    placeholders: Mapping[UUID, bytes] = field(default_factory=dict)
    authority: Authority | None = None
    no_authority: str = "The workspace has no certificate authority."
    revision: int = 0
    names: AskedNames = field(default_factory=AskedNames)
    queries: name_server.QueryAllowance = field(default_factory=name_server.QueryAllowance)
    ended: bool = False
    is_cut_off: bool = False
    """Nobody knows whether it has ended, or has another policy: nothing passes until then."""
    _open: set[_Open] = field(default_factory=set)

    def end(self) -> None:
        """Let nothing pass from now on: the record of the workspace ends."""
        self.ended = True
        self._close_all()

    def cut_off(self, is_cut_off: bool) -> None:
        """Let nothing pass while the database is not heard, or pass again."""
        self.is_cut_off = is_cut_off
        if is_cut_off:
            self._close_all()

    def _close_all(self) -> None:
        for one in self._open:
            if not one.revoked:
                one.revoked = True
                one.task.cancel()

    @property
    def is_stopped(self) -> bool:
        """Whether nothing may pass."""
        return self.ended or self.is_cut_off

    @property
    def is_quiet(self) -> bool:
        """Whether nothing passes, nor will."""
        return self.ended and not self.is_open

    @property
    def is_open(self) -> bool:
        """Whether anything passes."""
        return bool(self._open)

    def replace_policy(self, policy: Policy, revision: int) -> bool:
        """Decide by another policy from now on, and end what that does not allow.

        False when it is the one that is known.
        """
        if revision == self.revision:
            return False
        self.policy, self.revision = policy, revision
        for one in self._open:
            if not one.still_allowed(policy) and not one.revoked:
                one.revoked = True
                one.task.cancel()
        return True

    @contextlib.contextmanager
    def while_allowed(self, still_allowed: StillAllowed) -> Iterator[None]:
        """Have the present task end with ``Revoked`` when another policy does not allow it.

        To be entered before anything else is waited for since the policy was asked.
        """
        task = asyncio.current_task()
        assert task is not None
        if self.is_stopped:
            raise Revoked
        one = _Open(task, still_allowed)
        self._open.add(one)
        try:
            yield
        except asyncio.CancelledError:
            if not one.revoked:
                raise
            task.uncancel()
            raise Revoked from None
        finally:
            self._open.discard(one)


Whose = Callable[[str], Awaitable[Network | None]]
"""Tells the network whose gateway has an address; None when there is none, or nobody knows."""
