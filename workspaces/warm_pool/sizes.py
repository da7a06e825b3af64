"""How many containers of each plan are to wait."""

from __future__ import annotations

import math
from collections.abc import Sequence

from workspaces.models import PlanDemand

LEAST_DEMAND = 0.1
"""Below that nothing waits any more: one start, and then none for half an hour."""


def targets(demands: Sequence[PlanDemand], *, size: int, memory_mb: int) -> dict[str, int]:
    """Return how many of each plan are to wait: as many as were started of late.

    All together are at most ``size``, and have limits of at most ``memory_mb`` (0: any). What an
    operator wants kept comes first, then what starts most.
    """
    wanted = {each.plan.key: 0 for each in demands}
    left, memory = size, memory_mb

    def raise_to(number: int, of: PlanDemand) -> None:
        nonlocal left, memory
        key, one = of.plan.key, max(1, int(of.plan.shape["memory_mb"]))
        room = min(left, memory // one) if memory_mb else left
        added = max(0, min(number - wanted[key], room))
        wanted[key] += added
        left -= added
        memory -= added * one

    for each in sorted(demands, key=lambda one: -one.plan.keep):
        raise_to(each.plan.keep, each)
    for each in sorted(demands, key=lambda one: -one.demand):
        if each.demand >= LEAST_DEMAND:
            # Two starts a moment ago are a little less than two.
            raise_to(math.ceil(each.demand - 0.05), each)
    return wanted
