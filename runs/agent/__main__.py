"""The command line: the container's entry, and what the control plane calls through the engine.

Exit codes are part of the contract and are listed in the package's README.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import List, Optional

CONFIG_PATH = "/etc/svc/boot.json"
STATE_DIRECTORY = "/var/lib/svc"


def main(arguments: Optional[List[str]] = None, *, compiled: Optional[str] = None) -> int:
    """Run one subcommand and return the exit code of the process.

    Each one is imported when it is called: a call through the engine waits for the interpreter.
    `compiled`: where this archive's modules are looked for as byte code.
    """
    options = _parser().parse_args(arguments, argparse.Namespace(compiled=compiled))
    code: int = _COMMANDS[options.subcommand](options)
    return code


def _boot(options: argparse.Namespace) -> int:
    from .boot import boot

    return boot(options.config, options.state_dir)


def _status(options: argparse.Namespace) -> int:
    from .status_command import show

    return show(options.state_dir, options.wait)


def _exec(options: argparse.Namespace) -> int:
    from .exec_command import execute

    return execute(options.config, options.state_dir)


def _session(options: argparse.Namespace) -> int:
    from .session import converse

    return converse(options.config, options.state_dir)


def _tail(options: argparse.Namespace) -> int:
    from .follow import tail

    return tail(_runs(options), options.run, options.start)


def _stop(options: argparse.Namespace) -> int:
    from .stop import stop

    return stop(options.state_dir, options.run, options.reason, options.grace)


def _forward(options: argparse.Namespace) -> int:
    from .forward import forward

    return forward(options.host, options.port)


def _list_runs(options: argparse.Namespace) -> int:
    from .runs_command import show

    return show(_runs(options))


def _verify(options: argparse.Namespace) -> int:
    from .verify import verify

    return verify(_runs(options), options.run)


def _dotfiles(options: argparse.Namespace) -> int:
    from .dotfiles import apply

    return apply(options.source, options.manager, options.home, options.target)


def _compile(options: argparse.Namespace) -> int:
    from .compiled import compile_archive

    return compile_archive(os.path.abspath(sys.argv[0]), options.compiled)


_COMMANDS = {
    "boot": _boot,
    "status": _status,
    "exec": _exec,
    "session": _session,
    "tail": _tail,
    "stop": _stop,
    "forward": _forward,
    "runs": _list_runs,
    "verify": _verify,
    "dotfiles": _dotfiles,
    "compile": _compile,
}


def _runs(options: argparse.Namespace) -> str:
    return os.path.join(os.path.abspath(options.state_dir), "runs")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agent", description=__doc__, allow_abbrev=False)
    subcommands = parser.add_subparsers(dest="subcommand", required=True)

    def command(name: str, purpose: str, *, config: bool = False) -> argparse.ArgumentParser:
        made = subcommands.add_parser(name, help=purpose, allow_abbrev=False)
        made.add_argument("--state-dir", default=STATE_DIRECTORY, help="default: %(default)s")
        if config:
            made.add_argument("--config", default=CONFIG_PATH, help="default: %(default)s")
        return made

    command("boot", "start the workspace; the container's entry", config=True)
    status = command("status", "print the status of the boot as JSON")
    status.add_argument("--wait", type=float, default=0.0, metavar="SECONDS")

    command("exec", "run one recorded command; its spec is read from stdin", config=True)
    command("session", "run one recorded session; frames on stdin and stdout", config=True)
    tail = command("tail", "stream the record of a run, and take acknowledgements from stdin")
    tail.add_argument("run", type=_run_id)
    tail.add_argument("--from", dest="start", type=_sequence, default=1, metavar="SEQUENCE")
    stop = command("stop", "end everything of a run: TERM, and KILL after the grace")
    stop.add_argument("run", type=_run_id)
    stop.add_argument("--reason", default="cancelled", choices=["cancelled", "timeout", "stop"])
    stop.add_argument("--grace", type=float, metavar="SECONDS")
    forward = command("forward", "connect stdin and stdout to a port of this workspace")
    forward.add_argument("--host", default="127.0.0.1")
    forward.add_argument("--port", type=int, required=True)
    command("runs", "list the records that wait here, as JSON")
    verify = command("verify", "check the record of a run, or in a folder, without changing it")
    verify.add_argument("run")

    dotfiles = subcommands.add_parser("dotfiles", help="apply a dotfiles checkout as this user")
    dotfiles.add_argument("--source", required=True)
    dotfiles.add_argument("--manager", required=True, choices=["auto", "copy", "stow", "chezmoi"])
    dotfiles.add_argument("--home", required=True)
    dotfiles.add_argument("--target", required=True, choices=["home", "config"])
    command("compile", "compile this archive once for all starts; done while an image is built")
    return parser


def _run_id(text: str) -> str:
    # It becomes a path below the state folder.
    if not text or "/" in text or text.startswith("."):
        raise argparse.ArgumentTypeError("is not the id of a run")
    return text


def _sequence(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("sequences count from 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
