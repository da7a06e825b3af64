"""``manage.py recordkey``: the public key that records are signed with."""

from __future__ import annotations

import base64
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.checks import SETTINGS
from runs.record import seal


class Command(BaseCommand):
    """Prints the public key, for those who check exports elsewhere."""

    help = "Print the public key of SVC_RECORD_SIGNING_KEY in base64, to check exports with."
    requires_system_checks = [SETTINGS]

    def handle(self, *args: Any, **options: Any) -> None:
        """Print it."""
        public = seal.public_key()
        if public is None:
            raise CommandError("SVC_RECORD_SIGNING_KEY is not set: records are not signed.")
        self.stdout.write(base64.b64encode(public).decode())
