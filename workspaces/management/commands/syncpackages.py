"""``manage.py syncpackages``: read the distributions' package indexes now."""

from __future__ import annotations

import threading
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.checks import SETTINGS
from workspaces.families import FAMILIES
from workspaces.packages.reading import configured_engine
from workspaces.packages.sync import PackageSyncError, sync_family


class Command(BaseCommand):
    """Reads each family's index, whatever its age; fails when any of them could not be read."""

    help = (
        "Read the package index of each family through its own package manager, in a container of "
        "its base image. Without --family: those of PACKAGE_SYNC_FAMILIES, else the default family."
    )
    requires_system_checks = [SETTINGS]

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--family",
            action="append",
            choices=list(FAMILIES),
            dest="families",
            help="read only this family; may be given several times",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Read them one after the other and say how each went."""
        families = options["families"] or settings.PACKAGE_SYNC_FAMILIES
        engine = configured_engine()
        failed = []
        for family in dict.fromkeys(families or [settings.SVC_DEFAULT_OS_FAMILY]):
            try:
                packages = sync_family(family, engine=engine, cancelled=threading.Event())
            except PackageSyncError as error:
                self.stderr.write(str(error))
                failed.append(family)
            else:
                self.stdout.write(f"{FAMILIES[family].title}: {packages} packages")
        if failed:
            raise CommandError(f"Not read: {', '.join(failed)}. The previous index stays in use.")
