"""Commands that read what runs have left: output, changes, records."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from controlplane_cli.executing import plain
from controlplane_cli.replaying import cast_lines, play
from controlplane_cli.session import Session, json_option, pass_session
from controlplane_cli.showing import as_json
from controlplane_client import ControlPlaneError, check_export


@click.command(short_help="Show what a run wrote, or a build and boot.")
@click.option("-f", "--follow", "live", is_flag=True, help="Keep following new output.")
@json_option
@click.argument("name", metavar="WORKSPACE|RUN")
@pass_session
def logs(session: Session, name: str, live: bool) -> None:
    """Show what a run wrote; of a workspace, what its latest build and boot print."""
    try:
        there = session.workspace(name)
        boot = next(there.runs(mode="boot"), None)
        source: Any = there if live else session.client.run(boot.id) if boot else None
    except (click.ClickException, ControlPlaneError):
        source = session.run(name)
    if source is None:
        return
    if not live and not session.json:
        click.echo(source.text(), nl=False)
        return
    for event in source.follow() if live else source.timeline():
        if session.json:
            told = {"type": event.type, "id": event.id, "data": event.data} if live else event
            click.echo(json.dumps(told))
        elif event.stream in {"stdout", "stderr", "pty"}:
            sys.stdout.buffer.write(event.content)
            sys.stdout.buffer.flush()


@click.command()
@click.option("--speed", type=click.FloatRange(min=0.01), default=1.0, show_default=True)
@click.option(
    "--idle",
    type=float,
    default=2.0,
    show_default=True,
    help="Shorten pauses to at most this many seconds.",
)
@click.option("--cast", is_flag=True, help="Print the asciicast itself, for other players.")
@json_option
@click.argument("name", metavar="RUN|WORKSPACE")
@pass_session
def replay(session: Session, name: str, speed: float, idle: float, cast: bool) -> None:
    """Play what a run showed; of a workspace, its latest one."""
    recorded = session.run(name).asciicast()
    if session.json:
        header, *events = cast_lines(recorded)
        as_json({"header": header, "events": events})
    elif cast:
        click.echo(recorded, nl=False)
    else:
        play(recorded, speed=speed if sys.stdout.isatty() else 0, longest_pause=idle)


@click.command(short_help="Show what a run changed in the working tree.")
@json_option
@click.argument("name", metavar="RUN|WORKSPACE")
@pass_session
def diff(session: Session, name: str) -> None:
    """Show what a run changed in the working tree; of a workspace, its latest one."""
    told = session.run(name).changes()
    if session.json:
        as_json(told)
        return
    click.echo(told["diff"], nl=False)
    if told["truncated"]:
        click.echo("svc: the record has only part of it", err=True)
    if not told["exclusive"]:
        click.echo(
            "svc: other runs worked in this workspace at the same time; some of the "
            "changes may be theirs",
            err=True,
        )


@click.command(short_help="Check a record, or an export, for tampering.")
@click.option("--key", help="The installation's public key in base64, which has to have signed it.")
@json_option
@click.argument("name", metavar="RUN|WORKSPACE|FILE")
@pass_session
def verify(session: Session, name: str, key: str | None) -> None:
    """Check a record, or an export of one, for tampering; 1 when it is not as it was written."""
    try:
        if Path(name).is_file():
            with Path(name).open("rb") as lines:
                found = check_export(lines, key)
        else:
            found = session.run(name).verify(key)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--key") from error
    if session.json:
        as_json(plain(found))
    else:
        click.echo(found.message)
    sys.exit(0 if found.ok else 1)
