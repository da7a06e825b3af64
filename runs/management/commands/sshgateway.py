"""``manage.py sshgateway``: let people into their workspaces over SSH until told to stop."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncssh
import structlog
from django.core.management.base import BaseCommand, CommandError

from runs.gateway.configuration import Configuration, configured
from runs.gateway.gateway import Gateway, raise_file_limit
from runs.gateway.host_key import HostKeyError, load_host_key

logger = structlog.get_logger(__name__)


class Command(BaseCommand):
    """Runs the gateway; it needs the HTTP API and the engine, no database."""

    help = "Take SSH connections to workspaces. One signal sees everybody off, two end at once."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve until stopped."""
        asyncssh.set_log_level("WARNING")  # at INFO it tells what people type on command lines
        configuration = configured()
        if not configuration.token:
            raise CommandError("WORKSPACE_SSH_GATEWAY_TOKEN is not set: nobody could log in.")
        try:
            key = load_host_key(configuration.host_key_path)
        except HostKeyError as error:
            raise CommandError(str(error)) from error
        raise_file_limit()
        asyncio.run(_serve(configuration, key))


async def _serve(configuration: Configuration, key: asyncssh.SSHKey) -> None:
    gateway = Gateway(configuration, key)
    try:
        places = await gateway.start()
    except OSError as error:
        raise CommandError(
            f"Cannot listen on {configuration.host} port {configuration.port}: "
            f"{error.strerror or error}."
        ) from error
    logger.info(
        "gateway_listening",
        addresses=[f"{host}:{port}" for host, port in places],
        host_key=key.get_fingerprint("sha256"),
        api=configuration.api_base_url,
        recorded=configuration.recorded,
    )
    await gateway.serve()
