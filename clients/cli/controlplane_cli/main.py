"""The commands of ``svc``."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from controlplane_cli import attaching
from controlplane_cli.browsing import opened
from controlplane_cli.contexts import config_path, read_config, write_config
from controlplane_cli.copying import copy
from controlplane_cli.executing import follow, plain
from controlplane_cli.interrupts import LEFT
from controlplane_cli.replaying import cast_lines, play
from controlplane_cli.session import (
    Session,
    complete_workspace,
    json_option,
    pass_session,
    workspace_argument,
)
from controlplane_cli.showing import ago, as_json, printable, table
from controlplane_cli.sources import source_of, wanted_files
from controlplane_cli.starting import prepared, wait_ready
from controlplane_client import (
    ControlPlaneError,
    Problem,
    Workspace,
    __version__,
    check_export,
    default_repository,
)
from controlplane_client.local_files import packed

FOR_THE_COMMAND = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""Options after the workspace belong to the command that is executed there."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="svc")
@click.option("-c", "--context", "name", help="A context of `svc config`.")
@click.pass_context
def cli(context: click.Context, name: str | None) -> None:
    """Workspaces: start them, work in them, read their records.

    WORKSPACE is a name, an id, or the beginning or end of an id. SVC_BASE_URL and SVC_OWNER, or a
    context of `svc config`, say which service is asked and for whom.
    """
    context.ensure_object(Session).use(name)


@cli.command(short_help="Start a workspace from a file, folder or repository.")
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

    The files of a folder are copied into the workspace once it is ready, but for what git ignores;
    its svc.json, if there is one, is the blueprint. Without one, a devcontainer.json is translated;
    what of it has no counterpart is named. Ctrl-C stops it, a second one leaves.
    """
    given = source_of(source, harness, local_env=local_env)
    for warning in given.warnings:
        click.echo(f"svc: {printable(warning)}", err=True)
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
        if given.folder is not None:
            with packed(given.folder, wanted_files(given.folder)) as archive:
                workspace.files.unpack(archive)
        done = prepared(workspace, given.commands, quiet=quiet or session.json)
    elif given.folder is not None:
        click.echo("svc: nothing was copied into it, nor executed, as --no-wait says so", err=True)
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


@cli.command()
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


@cli.command("exec", context_settings=FOR_THE_COMMAND)
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
    if tty and session.json and not detach:
        raise click.UsageError("a terminal is for people: --json goes with -t only with -d")
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


@cli.command(short_help="Enter the terminal of a command that runs.")
@click.option("--latest", is_flag=True, help="Leave out what it has written until now.")
@click.argument("name", metavar="RUN|WORKSPACE")
@pass_session
def attach(session: Session, name: str, latest: bool) -> None:
    """Enter the terminal of a command that runs; of a workspace, of its latest one.

    Enter, ~ and . leave it to itself. Ends with the command's exit code.
    """
    session.failure_code = 125
    sys.exit(attaching.attach(session.run(name), after=None if latest else 0))


@cli.command()
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


@cli.command(short_help="Show what a run wrote, or a build and boot.")
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


@cli.command(context_settings=FOR_THE_COMMAND)
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


@cli.command(short_help="Copy a file or folder; WORKSPACE:PATH is there.")
@json_option
@click.argument("source")
@click.argument("target")
@pass_session
def cp(session: Session, source: str, target: str) -> None:
    """Copy a file or folder from or to WORKSPACE:PATH; - is standard input or output."""
    copy(session, source, target)
    if session.json:
        as_json({"source": source, "target": target})


@cli.command(short_help="List what listens in a workspace, or show it.")
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


@cli.command()
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


@cli.command(short_help="Show what a run changed in the working tree.")
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


@cli.command(short_help="Check a record, or an export, for tampering.")
@click.option("--key", help="The installation's public key in base64.")
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


@cli.command()
@json_option
@click.argument("name", metavar="RUN")
@pass_session
def cancel(session: Session, name: str) -> None:
    """End a run with all its processes."""
    info = session.client.run(name).cancel()
    as_json(info.raw) if session.json else click.echo(info.id)


def _ended(session: Session, workspace: Workspace) -> None:
    info = workspace.info or workspace.refresh()
    as_json(info.raw) if session.json else click.echo(workspace.id)


@cli.command()
@click.option("--no-wait", is_flag=True, help="Do not wait until it is stopped.")
@json_option
@workspace_argument
@pass_session
def stop(session: Session, workspace: str, no_wait: bool) -> None:
    """Stop a workspace; what is kept is there when it starts again."""
    there = session.workspace(workspace)
    there.stop(wait=not no_wait)
    _ended(session, there)


@cli.command()
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


@cli.command()
@click.option("--no-wait", is_flag=True, help="Do not wait until it is deleted.")
@json_option
@workspace_argument
@pass_session
def rm(session: Session, workspace: str, no_wait: bool) -> None:
    """Delete a workspace with its volumes; its records stay."""
    there = session.workspace(workspace)
    there.delete(wait=not no_wait)
    _ended(session, there)


@cli.command(short_help="Serve workspaces as tools for models.")
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
        raise click.BadParameter("it is HOST:PORT, like 127.0.0.1:8765", param_hint="--http")
    if inside is not None:
        if host not in {"127.0.0.1", "localhost"} or int(number) == 0:
            told = "inside a workspace it is 127.0.0.1:PORT"
            raise click.BadParameter(told, param_hint="--http")
        _serve_inside(session, inside, server, int(number), allow_origin)
        return
    if not serving.is_loopback(host) and not allow_host:
        told = "others than this machine reach it: name with --allow-host how they call it"
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


@cli.group(invoke_without_command=True)
@json_option
@click.pass_context
def config(context: click.Context) -> None:
    """Show or change which service is asked, and for whom."""
    if context.invoked_subcommand is not None:
        return
    session = context.ensure_object(Session)
    told, now = read_config(), session.context
    if session.json:
        as_json({"file": str(config_path()), "used": plain(now), **told})
        return
    click.echo(f"{now.base_url} for {now.owner} (from: {now.name}; file: {config_path()})")
    for name, each in sorted(told["contexts"].items()):
        mark = "*" if name == told.get("current") else " "
        click.echo(f"{mark} {name}  {each['baseUrl']}  {each.get('owner', '')}")


@config.command("set")
@click.argument("name")
@click.option("--url", required=True, help="URL of the API.")
@click.option("--owner", help="The owner to act for.")
def config_set(name: str, url: str, owner: str | None) -> None:
    """Add or change the context NAME, and use it."""
    told = read_config()
    told["contexts"][name] = {"baseUrl": url, **({"owner": owner} if owner else {})}
    write_config({**told, "current": name})


@config.command("use")
@click.argument("name")
def config_use(name: str) -> None:
    """Use the context NAME from now on."""
    told = read_config()
    if name not in told["contexts"]:
        raise click.ClickException(f"there is no context {name}")
    write_config({**told, "current": name})


@config.command("rm")
@click.argument("name")
def config_rm(name: str) -> None:
    """Remove the context NAME."""
    told = read_config()
    told["contexts"].pop(name, None)
    write_config({**told, "current": None if told.get("current") == name else told.get("current")})


@cli.command(short_help="Print what completes svc in a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion for a shell: eval "$(svc completion bash)"."""
    made = get_completion_class(shell)
    if made is not None:
        click.echo(made(cli, {}, "svc", "_SVC_COMPLETE").source())


def main() -> None:
    """Run ``svc``; ends the process with its exit code."""
    session = Session()
    try:
        cli.main(prog_name="svc", standalone_mode=False, obj=session)
    except click.exceptions.Exit as ended:
        sys.exit(ended.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(session.failure_code if error.exit_code == 1 else error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(LEFT)
    except BrokenPipeError:
        # Whoever read it has gone, as `head` does; Python must not complain of it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except ControlPlaneError as error:
        if session.json and isinstance(error, Problem):
            click.echo(json.dumps(error.document), err=True)
        else:
            click.echo(f"svc: {error}", err=True)
        sys.exit(session.failure_code)


if __name__ == "__main__":
    main()
