"""Commands that execute something in a workspace, or enter it."""

from __future__ import annotations

import os
import sys

import click

from controlplane_cli import attaching
from controlplane_cli.executing import follow
from controlplane_cli.session import Session, json_option, pass_session, workspace_argument
from controlplane_cli.showing import as_json

FOR_THE_COMMAND = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""Options after the workspace belong to the command that is executed there."""


@click.command("exec", context_settings=FOR_THE_COMMAND)
@click.option("-i", "--interactive", is_flag=True, help="Pass standard input to the command.")
@click.option("-t", "--tty", is_flag=True, help="Run the command in this terminal.")
@click.option("-d", "--detach", is_flag=True, help="Do not wait; print the run's id.")
@click.option(
    "-e", "--env", multiple=True, metavar="NAME=VALUE", help="Set a variable of the command."
)
@click.option("-w", "--workdir", help="Where it runs.")
@click.option("--timeout", type=float, help="Stop the command after this many seconds.")
@json_option
@workspace_argument
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@pass_session
def execute(
    session: Session,
    workspace: str,
    command: tuple[str, ...],
    interactive: bool,
    tty: bool,
    detach: bool,
    env: tuple[str, ...],
    workdir: str | None,
    timeout: float | None,
) -> None:
    """Execute COMMAND in a workspace, and end with its exit code.

    One word is what a shell executes, several are a program and its arguments. Ctrl-C interrupts
    the command, a second one leaves it to itself. 125: it could not be executed.

    With -t the command has a terminal and gets every key; Enter, ~ and . leave it to itself.
    """
    session.failure_code = 125
    if command[0] == "--":
        # After the workspace click no longer removes it, and many type it out of habit.
        command = command[1:]
    if not command:
        raise click.UsageError("Missing argument 'COMMAND...'.")
    if tty and session.json and not detach:
        raise click.UsageError("a terminal is for people: --json goes with -t only with -d")
    # Python has none where descriptor 0 is closed.
    if interactive and not detach and sys.stdin is None:
        raise click.ClickException("there is no standard input to pass")
    run = session.workspace(workspace).spawn(
        command[0] if len(command) == 1 else command,
        cwd=workdir,
        env=dict(each.partition("=")[::2] for each in env),
        stdin=interactive,
        terminal=attaching.size_here() if tty else None,
        timeout=timeout,
    )
    if detach:
        as_json(run.info.raw if run.info else {}) if session.json else click.echo(run.id)
        return
    sys.exit(attaching.attach(run) if tty else follow(session, run, with_input=interactive))


@click.command(short_help="Enter the terminal of a command that runs.")
@click.option("--latest", is_flag=True, help="Leave out what it has written until now.")
@click.argument("name", metavar="RUN|WORKSPACE")
@pass_session
def attach(session: Session, name: str, latest: bool) -> None:
    """Enter the terminal of a command that runs; of a workspace, of its latest one.

    Enter, ~ and . leave it to itself. Ends with the command's exit code.
    """
    session.failure_code = 125
    sys.exit(attaching.attach(session.run(name), after=None if latest else 0))


@click.command()
@click.option("--harness", help="The harness; by default the blueprint's.")
@click.option("-d", "--detach", is_flag=True, help="Do not wait; print the run's id.")
@json_option
@workspace_argument
@click.argument("prompt")
@pass_session
def run(session: Session, workspace: str, prompt: str, harness: str | None, detach: bool) -> None:
    """Have the harness of a workspace work on PROMPT."""
    session.failure_code = 125
    there = session.workspace(workspace)
    who = harness or there.refresh().raw.get("spec", {}).get("harness", {}).get("id", "shell")
    started = there.run_prompt(prompt, harness=who)
    if detach:
        as_json(started.info.raw if started.info else {}) if session.json else click.echo(
            started.id
        )
        return
    sys.exit(follow(session, started))


@click.command()
@json_option
@click.argument("name", metavar="RUN")
@pass_session
def cancel(session: Session, name: str) -> None:
    """End a run with all its processes."""
    info = session.client.run(name).cancel()
    as_json(info.raw) if session.json else click.echo(info.id)


@click.command(context_settings=FOR_THE_COMMAND)
@click.option("-o", "--option", multiple=True, help="An ssh option, as with ssh -o.")
@json_option
@workspace_argument
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@pass_session
def ssh(
    session: Session, workspace: str, command: tuple[str, ...], option: tuple[str, ...]
) -> None:
    """Enter a workspace with OpenSSH, or execute COMMAND over it."""
    there = session.workspace(workspace)
    gateway = session.client.setup()["sshGateway"]
    options = [word for each in option for word in ("-o", each)]
    who = f"{gateway['usernamePrefix']}-{there.id}@{gateway['host']}"
    line = ["ssh", *options, "-p", str(gateway["port"]), who, *command]
    if session.json:
        as_json({"host": gateway["host"], "port": gateway["port"], "command": line})
        return
    try:
        os.execvp("ssh", line)  # noqa: S606 (the terminal is its own from here on)
    except FileNotFoundError as error:
        raise click.ClickException("ssh is not installed on this machine") from error
