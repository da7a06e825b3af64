"""The command line: the container's entry, and what the control plane calls through the engine.

Exit codes are part of the contract and are listed in the package's README.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import List, Optional

from .arguments import Member, Refused, Subcommand, read

CONFIG_PATH = "/etc/svc/boot.json"
STATE_DIRECTORY = "/var/lib/svc"


def main(arguments: Optional[List[str]] = None, *, compiled: Optional[str] = None) -> int:
    """Run one subcommand and return the exit code of the process.

    Each one is imported when it is called: a call through the engine waits for the interpreter.
    `compiled`: where this archive's modules are looked for as byte code.
    """
    given = sys.argv[1:] if arguments is None else arguments
    subcommand, options = read(given, _SUBCOMMANDS)
    options.compiled = compiled
    return subcommand.act(options)


def _boot(options: SimpleNamespace) -> int:
    from .boot.sequence import boot

    return boot(options.config, options.state_dir, main)


def _bind(options: SimpleNamespace) -> int:
    from .boot.binding import bind

    return bind(options.config, options.state_dir, options.wait)


def _status(options: SimpleNamespace) -> int:
    from .status_command import show

    return show(options.state_dir, options.wait)


def _exec(options: SimpleNamespace) -> int:
    from .execution.exec_command import execute

    return execute(options.config, options.state_dir, follow=options.then == "tail")


def _session(options: SimpleNamespace) -> int:
    from .session.session import converse

    return converse(options.config, options.state_dir)


def _tail(options: SimpleNamespace) -> int:
    from .record.follow import tail

    return tail(_runs(options), options.run, options.start)


def _stop(options: SimpleNamespace) -> int:
    from .execution.stop import stop

    return stop(options.state_dir, options.run, options.reason, options.grace)


def _input(options: SimpleNamespace) -> int:
    from .execution.exec_command import read_spec
    from .execution.run_input import give

    return give(options.state_dir, options.run, read_spec)


def _files(options: SimpleNamespace) -> int:
    from .files.files_command import serve

    return serve(options.config, options.state_dir)


def _ports(options: SimpleNamespace) -> int:
    from .files.listening import show

    return show(options.config)


def _forward(options: SimpleNamespace) -> int:
    from .session.forward import forward

    return forward(options.host, options.port)


def _connect(options: SimpleNamespace) -> int:
    from .session.port_connections import serve

    return serve(options.state_dir)


def _list_runs(options: SimpleNamespace) -> int:
    from .execution.runs_command import show

    return show(_runs(options))


def _verify(options: SimpleNamespace) -> int:
    from .record.spool_check import verify

    return verify(_runs(options), options.run)


def _dotfiles(options: SimpleNamespace) -> int:
    from .dotfiles import apply

    return apply(options.source, options.manager, options.home, options.target)


def _credentials(options: SimpleNamespace) -> int:
    from .credentials.credential_command import run

    return run(options.action, options.config, options.state_dir, options.wait)


def _git_credential(options: SimpleNamespace) -> int:
    from .credentials.git_helper import answer

    return answer(options.operation, options.host, options.token)


def _compile(options: SimpleNamespace) -> int:
    from .boot.compiled import compile_archive

    return compile_archive(os.path.abspath(sys.argv[0]), options.compiled)


def _runs(options: SimpleNamespace) -> str:
    return os.path.join(os.path.abspath(options.state_dir), "runs")


def _run_id(text: str) -> str:
    # It becomes a path below the state folder.
    if not text or "/" in text or text.startswith("."):
        raise Refused("is not the id of a run")
    return text


def _sequence(text: str) -> int:
    number = int(text)
    if number < 1:
        raise Refused("must be a sequence, which count from 1")
    return number


_STATE = Member("--state-dir", STATE_DIRECTORY)
_CONFIG = Member("--config", CONFIG_PATH)
_RUN = Member("run", convert=_run_id)

_SUBCOMMANDS = {
    "boot": Subcommand(
        "start the workspace; the container's entry",
        _boot,
        (_STATE, _CONFIG),
    ),
    "bind": Subcommand(
        "make an unbound workspace that of a run; its configuration is read from stdin",
        _bind,
        (_STATE, _CONFIG, Member("--wait", 0.0, convert=float)),
    ),
    "status": Subcommand(
        "print the status of the boot as JSON",
        _status,
        (_STATE, Member("--wait", 0.0, convert=float)),
    ),
    "exec": Subcommand(
        "run one recorded command; its spec is read from stdin",
        _exec,
        (_STATE, _CONFIG, Member("--then", choices=("tail",))),
    ),
    "session": Subcommand(
        "run one recorded session; frames on stdin and stdout",
        _session,
        (_STATE, _CONFIG),
    ),
    "tail": Subcommand(
        "stream the record of a run; take acknowledgements from stdin",
        _tail,
        (_STATE, _RUN, Member("--from", 1, convert=_sequence, destination="start")),
    ),
    "stop": Subcommand(
        "end everything of a run: TERM, and KILL after the grace",
        _stop,
        (
            _STATE,
            _RUN,
            Member("--reason", "cancelled", choices=("cancelled", "timeout", "stop")),
            Member("--grace", convert=float),
        ),
    ),
    "input": Subcommand(
        "give the program of a one-shot run input, signals and sizes; they are read from stdin",
        _input,
        (_STATE, _RUN),
    ),
    "forward": Subcommand(
        "connect stdin and stdout to a port of this workspace",
        _forward,
        (_STATE, Member("--host", "127.0.0.1"), Member("--port", required=True, convert=int)),
    ),
    "connect": Subcommand(
        "make connections to ports of this workspace; frames on stdin and stdout",
        _connect,
        (_STATE,),
    ),
    "files": Subcommand(
        "read or change files as the workspace's user; frames on stdin and stdout",
        _files,
        (_STATE, _CONFIG),
    ),
    "ports": Subcommand(
        "list what listens on TCP ports, as JSON",
        _ports,
        (_STATE, _CONFIG),
    ),
    "runs": Subcommand(
        "list the records that wait here, as JSON",
        _list_runs,
        (_STATE,),
    ),
    "verify": Subcommand(
        "check the record of a run, or in a folder; nothing is changed",
        _verify,
        (_STATE, Member("run")),
    ),
    "dotfiles": Subcommand(
        "apply a dotfiles checkout as this user",
        _dotfiles,
        (
            Member("--source", required=True),
            Member("--manager", required=True, choices=("auto", "copy", "stow", "chezmoi")),
            Member("--home", required=True),
            Member("--target", required=True, choices=("home", "config")),
        ),
    ),
    "credentials": Subcommand(
        "take, give back or remove accounts; documents on stdin",
        _credentials,
        (
            _STATE,
            _CONFIG,
            Member("action", choices=("deliver", "collect", "withdraw")),
            # For deliver: then the status, after so many seconds at the latest.
            Member("--wait", convert=float),
        ),
    ),
    "git-credential": Subcommand(
        "answer git, which runs this as the user",
        _git_credential,
        (
            Member("--host", required=True),
            Member("--token", required=True),
            Member("operation"),
        ),
    ),
    "compile": Subcommand(
        "compile this archive for all later starts; for builds of images",
        _compile,
        (_STATE,),
    ),
}


if __name__ == "__main__":
    sys.exit(main())
