"""``manage.py forgetengine``: declare an engine gone for good."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.errors import ControlPlaneError
from controlplane.spelling import format_timestamp
from controlplane.work.models import heartbeat_stale
from workspaces.lifecycle.engines import (
    EngineSummary,
    engines,
    forget_engine,
    look_at,
    require_forgettable,
    wait_for_workers,
)


class Command(BaseCommand):
    """Shows the engines, or declares one gone; one with a worker that lives is refused."""

    help = (
        "Declare an engine permanently lost: its workspaces fail (engine-gone), and stops and "
        "deletes no longer "
        "wait for it. Without an engine: list the known engines."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("engine", nargs="?", metavar="ENGINE", help="the engine's id")
        parser.add_argument(
            "--list", action="store_true", help="list the engines and do nothing else"
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="print what would fail and change nothing"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """List, or declare and tell."""
        stale = heartbeat_stale()
        engine_id = options["engine"]
        if engine_id is None or options["list"]:
            self._list(engines(stale=stale))
            return
        try:
            if options["dry_run"]:
                engine = look_at(engine_id, stale=stale)
                require_forgettable(engine_id, stale=stale)
                number = engine.running + engine.stopping
            else:
                wait = wait_for_workers(stale)
                number = forget_engine(engine_id, by="manage.py", stale=stale, wait=wait)
        except ControlPlaneError as error:
            raise CommandError(error.detail) from error
        verb = "would fail" if options["dry_run"] else "have failed"
        self.stdout.write(f"Workspaces that {verb} with the engine {engine_id}: {number}.")

    def _list(self, found: list[EngineSummary]) -> None:
        if not found:
            self.stdout.write(
                "No engine is known: nothing is running, and no build worker is alive."
            )
        for engine in found:
            heard = format_timestamp(engine.seen_at) if engine.seen_at else "not known"
            self.stdout.write(
                f"{engine.engine_id}: running: {engine.running}, stopping: {engine.stopping}, "
                f"waiting stops and deletes: {engine.transitions}, "
                f"live build workers: {len(engine.workers)}, last heard: {heard}"
            )
