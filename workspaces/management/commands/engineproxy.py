"""``manage.py engineproxy``: give other processes a small part of the engine."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import os
import secrets
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import structlog
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.logging import named_process
from controlplane.open_files import allow_many_open_files
from workspaces.runtimes.docker.engine_proxy import EngineProxy

log = structlog.get_logger(__name__)


class Command(BaseCommand):
    """Runs the proxy; it needs the engine's socket and nothing else."""

    help = (
        "Open a socket through which the run worker and the SSH gateway reach the agents in "
        "this installation's workspaces, and nothing else on the engine."
    )
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--listen",
            type=Path,
            default=settings.SVC_DATA_DIR / "proxy" / "engine.sock",
            metavar="PATH",
            help="the socket to make (default: %(default)s)",
        )
        parser.add_argument(
            "--mode", type=_mode, default=0o660, help="its permissions (default: 660)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve until stopped."""
        allow_many_open_files()  # two for each connection
        engine_proxy_id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            with (
                named_process(engine_proxy_id=engine_proxy_id),
                _listener(options["listen"], options["mode"]) as listener,
            ):
                asyncio.run(_serve(listener, options["listen"]))
        except OSError as error:
            raise CommandError(
                f"Cannot listen at {options['listen']}: {error.strerror or error}."
            ) from error


def _mode(text: str) -> int:
    mode = int(text, 8)
    if not 0 <= mode <= 0o777 or mode & 0o007:
        raise argparse.ArgumentTypeError("must be octal and grant nothing to others")
    return mode


async def _serve(listener: socket.socket, path: Path) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with EngineProxy(settings.DOCKER_HOST, settings.SVC_INSTANCE_ID).serving(listener):
        log.info("engine_proxy_started", path=str(path), instance=settings.SVC_INSTANCE_ID)
        await stopped.wait()
    log.info("engine_proxy_stopped")


@contextlib.contextmanager
def _listener(path: Path, mode: int) -> Iterator[socket.socket]:
    """Listen at ``path``; what a dead proxy left there is replaced, a living one is not."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CommandError(f"Another proxy is open at {path}.") from error
        if path.is_socket():
            path.unlink()
        # Never there with other permissions than it is to have.
        made = path.with_name(f"{path.name}.new")
        made.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(made))
            made.chmod(mode)
            listener.listen(1024)
            made.rename(path)
            try:
                yield listener
            finally:
                path.unlink(missing_ok=True)
