"""The whole facade: which call goes where, and the process around it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import structlog
import uvicorn

from controlplane_client import ControlPlaneError, NotFound
from e2bfacade.connect_protocol import answer_error
from e2bfacade.connections import IDLE_SECONDS, BoundedConnection
from e2bfacade.facade_settings import FacadeSettings
from e2bfacade.file_calls import Filesystem
from e2bfacade.http_call import ClientGone, Exchange, Receive, Send
from e2bfacade.process_calls import Processes
from e2bfacade.refused import Refused, not_running, refusal_of, unsupported
from e2bfacade.releases import check_release
from e2bfacade.sandbox_access import Callers
from e2bfacade.sandbox_calls import Sandboxes, is_being_deleted
from e2bfacade.transfers import Transfers
from e2bfacade.watches import Watches

MAX_CONNECTIONS = 2_000
BACKLOG = 512

logger = structlog.get_logger(__name__)

_CONTROL = {"sandboxes", "templates", "v2", "v3", "snapshots", "volumes", "teams", "nodes"}


class Facade:
    """The application, as ASGI has it."""

    def __init__(self, settings: FacadeSettings) -> None:
        self._callers = Callers(settings)
        self._watches = Watches()
        self._sandboxes = Sandboxes(settings, self._callers)
        self._processes = Processes()
        self._filesystem = Filesystem(self._watches)
        self._transfers = Transfers(self._callers, settings.max_file_bytes)

    async def aclose(self) -> None:
        """End what goes on."""
        await self._watches.aclose()
        await self._callers.aclose()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1002})
            return
        exchange = Exchange(scope, receive, send)
        try:
            await self._answer(exchange)
        except ClientGone:
            return
        except (Refused, ControlPlaneError, OSError) as error:
            await self._refuse(exchange, error)

    async def _answer(self, exchange: Exchange) -> None:
        first = exchange.parts[0] if exchange.parts else ""
        if first == "files":
            check_release(exchange.headers, required=False)
            await self._transfers.answer(exchange)
            return
        self._callers.refuse_pages(exchange)
        if first in _CONTROL:
            check_release(exchange.headers, required=True)
            await self._sandboxes.answer(exchange)
            return
        check_release(exchange.headers, required=False)
        match (exchange.method, exchange.parts):
            case ("GET", ["health"]):
                await self._health(exchange)
            case ("POST", ["process.Process", call]):
                workspace = self._callers.workspace_of(exchange)
                await self._processes.answer(exchange, workspace, call)
            case ("POST", ["filesystem.Filesystem", call]):
                workspace = self._callers.workspace_of(exchange)
                await self._filesystem.answer(exchange, workspace, call)
            case _:
                path = "/".join(exchange.parts)[:100]
                raise unsupported(f"{exchange.method[:10]} /{path}")

    async def _health(self, exchange: Exchange) -> None:
        workspace = self._callers.workspace_of(exchange)
        try:
            info = await workspace.refresh()
        except NotFound:
            raise not_running(workspace.id) from None
        if info.status != "ready" or is_being_deleted(info):
            raise not_running(workspace.id)
        await exchange.answer(204)

    async def _refuse(self, exchange: Exchange, error: Exception) -> None:
        if isinstance(error, OSError):
            full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            logger.error("call_failed", error=str(error))
            told = "There is no room for this." if full else "It failed."
            error = Refused(
                507 if full else 500, "resource_exhausted" if full else "internal", told
            )
        named = exchange.headers.get("e2b-sandbox-id", "")
        refused = refusal_of(error, named)
        if refused.status >= 500:
            logger.warning("call_refused", status=refused.status, code=refused.code)
        if exchange.answered:
            # An answer that was begun is broken off: the client must not take it for whole.
            raise error
        first = exchange.parts[0] if exchange.parts else ""
        if first in {"process.Process", "filesystem.Filesystem"}:
            await answer_error(exchange, refused)
            return
        document: dict[str, Any] = {"code": refused.status, "message": refused.message}
        if refused.status == 502:
            document["sandboxId"] = named
        await exchange.answer_json(refused.status, document)


def run_facade(settings: FacadeSettings) -> None:
    """Serve until a signal comes. Raises ``OSError`` when it cannot listen."""
    asyncio.run(_run(settings))


class _Server(uvicorn.Server):
    """Leaves signals to us: uvicorn would raise them once more at its end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


async def _run(settings: FacadeSettings) -> None:
    loop = asyncio.get_running_loop()
    facade = Facade(settings)
    config = uvicorn.Config(
        facade,
        http=BoundedConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=max(1, round(settings.drain)),
        h11_max_incomplete_event_size=64 * 1024,
    )
    listener = _listener(settings)
    server = _Server(config)

    def stop() -> None:
        if server.should_exit:
            server.force_exit = True
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    address = "{}:{}".format(*listener.getsockname()[:2])
    logger.info("e2b_facade_started", address=address, api=settings.api_base_url)
    try:
        await server.serve(sockets=[listener])
    finally:
        await facade.aclose()
        logger.info("e2b_facade_stopped")


def _listener(settings: FacadeSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
