"""The command that serves workspaces to models."""

from __future__ import annotations

from typing import Any

import click

from controlplane_cli.session import Session, complete_workspace, pass_session


@click.command(short_help="Serve workspaces as tools for models.")
@click.option("--http", "address", metavar="HOST:PORT", help="Serve streamable HTTP there.")
@click.option(
    "--inside",
    metavar="WORKSPACE",
    shell_complete=complete_workspace,
    help="Serve it inside this workspace, at 127.0.0.1:8765 or the port of --http.",
)
@click.option(
    "--allow-host", multiple=True, metavar="NAME", help="A name by which clients call this machine."
)
@click.option(
    "--allow-origin", multiple=True, metavar="URL", help="An origin whose pages may call, too."
)
@pass_session
def mcp(
    session: Session,
    address: str | None,
    inside: str | None,
    allow_host: tuple[str, ...],
    allow_origin: tuple[str, ...],
) -> None:
    """Serve workspaces as tools of the Model Context Protocol: on standard input and output.

    With --http it serves http://HOST:PORT/mcp. Whoever reaches that can use every workspace of the
    owner: it is for this machine, unless --allow-host names how others call it. With --inside it
    is for the programs of one workspace, which needs no network for that.
    """
    try:
        from controlplane_cli.mcp_server import serving
    except ImportError as error:
        told = f"svc mcp needs more: pip install 'controlplane-cli[mcp]' ({error})"
        raise click.ClickException(told) from error
    server = serving.server_for(session.context)
    if address is None and inside is None:
        server.run("stdio")
        return
    host, _, number = (address or "127.0.0.1:8765").rpartition(":")
    host = host.strip("[]")
    if not host or not number.isdecimal() or int(number) > 65535:
        raise click.BadParameter(
            "HOST:PORT is expected, such as 127.0.0.1:8765", param_hint="--http"
        )
    if inside is not None:
        if host not in {"127.0.0.1", "localhost"} or int(number) == 0:
            told = "inside a workspace it is 127.0.0.1:PORT"
            raise click.BadParameter(told, param_hint="--http")
        _serve_inside(session, inside, server, int(number), allow_origin)
        return
    if not serving.is_loopback(host) and not allow_host:
        told = "other machines can reach this address: name the host they use with --allow-host"
        raise click.BadParameter(told, param_hint="--http")
    try:
        opened = serving.listening(host, int(number))
    except OSError as error:
        raise click.ClickException(f"{address} cannot be served: {error}") from error
    port = opened.getsockname()[1]
    app = serving.application(server, port=port, hosts=allow_host, origins=allow_origin)
    shown = f"[{host}]" if ":" in host else host
    serving.serve_http(
        app, opened, lambda: click.echo(f"serving http://{shown}:{port}/mcp", err=True)
    )


def _serve_inside(
    session: Session, name: str, server: Any, port: int, allow_origin: tuple[str, ...]
) -> None:
    from controlplane_cli.mcp_server import lending, serving

    workspace = session.workspace(name)
    app = serving.application(server, port=port, hosts=(), origins=allow_origin)
    told = f"serving http://127.0.0.1:{port}/mcp inside {name}"
    try:
        lending.run_inside(
            session.context, workspace.id, app, port, lambda: click.echo(told, err=True)
        )
    except lending.RelayEnded as error:
        raise click.ClickException(f"it is not served inside {name} any more: {error}") from error
