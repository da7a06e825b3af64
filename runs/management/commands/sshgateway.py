"""``manage.py sshgateway``: let people into their workspaces over SSH until told to stop."""

from __future__ import annotations

import os
import secrets
import socket
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.logging import named_process
from runs.gateway.configuration import configured
from runs.gateway.gateway import run_gateway
from runs.gateway.host_key import HostKeyError


class Command(BaseCommand):
    """Runs the gateway; it needs the HTTP API and the engine, no database."""

    help = (
        "Accept SSH connections to workspaces. The first signal closes sessions in an orderly "
        "way, a second stops it at once."
    )
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve until stopped."""
        configuration = configured()
        if not configuration.token:
            raise CommandError("WORKSPACE_SSH_GATEWAY_TOKEN is not set, so nobody could log in.")
        gateway_id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            with named_process(gateway_id=gateway_id):
                run_gateway(configuration)
        except HostKeyError as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            place = f"{configuration.host} port {configuration.port}"
            raise CommandError(f"Cannot listen on {place}: {error.strerror or error}.") from error
