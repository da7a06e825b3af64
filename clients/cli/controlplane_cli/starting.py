"""From a workspace that was asked for to one that can be used."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial

import click

from controlplane_cli.interrupts import LEFT, first_for
from controlplane_cli.showing import Progress, printable
from controlplane_client import ControlPlaneError, NotReady, Run, Workspace


def wait_ready(workspace: Workspace, *, quiet: bool) -> None:
    """Wait until a workspace is ready; ctrl-C stops it and ends ``svc``."""

    def interrupt() -> None:
        try:
            workspace.stop(wait=False)
        except ControlPlaneError as error:
            click.echo(f"svc: the workspace is not being stopped: {error}", err=True)

    try:
        with Progress() as progress, first_for(interrupt):
            workspace.wait_ready(
                on_output=None if quiet else progress.output, on_status=progress.of
            )
    except KeyboardInterrupt:
        click.echo(f"interrupted; the workspace is being stopped: {workspace.id}", err=True)
        sys.exit(LEFT)
    except NotReady as error:
        if error.workspace.status in {"cancelled", "stopped"}:
            click.echo(f"{workspace.id} was stopped", err=True)
            sys.exit(LEFT)
        raise


def prepared(workspace: Workspace, commands: list[tuple[str, str]], *, quiet: bool) -> bool:
    """Execute what is to be done with the files of a folder; tell whether all of it worked.

    Ctrl-C interrupts the command; a second one leaves it to itself and ends ``svc``.
    """

    def show(text: str) -> None:
        click.echo(text, err=True, nl=False)

    watch = None if quiet else show
    for name, command in commands:
        click.echo(printable(f"svc: {name}: {command}"), err=True)
        run = workspace.spawn(["sh", "-c", command])
        try:
            with first_for(partial(_interrupt, run)):
                info = run.wait(on_stdout=watch, on_stderr=watch)
        except KeyboardInterrupt:
            told = f"detached; the command keeps running: svc logs -f {run.id}, svc cancel {run.id}"
            click.echo(f"\n{told}", err=True)
            sys.exit(LEFT)
        if info.exit_code != 0:
            how = info.error if info.exit_code is None else f"exit code {info.exit_code}"
            told = f"svc: {name} failed: {how} (svc logs {run.id}); nothing after it is done"
            click.echo(told, err=True)
            return False
    return True


def _interrupt(run: Run) -> None:
    with suppress(ControlPlaneError):
        run.signal("INT")
