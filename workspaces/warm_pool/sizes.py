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
    operator wants kept comes first. Of the rest each plan gets one, what starts most first, then a
    second one, and so on: the first one that waits is of more use than the next ones.
    """
    wanted = {each.plan.key: 0 for each in demands}
    left, memory = size, memory_mb

    def add_one(each: PlanDemand) -> None:
        nonlocal left, memory
        limit = int(each.plan.shape["memory_mb"])
        if left and (not memory_mb or limit <= memory):
            wanted[each.plan.key] += 1
            left -= 1
            memory -= limit

    for each in sorted(demands, key=lambda one: -one.plan.keep):
        for _ in range(min(each.plan.keep, size)):
            add_one(each)
    for number in range(1, size + 1):
        for each in sorted(demands, key=lambda one: -one.demand):
            if wanted[each.plan.key] < number <= _started(each.demand):
                add_one(each)
    return wanted


def _started(demand: float) -> int:
    # Two starts a moment ago are a little less than two.
    return math.ceil(demand - 0.05) if demand >= LEAST_DEMAND else 0
