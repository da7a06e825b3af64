"""``manage.py e2bfacade``: serve E2B's SDKs until told to stop."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from controlplane.logging import named_process
from controlplane.open_files import allow_many_open_files
from controlplane.settings_environment import is_loopback


class Command(BaseCommand):
    """Runs the E2B facade; it needs the HTTP API, no database and no engine."""

    help = "Serve E2B's SDKs. The first signal lets calls finish, a second stops it at once."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve until stopped."""
        if not settings.SVC_E2B_PORT:
            raise CommandError(
                "The E2B facade is off: set SVC_E2B_PORT to the port that it should use."
            )
        if not settings.WORKSPACE_SSH_GATEWAY_TOKEN:
            raise CommandError(
                "WORKSPACE_SSH_GATEWAY_TOKEN is not set: no sandbox could be opened."
            )
        if not (is_loopback(settings.SVC_PUBLISHED_HOST) or settings.SVC_TRUSTED_OWNER_HEADER):
            raise CommandError(
                f"{settings.SVC_PUBLISHED_HOST} is not a loopback address, and E2B's API keys name "
                "nobody here: all who reach the port would act as the same owner. Put a proxy "
                "before it that authenticates people, and set SVC_TRUSTED_OWNER_HEADER."
            )
        guarded = settings.SVC_NETWORK_GUARD != "off"
        if not (
            is_loopback(settings.SVC_BIND_HOST) or settings.SVC_TRUSTED_OWNER_HEADER or guarded
        ):
            raise CommandError(
                f"{settings.SVC_BIND_HOST} is not a loopback address, and nothing keeps workspaces "
                "from reaching it: they would act as the owner of all sandboxes. Set "
                "SVC_BIND_HOST to a loopback address, SVC_NETWORK_GUARD, or "
                "SVC_TRUSTED_OWNER_HEADER."
            )
        # The facade is a user of the API like others, and uses the client that they use.
        sys.path.append(str(settings.BASE_DIR / "clients" / "python"))
        from e2bfacade.facade import run_facade
        from e2bfacade.facade_settings import configured

        # Its lines would hold the addresses of all requests, and so the paths of files.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        allow_many_open_files()
        facade_id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        chosen = configured()
        try:
            with named_process(facade_id=facade_id):
                run_facade(chosen)
        except OSError as error:
            place = f"{chosen.host} port {chosen.port}"
            raise CommandError(f"Cannot listen on {place}: {error.strerror or error}.") from error
