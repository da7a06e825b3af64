"""``manage.py verifyrun RUN``: check the record of a run."""

from __future__ import annotations

import uuid
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.checks import SETTINGS
from runs.models import Run
from runs.record import signatures
from runs.record.verify import verify_run


class Command(BaseCommand):
    """Computes a record anew from its rows; ends with 1 and names the first event that is wrong."""

    help = "Check the record of a run: chain, checkpoints, loss spans, seal and signature."
    requires_system_checks = [SETTINGS]

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("run", type=uuid.UUID, metavar="RUN", help="the id of the run")
        parser.add_argument(
            "--public-key",
            metavar="BASE64",
            help="the key that must have signed it (default: that of SVC_RECORD_SIGNING_KEY)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Check and say what was found."""
        key = None
        if options["public_key"]:
            try:
                key = signatures.decode_key(options["public_key"])
            except ValueError as exc:
                raise CommandError(f"--public-key: {exc}") from exc
        run = Run.objects.filter(pk=options["run"]).first()
        if run is None:
            raise CommandError(f"There is no run {options['run']}.")
        verdict = verify_run(run, public_key=key)
        if not verdict.ok:
            raise CommandError(f"The record of run {run.pk} is not sound: {verdict.message}")
        self.stdout.write(f"The record of run {run.pk} is sound: {verdict.message}")
