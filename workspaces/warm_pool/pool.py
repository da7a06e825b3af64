"""Filling the warm pool of one engine, and removing from it what serves nobody.

Any worker of the engine may do it, one at a time. A member is a row before it is a container, so a
crash at any point leaves a row whose container is as it should be, or something that the next pass
or the reconciler removes.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from uuid import UUID

import structlog
from django.db import DatabaseError, IntegrityError, InterfaceError

from controlplane.database.locks import try_advisory_lock
from controlplane.metrics.families import WARM_CLAIMS, WARM_EVENTS
from controlplane.work.stopping import StopEvent
from workspaces.models import Engine, PlanDemand, WarmMember, WarmPlan
from workspaces.runtimes.base import (
    ClaimedMember,
    LaunchError,
    LaunchRequest,
    ObservedRuntime,
    PoolingAdapter,
)
from workspaces.warm_pool.shapes import is_served, key_of, member_request, shape_of
from workspaces.warm_pool.sizes import LEAST_DEMAND, targets

log = structlog.get_logger(__name__)


class WarmPool:
    """The pool of one engine as one worker sees it. Safe to use from several threads.

    ``size``: how many containers wait at the most; 0: none, and there is no pool. ``memory_mb``:
    what their limits come to at the most; 0: any. ``require_isolation`` returns when a workspace
    with a network reaches nothing that is not its own. ``pause`` is how many seconds a pass waits
    before it starts containers: whoever has just taken one has something to do first.
    """

    def __init__(
        self,
        adapter: PoolingAdapter,
        *,
        instance_id: str,
        size: int,
        memory_mb: int,
        timeout: float,
        require_isolation: Callable[[], None],
        pause: float = 0.0,
    ) -> None:
        self._adapter = adapter
        self._instance_id = instance_id
        self._size = size
        self._memory_mb = memory_mb
        self._timeout = timeout
        self._require_isolation = require_isolation
        self._pause = pause
        self._engine_id = ""
        self.woken = threading.Event()
        """Set when a pass has something to do."""

    def claim(
        self,
        request: LaunchRequest,
        ask: Callable[[Callable[[], WarmMember | None]], WarmMember | None],
    ) -> ClaimedMember | None:
        """Give the run a container that waits; None when none does, or none could serve it.

        ``ask`` asks the database. A run has one member at the most, whoever launches it: another
        worker that does gets the same one, and so does one that slept and is not wanted any more.
        """
        if not self._serves(request) or not self._engine_id:
            return None
        key, members = key_of(self._adapter, request), WarmMember.objects

        def claim() -> WarmMember | None:
            earlier = members.filter(run_id=request.run_id)
            if request.attempt_count > 1 and (found := earlier.first()) is not None:
                return found
            try:
                return members.claim(key=key, engine_id=self._engine_id, run_id=request.run_id)
            except IntegrityError:
                return earlier.first()  # claimed a moment ago

        member = ask(claim)
        WARM_CLAIMS.count(outcome="claimed" if member else "empty")
        return None if member is None else ClaimedMember(member.pk, member.engine_id)

    def note_start(self, request: LaunchRequest) -> None:
        """Count the start, and have a container made in the place of the one that it took.

        Never raises: the workspace runs.
        """
        if not self._serves(request):
            return
        try:
            WarmPlan.objects.note_start(key_of(self._adapter, request), shape_of(request))
        except (DatabaseError, InterfaceError):
            log.warning("warm_start_not_counted", run_id=str(request.run_id))
        self.woken.set()

    def _serves(self, request: LaunchRequest) -> bool:
        return self._size > 0 and is_served(request)

    def keep(self, stopped: StopEvent) -> None:
        """Bring the pool to its size once, unless another worker is at it."""
        if not self._size and not WarmMember.objects.exists():
            return
        self._engine_id = engine_id = self._adapter.engine_id()
        with try_advisory_lock(f"warm-pool:{self._instance_id}:{engine_id}") as held:
            if not held:
                return
            demands = self._demands()
            # An engine that is drained is to become empty.
            size = self._size if Engine.objects.take_starts(engine_id) else 0
            wanted = targets(demands, size=size, memory_mb=self._memory_mb)
            waiting = self._retire(engine_id, wanted)
            missing = {
                each.plan: wanted[each.plan.key] - waiting[each.plan.key]
                for each in demands
                if each.due and wanted[each.plan.key] > waiting[each.plan.key]
            }
            if missing:
                stopped.wait(self._pause)
            for plan, number in missing.items():
                for _ in range(number):
                    if stopped.is_set() or not self._add(plan, engine_id, stopped):
                        break

    def _demands(self) -> list[PlanDemand]:
        """Return the plans that serve somebody, and forget the others once they have no members.

        Those of another release, or of other options, are nobody's any more.
        """
        demands = []
        for each in WarmPlan.objects.demands():
            if self._is_current(each.plan) and (each.plan.keep or each.demand >= LEAST_DEMAND):
                demands.append(each)
            elif not each.plan.members.exists():
                each.plan.delete()
            elif each.plan.failures:
                # Nobody tries it again, so that nothing else would end them.
                WarmPlan.objects.worked(each.plan.key)
        return demands

    def _is_current(self, plan: WarmPlan) -> bool:
        try:
            return key_of(self._adapter, self._request(plan, UUID(int=0))) == plan.key
        except (KeyError, TypeError):
            return False

    def _request(self, plan: WarmPlan, member_id: UUID) -> LaunchRequest:
        return member_request(
            plan.shape, member_id, instance_id=self._instance_id, timeout=self._timeout
        )

    def _retire(self, engine_id: str, wanted: dict[str, int]) -> Counter[str]:
        """Remove what has ended, is too much or of no plan; return how many wait of each plan."""
        # The rows first: a container that is missing from the later list is really gone.
        rows = list(WarmMember.objects.filter(engine_id=engine_id).order_by("-pk"))
        observed = {found.run_id: found for found in self._adapter.list()} if rows else {}
        waiting: Counter[str] = Counter()
        for row in rows:
            if row.status == WarmMember.Status.CLAIMED:
                self._look_at_claimed(row, observed)
                continue
            found = observed.get(row.pk)
            waits = row.status == WarmMember.Status.READY and found is not None and found.running
            if waits and waiting[row.plan_id] < wanted.get(row.plan_id, 0):
                waiting[row.plan_id] += 1
            elif WarmMember.objects.give_up(row):
                WARM_EVENTS.count(outcome="retired" if waits else "lost")
                self._adapter.remove(row.pk)
        return waiting

    def _look_at_claimed(self, row: WarmMember, observed: Mapping[UUID, ObservedRuntime]) -> None:
        """Forget what is gone; remove what its run did not take and has another container for."""
        if row.pk not in observed and row.run_id not in observed:
            WarmMember.objects.give_up(row)
        elif row.pk in observed and row.run_id in observed and WarmMember.objects.give_up(row):
            self._adapter.remove(row.pk)

    def _add(self, plan: WarmPlan, engine_id: str, stopped: StopEvent) -> bool:
        """Have one more container wait; False when that did not work."""
        member = WarmMember.objects.create(plan=plan, engine_id=engine_id)
        try:
            request = self._request(plan, member.pk)
            if request.outbound:
                self._require_isolation()
            self._adapter.launch(request, cancelled=stopped)
        except LaunchError as error:
            WarmMember.objects.give_up(member)
            if not stopped.is_set():
                WarmPlan.objects.failed(plan.key, error.message)
                WARM_EVENTS.count(outcome="failed")
                log.warning("warm_member_failed", code=error.code, reason=error.message)
            return False
        if not WarmMember.objects.ready(member.pk):
            self._adapter.remove(member.pk)
            return False
        WarmPlan.objects.worked(plan.key)
        WARM_EVENTS.count(outcome="ready")
        return True
