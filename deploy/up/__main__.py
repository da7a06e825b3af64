"""`python3 -m deploy.up <command>`: what the Makefile calls. Needs Python 3.11 and nothing else."""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - the one place that an older Python gets to read
    sys.exit(
        f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}. "
        "Name one: make PYTHON=python3.12 ..."
    )

import argparse
import errno
import os
from collections.abc import Mapping
from pathlib import Path

from deploy.services.errors import SetupError
from deploy.up import demo, removal, setup
from deploy.up.addresses import admin_url, api_url, ssh_host, ssh_port, ssh_user
from deploy.up.environment import (
    complete,
    current_environ,
    load_derived,
    settings_only,
    shell_exports,
)
from deploy.up.layout import Layout
from deploy.up.node.node_packages import node_programs
from deploy.up.own_processes import PROCESSES, OwnProcesses
from deploy.up.progress import Progress
from deploy.up.secrets import ensure_secrets

STOPPED = 3
"""The exit code of `status` when nothing of ours runs, as of other programs that tell this."""

_TAKES_NOTHING = {errno.EROFS, errno.ENOSPC, errno.EDQUOT}


def main() -> int:
    """Run one command; the exit code is 0 when it did what it says."""
    arguments = _parser().parse_args()
    progress = Progress()
    try:
        layout = Layout.of(Path(__file__).resolve().parents[2], os.environ)
        return _run(arguments, layout, progress)
    except SetupError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno not in _TAKES_NOTHING:
            raise
        place = (
            f"{error.filename} cannot be written" if error.filename else "A file cannot be written"
        )
        hint = "Correct that or name another folder in SVC_DATA_DIR."
        print(f"\n{place}: {error.strerror}. {hint}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. Whatever was started keeps running; run the same command again.")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m deploy.up", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="set everything up and start it")
    commands.add_parser("demo", help="up, then build and start a workspace from examples/")
    commands.add_parser("status", help="show what is running")
    commands.add_parser("down", help="stop what was started; no data is lost")
    clean = commands.add_parser("clean", help="down, then remove all data of this checkout")
    clean.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    commands.add_parser("prepare-test", help="the services and tools that the tests need")
    commands.add_parser("prepare-lint", help="the tools that the linters need")
    env = commands.add_parser("env", help="print the settings as shell exports")
    env.add_argument("--test", action="store_true", help="the settings of a test run")
    run = commands.add_parser("run", help="run a program with the settings")
    run.add_argument("--test", action="store_true", help="the settings of a test run")
    run.add_argument("program", nargs=argparse.REMAINDER, help="the program and its arguments")
    return parser


def _run(arguments: argparse.Namespace, layout: Layout, progress: Progress) -> int:
    command = arguments.command
    if command == "env":
        print(shell_exports(settings_only(_environ(layout, test=arguments.test))), end="")
        return 0
    if command == "run":
        return _become(arguments.program, layout, test=arguments.test)
    if command == "status":
        return _status(layout)
    if command == "clean" and not (arguments.yes or removal.confirm(layout)):
        print("Nothing was removed.")
        return 1
    with setup.only_one(layout, progress):
        if command in {"up", "demo"}:
            system = setup.up(layout, progress, ssh_client=command == "demo")
            _summarize(layout, system, progress)
        elif command == "down":
            setup.down(layout, progress)
            removal.mention_workspaces(layout, progress)
        elif command == "clean":
            removal.clean(layout, progress)
        elif command == "prepare-test":
            setup.prepare(layout, progress, test=True)
        elif command == "prepare-lint":
            setup.prepare_lint(layout, progress)
    if command == "demo":
        return demo.run(layout, api_url(system.environ), system.environ, progress)
    return 0


def _environ(layout: Layout, *, test: bool) -> dict[str, str]:
    layout.create()
    ensure_secrets(layout.secrets)
    return complete(layout, current_environ(), load_derived(layout), test=test)


def _become(program: list[str], layout: Layout, *, test: bool) -> int:
    """Replace this process by the program, so that its exit code and last words are its own."""
    argv = program[1:] if program[:1] == ["--"] else program
    if not argv:
        raise SetupError("Say which program to run: python3 -m deploy.up run -- PROGRAM ARGUMENTS")
    environ = _environ(layout, test=test)
    path = (layout.venv / "bin", node_programs(layout), environ.get("PATH", os.defpath))
    environ["PATH"] = os.pathsep.join(str(part) for part in path)
    try:
        os.execvpe(argv[0], argv, environ)  # noqa: S606 - becoming it is the point
    except OSError as error:
        raise SetupError(f"{argv[0]} cannot be run: {error.strerror}.") from error


def _status(layout: Layout) -> int:
    """Say what runs; exit code 0 when our own processes run, STOPPED when none does."""
    layout.create()
    ensure_secrets(layout.secrets)
    environ = complete(layout, current_environ(), load_derived(layout))
    for service in setup.private_services(layout):
        state = f"running, pid {service.pid}" if service.running else "stopped"
        print(f"  {service.name:<18} {state}  {service.root}")
    used = [word.split(":") for word in environ.get("SVC_UP_PARTS", "").split(",") if word]
    for key, how in used:
        if how != "private":
            print(f"  {key:<18} {how} on this machine or named by a setting")
    states = OwnProcesses(layout).states()
    for process in PROCESSES:
        state = (states or {}).get(process.name, "stopped")
        print(f"  {process.name:<18} {state.lower()}")
    if states is None:
        print("\n  Nothing of ours runs. Start it: make up")
        return STOPPED
    print(f"\n  API  {api_url(environ)}\n  SSH  {_ssh_line(environ)}")
    return 0


def _ssh_line(environ: Mapping[str, str]) -> str:
    """How a workspace is entered."""
    user = ssh_user(environ, "<workspaceId>")
    return f"ssh -p {ssh_port(environ)} {user}@{ssh_host(environ)}"


def _summarize(layout: Layout, system: setup.System, progress: Progress) -> None:
    url = api_url(system.environ)
    print(
        f"\nReady after {progress.seconds:.1f} s.\n\n"
        f"  API             {url}\n"
        f"  API reference   {url}/docs\n"
        f"  Admin           {admin_url(system.environ)}    (an account for it: make staff)\n"
        f"  SSH             {_ssh_line(system.environ)}\n"
        f"  Settings, data  {layout.secrets}, {layout.data}\n"
        f"  Logs            {layout.log}\n"
        f"  Stop            make down    (starts again with: make up; no data is lost)\n"
    )


if __name__ == "__main__":
    sys.exit(main())
