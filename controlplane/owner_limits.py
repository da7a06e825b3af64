"""How much one owner may have; each limit is a setting, and 0 means that there is none.

Whoever makes something that is limited takes :func:`lock_owner` first, in the transaction that
makes it, then counts: of any number of requests at once, none sees a count that another one is just
changing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.conf import settings

from controlplane.database.locks import lock_until_commit
from controlplane.errors import Fault, OwnerLimitReached


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLimit:
    """One limit. ``setting`` has the maximum, ``present`` counts what an owner has of it."""

    setting: str
    name: str
    code: str
    what: str
    present: Callable[[str], int]

    @property
    def maximum(self) -> int:
        """The most that an owner may have; 0: no limit."""
        value: int = getattr(settings, self.setting)
        return value


def lock_owner(owner_user_id: str) -> None:
    """Let nobody else count or add to what the owner has until the transaction ends."""
    lock_until_commit(f"owner:{owner_user_id}")


def require_room(owner_user_id: str, limits: Sequence[OwnerLimit]) -> None:
    """Raise ``OwnerLimitReached`` when the owner has no room for one more; all limits are named.

    Locks the owner, unless nothing is limited.
    """
    limited = [limit for limit in limits if limit.maximum]
    if not limited:
        return
    lock_owner(owner_user_id)
    reached = [(limit, limit.present(owner_user_id)) for limit in limited]
    reached = [(limit, present) for limit, present in reached if present >= limit.maximum]
    if not reached:
        return
    faults = [
        Fault(
            limit.code,
            f"The owner has {present} {limit.what}; this installation allows {limit.maximum} "
            f"({limit.setting}).",
        )
        for limit, present in reached
    ]
    error = OwnerLimitReached(" ".join(fault.detail for fault in faults), errors=faults)
    error.members["limits"] = [
        {"name": limit.name, "maximum": limit.maximum, "present": present}
        for limit, present in reached
    ]
    raise error
