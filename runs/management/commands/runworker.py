"""``manage.py runworker``: execute and record runs until told to stop."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.checks import SETTINGS
from controlplane.logging import named_process
from controlplane.open_files import allow_many_open_files
from runs.recording.run_worker_setup import run_worker
from workspaces.engines.served_engine import await_served_engine
from workspaces.runtimes.base import LaunchError


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


class Command(BaseCommand):
    """Runs a run worker; the first SIGTERM or SIGINT gives its runs to others, then it ends."""

    help = (
        "Execute and record runs. The first signal hands them over to other workers, a second "
        "stops it at once."
    )
    requires_system_checks = [SETTINGS]

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--max-runs", type=_positive, metavar="N", help="end after N runs (for tests)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until stopped."""
        allow_many_open_files()  # four for each run
        try:
            expected = await_served_engine()
            worker = run_worker(max_runs=options["max_runs"])
        except LaunchError as error:
            raise CommandError(error.message) from error
        worker.expect_engine(expected)
        with named_process(worker_id=worker.worker_id):
            worker.run()
