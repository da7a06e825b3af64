"""``manage.py egressproxy``: be the only way out of workspaces with an egress policy."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import structlog
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from controlplane.logging import named_process
from controlplane.metrics.services import Flusher
from controlplane.open_files import allow_many_open_files
from workspaces.egress.allowance import Allowance
from workspaces.egress.decided.journal import Journal
from workspaces.egress.decisions import Decision, DecisionLog
from workspaces.egress.dialling import Dialler
from workspaces.egress.known_networks import KnownNetworks
from workspaces.egress.name_addresses import ReachableAddresses
from workspaces.egress.proxy import EgressProxy
from workspaces.runtimes.docker.networks import egress_prefix

ALIVE_EVERY_SECONDS = 5.0

log = structlog.get_logger(__name__)


class Command(BaseCommand):
    """Runs the egress proxy; it needs the network of the engine's machine, and the database."""

    help = (
        "Resolve names and forward connections for workspaces that have an egress policy, "
        "as far as the policy allows. Runs on the engine's machine."
    )
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve until stopped; without a port it only waits for that."""
        allow_many_open_files()  # two for each connection
        proxy_id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        if not settings.SVC_EGRESS_PORT:
            with named_process(egress_proxy_id=proxy_id):
                asyncio.run(_stopped("SVC_EGRESS_PORT is 0"))
            return
        try:
            with (
                named_process(egress_proxy_id=proxy_id),
                _counts(),
                _journal(settings.SVC_DATA_DIR / "egress-journal") as journal,
                DecisionLog() as decisions,
            ):
                asyncio.run(_serve(decisions, journal, settings.SVC_EGRESS_PORT))
        except OSError as error:
            place = f"port {settings.SVC_EGRESS_PORT}"
            raise CommandError(f"Cannot listen at {place}: {error.strerror or error}.") from error


@contextlib.contextmanager
def _counts() -> Iterator[None]:
    """Have what is counted written, in the end what the last pass has stored."""
    flusher = Flusher()
    flusher.start()
    try:
        yield
    finally:
        flusher.stop()


def _journal(folder: Path) -> Journal:
    try:
        return Journal(folder)
    except OSError as error:
        raise CommandError(
            f"The journal of decisions in {folder} cannot be written: {error.strerror or error}. "
            "Nothing passes unless it is written there first."
        ) from error


def _stop_event() -> asyncio.Event:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    return stopped


async def _stopped(reason: str) -> None:
    stopped = _stop_event()
    log.info("egress_proxy_off", reason=reason)
    await stopped.wait()


def _alive_file() -> Callable[[], None]:
    """Return what shows probes that the database is heard, at most every few seconds."""
    path, shown = settings.WORKER_ALIVE_FILE, Allowance(1.0, 1 / ALIVE_EVERY_SECONDS)

    def show() -> None:
        if path and shown.take():
            try:
                Path(path).touch()
            except OSError as error:
                log.warning("alive_file_not_written", reason=str(error))

    return show


async def _serve(decisions: DecisionLog, journal: Journal, port: int) -> None:
    stopped = _stop_event()

    def decided(decision: Decision) -> None:
        journal.add(decision)  # raises where nothing may pass that is not written
        decisions.add(decision)

    networks = KnownNetworks(egress_prefix(settings.SVC_INSTANCE_ID), journal, _alive_file())
    reachable = ReachableAddresses(
        map(IPv4Network, settings.SVC_WORKSPACE_ALLOWED_NETWORKS),
        IPv4Network(settings.SVC_WORKSPACE_NETWORK_POOL),
    )
    dialler = Dialler(reachable, settings.SVC_EGRESS_RESOLVERS)
    async with EgressProxy(networks.whose, dialler, decided).serving(port):
        log.info("egress_proxy_started", port=port, instance=settings.SVC_INSTANCE_ID)
        following = asyncio.create_task(networks.follow())
        await stopped.wait()
        following.cancel()
    log.info("egress_proxy_stopped")
