"""Commands that reach the files and ports of a workspace."""

from __future__ import annotations

import sys

import click

from controlplane_cli.browsing import opened
from controlplane_cli.copying import copy
from controlplane_cli.executing import plain
from controlplane_cli.session import Session, json_option, pass_session, workspace_argument
from controlplane_cli.showing import as_json, table


@click.command(short_help="Copy a file or folder; WORKSPACE:PATH is there.")
@json_option
@click.argument("source")
@click.argument("target")
@pass_session
def cp(session: Session, source: str, target: str) -> None:
    """Copy a file or folder from or to WORKSPACE:PATH; - is standard input or output."""
    copy(session, source, target)
    if session.json:
        as_json({"source": source, "target": target})


@click.command(short_help="List what listens in a workspace, or show it.")
@click.option("--open", "port", type=click.IntRange(1, 65535), help="Show this one in the browser.")
@click.option("--path", default="/", show_default=True, help="Where on it the link leads.")
@json_option
@workspace_argument
@pass_session
def ports(session: Session, workspace: str, port: int | None, path: str) -> None:
    """List what listens in a workspace, or make a link that shows one port in a browser.

    Whoever has the link can use it; it can be opened for some minutes. Where there is no browser,
    it is printed.
    """
    there = session.workspace(workspace)
    if port is not None:
        link = there.link(port, path)
        if session.json:
            as_json({"url": link.url, "token": link.token, "expiresAt": str(link.expires_at)})
        elif not (sys.stdout.isatty() and opened(link.url)):
            click.echo(link.url)
        return
    found = there.ports()
    if session.json:
        as_json([plain(each) for each in found])
        return
    rows = [[str(each.port), each.address, str(each.pid or ""), each.process or ""]
            for each in found]  # fmt: skip
    table(rows, "PORT", "ADDRESS", "PID", "PROCESS", flexible="PROCESS")
