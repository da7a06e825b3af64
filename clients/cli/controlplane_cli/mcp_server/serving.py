"""The server of the tools: on standard input and output, or over HTTP."""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable, Iterable

import uvicorn
from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp

from controlplane_cli.contexts import Context
from controlplane_cli.mcp_server.tools import add_tools
from controlplane_client import AsyncClient, __version__

INSTRUCTIONS = """\
Workspaces are Linux containers where you can execute commands, keep files and run servers without
touching the machine of the person you work for. Begin with list_workspaces or create_workspace;
name workspaces by name or id. Everything you do in them is recorded. Answers are bounded: where
next_offset, next_cursor or next_skip is in an answer, ask again with it for the rest.
"""


def server_for(context: Context) -> MCPServer[None]:
    """Return a server whose tools work for the owner of a context."""
    server: MCPServer[None] = MCPServer(
        "svc", title="Workspaces", version=__version__, instructions=INSTRUCTIONS,
        log_level="WARNING",
    )  # fmt: skip
    add_tools(server, AsyncClient(context.base_url, context.owner))
    return server


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raises ``OSError``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)


def application(
    server: MCPServer[None], *, port: int, hosts: Iterable[str], origins: Iterable[str]
) -> ASGIApp:
    """Return the server for HTTP; others than these hosts and origins are refused.

    A page that somebody visits could otherwise use the tools: by a request to this machine, or
    with a name of its own that leads here.
    """
    names = [f"{host}:{port}" for host in ("127.0.0.1", "localhost", "[::1]")]
    named = [f"{host}:{port}" for host in hosts] + list(hosts)
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[*names, *named],
        allowed_origins=[*(f"http://{name}" for name in names), *origins],
    )
    # Each request stands for itself: nothing is lost when this is started again.
    return server.streamable_http_app(stateless_http=True, transport_security=security)


def serve_http(app: ASGIApp, opened: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until this process is told to end."""
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)

    class Announced(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
    Announced(config).run(sockets=[opened])
