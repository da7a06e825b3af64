"""Commands that start, list, stop and remove workspaces."""

from __future__ import annotations

import shlex
import sys

import click

from controlplane_cli.session import Session, json_option, pass_session, workspace_argument
from controlplane_cli.showing import ago, as_json, printable, table
from controlplane_cli.sources import source_of, wanted_files
from controlplane_cli.starting import prepared, wait_ready
from controlplane_client import Workspace, default_repository
from controlplane_client.local_files import packed


@click.command(short_help="Start a workspace from a file, folder or repository.")
@click.argument("source", type=click.Path(), default=".")
@click.option("--name", help="Name of the workspace; by default that of the source.")
@click.option("--harness", default="shell", show_default=True, help="Where SOURCE names none.")
@click.option("--repository", help="Repository of the registry; by default one of your own.")
@click.option("--ttl", type=int, help="Stop the workspace after this many seconds.")
@click.option("--no-wait", is_flag=True, help="Do not wait until it is ready.")
@click.option("-q", "--quiet", is_flag=True, help="Do not show the build's output.")
@click.option(
    "--local-env", is_flag=True, help="Let a devcontainer.json here read this machine's variables."
)
@json_option
@pass_session
def up(
    session: Session,
    source: str,
    name: str | None,
    harness: str,
    repository: str | None,
    ttl: int | None,
    no_wait: bool,
    quiet: bool,
    local_env: bool,
) -> None:
    """Start a workspace from SOURCE: a blueprint, a folder or the address of a git repository.

    The files that a folder has now are copied into the workspace once it is ready, but for what git
    ignores; its svc.json, if there is one, is the blueprint. Without one, a devcontainer.json is
    translated; what of it has no counterpart is named. Ctrl-C stops it, a second one leaves.
    """
    given = source_of(source, harness, local_env=local_env)
    for warning in given.warnings:
        click.echo(f"svc: {printable(warning)}", err=True)
    archive = None
    if given.folder is not None and not no_wait:
        # Before the workspace is made: a fault of this machine leaves none behind.
        archive = packed(given.folder, wanted_files(given.folder))
    called = name or given.name
    tag = "".join(each if each.isalnum() and each.isascii() else "-" for each in called)
    workspace = session.client.create(
        given.blueprint,
        repository=repository or default_repository(session.context.owner),
        tag=tag.strip("-")[:100] or "latest",
        name=called,
        ttl=ttl,
        wait=False,
    )
    done = True
    if not no_wait:
        wait_ready(workspace, quiet=quiet or session.json)
        if archive is not None:
            with archive:
                workspace.files.unpack(archive)
        done = prepared(workspace, given.commands, quiet=quiet or session.json)
    elif given.folder is not None:
        click.echo(
            "svc: because of --no-wait no files were copied and no commands executed", err=True
        )
    info = workspace.refresh()
    if session.json:
        as_json(info.raw)
    else:
        click.echo(workspace.id)
        click.echo(f"{called} is {info.status}: svc ssh {shlex.quote(called)}", err=True)
        for port, label in given.ports.items():
            about = f" ({printable(label)})" if label else ""
            line = f"svc ports {shlex.quote(called)} --open {port}"
            click.echo(f"port {port}{about}: {line}", err=True)
    if not done:
        sys.exit(1)


@click.command()
@click.option(
    "--status", help="Only workspaces with this status: ready, failed, stopped, deleted …"
)
@json_option
@pass_session
def ls(session: Session, status: str | None) -> None:
    """List workspaces, newest first."""
    found = list(session.client.workspaces(status))
    if session.json:
        as_json([each.raw for each in found])
        return
    rows = [
        [each.name, each.status, ago(each.created_at), each.id,
         each.reason.message if each.reason else each.error or ""]
        for each in found
    ]  # fmt: skip
    table(rows, "NAME", "STATUS", "AGE", "ID", "WHY", flexible="WHY")


def _ended(session: Session, workspace: Workspace) -> None:
    info = workspace.info or workspace.refresh()
    as_json(info.raw) if session.json else click.echo(workspace.id)


@click.command()
@click.option("--no-wait", is_flag=True, help="Do not wait until it is stopped.")
@json_option
@workspace_argument
@pass_session
def stop(session: Session, workspace: str, no_wait: bool) -> None:
    """Stop a workspace; what is kept is there when it starts again."""
    there = session.workspace(workspace)
    there.stop(wait=not no_wait)
    _ended(session, there)


@click.command()
@click.option("--rebuild", is_flag=True, help="Fetch the sources again and build what has changed.")
@click.option("--no-wait", is_flag=True, help="Do not wait until it is ready.")
@json_option
@workspace_argument
@pass_session
def start(session: Session, workspace: str, rebuild: bool, no_wait: bool) -> None:
    """Start a workspace again."""
    there = session.workspace(workspace)
    there.start(relation="rebuild" if rebuild else None, wait=False)
    if not no_wait:
        wait_ready(there, quiet=session.json)
    there.refresh()
    _ended(session, there)


@click.command()
@click.option("--no-wait", is_flag=True, help="Do not wait until it is deleted.")
@json_option
@workspace_argument
@pass_session
def rm(session: Session, workspace: str, no_wait: bool) -> None:
    """Delete a workspace with its volumes; its records stay."""
    there = session.workspace(workspace)
    there.delete(wait=not no_wait)
    _ended(session, there)
