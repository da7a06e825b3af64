"""``manage.py pruneruns``: remove the records of runs that have ended."""

from __future__ import annotations

import argparse
import datetime
import uuid
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.checks import SETTINGS
from runs.record.retention import PruneUnderWay, prunable, prune

_LONGEST_DAYS = 36_500


def _days(text: str) -> datetime.timedelta:
    days = float(text)
    if not 0 <= days <= _LONGEST_DAYS:
        raise argparse.ArgumentTypeError(f"must be from 0 to {_LONGEST_DAYS}")
    return datetime.timedelta(days=days)


class Command(BaseCommand):
    """Removes records and says what it removed. Runs that are open are never touched."""

    help = (
        "Remove the records of runs that have ended. The run, its seal and signature "
        "stay; partitions that become empty are dropped."
    )
    requires_system_checks = [SETTINGS]

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--older-than",
            type=_days,
            metavar="DAYS",
            help="of runs that ended at least this long ago",
        )
        parser.add_argument("--run", type=uuid.UUID, metavar="ID", help="of this run only")
        parser.add_argument(
            "--dry-run", action="store_true", help="print what would be removed and remove nothing"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Remove and tell."""
        older_than, run_id = options["older_than"], options["run"]
        if older_than is None and run_id is None:
            raise CommandError("Name the runs: --older-than DAYS, --run ID, or both.")
        numbers = prunable(older_than=older_than, run_id=run_id)
        if run_id is not None and not numbers:
            raise CommandError(f"Run {run_id} has no record that can be removed.")
        try:
            removed = prune(numbers, dry_run=options["dry_run"])
        except PruneUnderWay as exc:
            raise CommandError("Another pruneruns is running.") from exc
        verb = "Would remove" if options["dry_run"] else "Removed"
        self.stdout.write(
            f"{verb} the records of {removed.runs} runs: {removed.events} events, "
            f"{removed.bytes} bytes, {len(removed.partitions)} whole partitions"
            + (f" ({', '.join(removed.partitions)})" if removed.partitions else "")
            + "."
        )
        if removed.kept_partitions:
            names = ", ".join(removed.kept_partitions)
            self.stdout.write(f"In use, so their records were removed row by row: {names}.")
        if removed.left_partitions:
            names = ", ".join(removed.left_partitions)
            self.stdout.write(f"Still being read; the next pruneruns drops them: {names}.")
