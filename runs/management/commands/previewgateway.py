"""``manage.py previewgateway``: show what listens in workspaces as web pages until told to stop."""

from __future__ import annotations

import os
import secrets
import socket
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.logging import named_process
from runs.preview.preview_gateway import run_gateway
from runs.preview.preview_settings import configured


class Command(BaseCommand):
    """Runs the preview gateway; it needs the HTTP API and the engine, no database."""

    help = (
        "Forward requests to ports of workspaces. The first signal finishes open answers, a "
        "second stops it at once."
    )
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve until stopped."""
        settings = configured()
        if settings.domain and not settings.token:
            raise CommandError(
                "WORKSPACE_SSH_GATEWAY_TOKEN is not set, so links cannot be checked."
            )
        gateway_id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            with named_process(gateway_id=gateway_id):
                run_gateway(settings)
        except OSError as error:
            place = f"{settings.host} port {settings.port}"
            raise CommandError(f"Cannot listen on {place}: {error.strerror or error}.") from error
