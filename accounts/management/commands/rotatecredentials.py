"""``manage.py rotatecredentials``: seal accounts and authorities under the present key."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounts.connected import reseal
from accounts.models import ConnectedAccount
from accounts.sealing import SealError, require_key, rotated_too
from controlplane.errors import ServiceUnavailable


class Command(BaseCommand):
    """Goes account by account, so it may be stopped and started again at any moment."""

    help = (
        "Seal the secrets of connected accounts under SVC_CREDENTIALS_KEY. While it runs "
        "SVC_CREDENTIALS_KEY_PREVIOUS holds the key that they were sealed under."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--dry-run", action="store_true", help="print what would be done and change nothing"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Rotate and tell; exit 1 when an account cannot be opened."""
        try:
            require_key()
        except ServiceUnavailable as exc:
            raise CommandError("SVC_CREDENTIALS_KEY is not set.") from exc
        accounts = ConnectedAccount.objects.kept().order_by("id")
        resealed, present, lost = 0, 0, []
        for account_id in accounts.values_list("pk", flat=True).iterator():
            try:
                if reseal(account_id, dry_run=options["dry_run"]):
                    resealed += 1
                else:
                    present += 1
            except SealError:
                lost.append(str(account_id))
        verb = "Would seal" if options["dry_run"] else "Sealed"
        self.stdout.write(
            f"{verb} {resealed} accounts under the current key; {present} already were."
        )
        for what, rotate in rotated_too.items():
            done = rotate(options["dry_run"])
            if any(done):
                self.stdout.write(
                    f"{verb} {done.resealed} {what} under the current key; {done.present} "
                    f"already were, {done.lost} cannot be opened with any known key."
                )
        if lost:
            raise CommandError(
                f"{len(lost)} accounts are sealed under an unknown key, or damaged; their "
                f"owners have to connect them again: {', '.join(lost[:20])}"
            )
