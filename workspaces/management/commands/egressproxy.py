"""``manage.py egressproxy``: be the only way out of workspaces with an egress policy."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
from ipaddress import IPv4Network
from typing import Any

import structlog
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from controlplane.logging import named_process
from controlplane.open_files import allow_many_open_files
from workspaces.egress.decisions import DecisionLog
from workspaces.egress.dialling import Dialler
from workspaces.egress.known_networks import KnownNetworks
from workspaces.egress.name_addresses import ReachableAddresses
from workspaces.egress.proxy import EgressProxy
from workspaces.runtimes.docker.networks import egress_prefix

log = structlog.get_logger(__name__)


class Command(BaseCommand):
    """Runs the egress proxy; it needs the network of the engine's machine, and the database."""

    help = (
        "Answer the names and pass on the connections of workspaces that have an egress policy, "
        "as far as the policy allows. Runs on the engine's machine."
    )
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve until stopped; without a port it only waits for that."""
        allow_many_open_files()  # two for each connection
        proxy_id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            with named_process(egress_proxy_id=proxy_id), DecisionLog() as decisions:
                asyncio.run(_serve(decisions, settings.SVC_EGRESS_PORT))
        except OSError as error:
            place = f"port {settings.SVC_EGRESS_PORT}"
            raise CommandError(f"Cannot listen at {place}: {error.strerror or error}.") from error


async def _serve(decisions: DecisionLog, port: int) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if not port:
        log.info("egress_proxy_off", reason="SVC_EGRESS_PORT is 0")
        await stopped.wait()
        return
    networks = KnownNetworks(egress_prefix(settings.SVC_INSTANCE_ID))
    reachable = ReachableAddresses(
        map(IPv4Network, settings.SVC_WORKSPACE_ALLOWED_NETWORKS),
        IPv4Network(settings.SVC_WORKSPACE_NETWORK_POOL),
    )
    dialler = Dialler(reachable, settings.SVC_EGRESS_RESOLVERS)
    async with EgressProxy(networks.whose, dialler, decisions.add).serving(port):
        log.info("egress_proxy_started", port=port, instance=settings.SVC_INSTANCE_ID)
        following = asyncio.create_task(networks.follow())
        await stopped.wait()
        following.cancel()
    log.info("egress_proxy_stopped")
