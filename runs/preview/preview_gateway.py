"""The whole gateway: it listens, and goes in order."""

from __future__ import annotations

import asyncio
import signal

import structlog

from controlplane.open_files import allow_many_open_files
from runs.preview.client_connection import ClientConnection
from runs.preview.exchange import SharedByConnections
from runs.preview.preview_settings import PreviewSettings

BACKLOG = 512
TICK_SECONDS = 0.1
LEAVE_SECONDS = 10.0

logger = structlog.get_logger(__name__)


def run_gateway(settings: PreviewSettings) -> None:
    """Serve until a signal comes. Raises ``OSError`` when it cannot listen.

    Without a domain nothing is served, and nobody listens.
    """
    allow_many_open_files()
    asyncio.run(_run(settings))


async def _run(settings: PreviewSettings) -> None:
    stopping, at_once = asyncio.Event(), asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            at_once.set()
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    if not settings.domain:
        logger.info("previews_off", setting="SVC_PREVIEW_DOMAIN")
        await stopping.wait()
        return
    shared = SharedByConnections(settings)
    server = await loop.create_server(
        lambda: ClientConnection(shared), settings.host, settings.port, backlog=BACKLOG
    )
    logger.info(
        "preview_gateway_started",
        addresses=["{}:{}".format(*each.getsockname()[:2]) for each in server.sockets],
        domain=settings.authority,
        api=settings.api_base_url,
    )
    leaving = loop.create_task(_leave_empty(shared))
    await stopping.wait()
    logger.info("preview_gateway_stopping", connections=len(shared.clients))
    server.close()
    await _drain(shared, at_once, loop.time() + settings.drain)
    leaving.cancel()
    shared.workspaces.close()
    logger.info("preview_gateway_stopped")


async def _leave_empty(shared: SharedByConnections) -> None:
    while True:
        await asyncio.sleep(LEAVE_SECONDS)
        shared.workspaces.leave_empty()


async def _drain(shared: SharedByConnections, at_once: asyncio.Event, deadline: float) -> None:
    """Give answers that are under way some time; then end what is left."""
    loop = asyncio.get_running_loop()
    while shared.clients:
        late = at_once.is_set() or loop.time() >= deadline
        for client in list(shared.clients):
            if late or client.is_waiting:
                client.dismiss()
        if late:
            return
        await asyncio.sleep(TICK_SECONDS)
