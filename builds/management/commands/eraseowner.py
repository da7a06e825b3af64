"""``manage.py eraseowner``: take away everything of one owner, and say what went."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from builds.erasure import Erased, StillThere, erase_owner, would_erase
from controlplane.checks import SETTINGS
from runs.record.retention import PruneUnderWay


class Command(BaseCommand):
    """Erases an owner. Doing it again goes on where an earlier one stopped."""

    help = (
        "Erase an owner: keys, accounts and profiles, workspaces with their containers and "
        "volumes, runs and records, images in the registry. Needs build and run workers."
    )
    requires_system_checks = [SETTINGS]

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("owner", help="the owner, as in ownerUserId")
        parser.add_argument(
            "--dry-run", action="store_true", help="print what would be removed and change nothing"
        )
        parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
        parser.add_argument(
            "--wait",
            type=float,
            default=600,
            metavar="SECONDS",
            help="how long to wait for workspaces and runs to end (600)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Erase and tell."""
        owner = options["owner"]
        if options["dry_run"]:
            self._tell("Would erase", would_erase(owner))
            return
        if not options["yes"]:
            self._ask(owner)
        erased = Erased()
        try:
            erase_owner(owner, wait_seconds=options["wait"], erased=erased)
        except StillThere as exc:
            self._tell("Erased so far", erased)
            raise CommandError(str(exc)) from exc
        except PruneUnderWay as exc:
            raise CommandError("pruneruns is running; try again when it has finished.") from exc
        self._tell("Erased", erased)

    def _ask(self, owner: str) -> None:
        if not sys.stdin.isatty():
            raise CommandError("There is no terminal to ask for confirmation on: add --yes.")
        if (
            input(
                f"Everything that belongs to {owner} will be removed permanently. Repeat the name: "
            )
            != owner
        ):
            raise CommandError("Nothing was erased.")

    def _tell(self, what: str, erased: Erased) -> None:
        self.stdout.write(f"{what}:")
        for name, count in sorted(erased.rows.items()):
            if count:
                self.stdout.write(f"  {name}: {count}")
        for tag in erased.tags:
            self.stdout.write(f"  tag {tag}")
        for tag in erased.kept_tags:
            self.stdout.write(f"  left: tag {tag}")
