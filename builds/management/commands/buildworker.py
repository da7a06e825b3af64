"""``manage.py buildworker``: take build jobs from the queue until told to stop."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from builds.build_worker_setup import build_worker
from builds.images.work_folders import NoWorkplaceError
from controlplane.checks import SETTINGS
from controlplane.logging import named_process
from workspaces.engines.served_engine import await_served_engine
from workspaces.runtimes.base import LaunchError


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


class Command(BaseCommand):
    """Runs a build worker; the first SIGTERM or SIGINT drains it, the second stops it at once."""

    help = (
        "Claim build jobs from the queue: build, publish and launch. The first signal drains "
        "the worker, a second stops it at once."
    )
    requires_system_checks = [SETTINGS]

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--max-jobs", type=_positive, metavar="N", help="end after N jobs (for tests)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until stopped."""
        try:
            expected = await_served_engine()
            worker = build_worker(max_jobs=options["max_jobs"])
        except NoWorkplaceError as error:
            raise CommandError(str(error)) from error
        except LaunchError as error:
            raise CommandError(error.message) from error
        worker.expect_engine(expected)
        with named_process(worker_id=worker.worker_id):
            worker.run()
