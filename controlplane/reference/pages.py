"""Pages of ``docs`` that are made from the code, and the commands that make or check them."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser


class ReferenceCommand(BaseCommand, ABC):
    """Writes one page, or tells whether it is what the code says."""

    page: ClassVar[str]
    """The page's path in the checkout."""
    requires_system_checks = ()

    @abstractmethod
    def text(self) -> str:
        """Return the page as it has to be."""

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--check",
            action="store_true",
            help=f"change nothing; exit 1 when {self.page} is not what the code says",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Write the page or check it."""
        path = Path(settings.BASE_DIR) / self.page
        wanted = self.text()
        if not options["check"]:
            path.write_text(wanted)
            return
        present = path.read_text() if path.exists() else ""
        if present != wanted:
            told = difflib.unified_diff(
                present.splitlines(), wanted.splitlines(), self.page, "the code", lineterm="", n=1
            )
            self.stdout.write("\n".join(told))
            raise CommandError(f"{self.page} is not what the code says: make schema")
