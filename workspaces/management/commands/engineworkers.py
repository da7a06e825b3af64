"""``manage.py engineworkers``: run the workers of every engine that was added."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane.checks import SETTINGS
from controlplane.work.models import heartbeat_stale
from workspaces.engines.worker_keeper import COMMANDS, WorkerKeeper
from workspaces.lifecycle.engines import finish_all


class Command(BaseCommand):
    """Keeps the workers running; the first SIGTERM or SIGINT lets them finish, the second not."""

    help = (
        "Run a build worker and a run worker for every engine that was added (manage.py engine "
        "add), and start them again when they end. The first signal lets them finish their work, "
        "a second ends them at once."
    )
    requires_system_checks = [SETTINGS]

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--only",
            choices=list(COMMANDS),
            help="run only this kind of worker, if each kind has an account of its own",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until stopped."""
        only = options["only"]
        stale = heartbeat_stale()
        WorkerKeeper(
            kinds=(only,) if only else tuple(COMMANDS),
            finish=partial(finish_all, stale=stale),
        ).run()
