"""``svc``: its commands, and how it ends."""

from __future__ import annotations

import json
import os
import sys

import click
from click.shell_completion import get_completion_class

from controlplane_cli.commands import choosing, lifetimes, looking_back, reaching, tools, working
from controlplane_cli.interrupts import LEFT
from controlplane_cli.session import Session
from controlplane_client import ControlPlaneError, Problem, __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="svc")
@click.option("-c", "--context", "name", help="A context of `svc config`.")
@click.pass_context
def cli(context: click.Context, name: str | None) -> None:
    """Workspaces: start them, work in them, read their records.

    WORKSPACE is a name, an id, or the beginning or end of an id. SVC_BASE_URL and
    SVC_OWNER_USER_ID, or a context of `svc config`, say which service is asked and for whom.
    """
    context.ensure_object(Session).use(name)


for _command in (
    *(lifetimes.up, lifetimes.ls, lifetimes.stop, lifetimes.start, lifetimes.rm),
    *(working.execute, working.attach, working.run, working.cancel, working.ssh),
    *(reaching.cp, reaching.ports),
    *(looking_back.logs, looking_back.replay, looking_back.diff, looking_back.verify),
    *(tools.mcp, choosing.config),
):
    cli.add_command(_command)


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
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        click.echo(f"svc: {where}{error.strerror or error}", err=True)
        sys.exit(session.failure_code)
    except ControlPlaneError as error:
        if session.json and isinstance(error, Problem):
            click.echo(json.dumps(error.document), err=True)
        else:
            click.echo(f"svc: {error}", err=True)
        sys.exit(session.failure_code)


if __name__ == "__main__":
    main()
