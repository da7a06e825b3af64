"""``manage.py warmpool``: what waits in the warm pool, and what is to wait in any case."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Count, Q

from workspaces.models import WarmMember, WarmPlan


class Command(BaseCommand):
    """Lists the plans of the pool, or sets how many containers of one are kept waiting."""

    help = (
        "List what the warm pool knows: plans that were started lately, and the containers that "
        "wait for the next start. With a plan and a number: keep that many waiting."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "plan", nargs="?", metavar="PLAN", help="the plan, or the beginning of its digest"
        )
        parser.add_argument(
            "--keep",
            type=int,
            metavar="N",
            help="keep N containers waiting on each engine; 0: none",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """List, or set and tell."""
        plan, keep = options["plan"], options["keep"]
        if (plan is None) != (keep is None):
            raise CommandError("Give a plan and --keep, or neither.")
        if plan is not None:
            self._keep(plan, keep)
        self._list()

    def _keep(self, named: str, number: int) -> None:
        if number < 0:
            raise CommandError("--keep must be 0 or more.")
        begins = Q(key__startswith=named) | Q(key__contains=f"/{named}")
        found = list(WarmPlan.objects.filter(begins).values_list("key", flat=True)[:2])
        if len(found) != 1:
            raise CommandError(
                f"{'No plan' if not found else 'More than one plan'} is called {named}."
            )
        WarmPlan.objects.filter(pk=found[0]).update(keep=number)

    def _list(self) -> None:
        counted = WarmMember.objects.values_list("plan_id", "status").annotate(Count("pk"))
        members = {(plan, status): number for plan, status, number in counted.order_by()}
        demands = WarmPlan.objects.demands()
        for plan, demand in ((each.plan, each.demand) for each in demands):
            release, _, digest = plan.key.rpartition("/")
            waiting = members.get((plan.key, WarmMember.Status.READY), 0)
            in_use = members.get((plan.key, WarmMember.Status.CLAIMED), 0)
            failed = f", failures: {plan.failures} ({plan.error})" if plan.failures else ""
            self.stdout.write(
                f"{digest[:12]}: {plan.shape.get('image')} (release {release}), "
                f"{plan.shape.get('memory_mb')} MB, demand: {demand:.1f}, kept: {plan.keep}, "
                f"waiting: {waiting}, in use: {in_use}{failed}"
            )
        if not demands:
            self.stdout.write(
                "Nothing was started lately that the warm pool could serve; "
                "WORKSPACE_WARM_POOL_SIZE says how many containers may wait."
            )
