"""The command line: the container's entry, and what the control plane calls through the engine.

Exit codes are part of the contract and are listed in the package's README.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

CONFIG_PATH = "/etc/svc/boot.json"
STATE_DIRECTORY = "/var/lib/svc"


def main(arguments: Optional[List[str]] = None, *, compiled: Optional[str] = None) -> int:
    """Run one subcommand and return the exit code of the process.

    Each one is imported when it is called: a call through the engine waits for the interpreter.
    `compiled`: where this archive's modules are looked for as byte code.
    """
    given = sys.argv[1:] if arguments is None else arguments
    # To describe one subcommand takes a third of the time that all of them take.
    asked = [name for name in given[:1] if name in _COMMANDS] or list(_COMMANDS)
    options = _parser(asked).parse_args(given, argparse.Namespace(compiled=compiled))
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


def _credentials(options: argparse.Namespace) -> int:
    from .credentials.command import run

    return run(options.action, options.config, options.state_dir, options.wait)


def _git_credential(options: argparse.Namespace) -> int:
    from .credentials.git_helper import answer

    return answer(options.operation, options.host, options.token)


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
    "credentials": _credentials,
    "git-credential": _git_credential,
    "compile": _compile,
}


_WITHOUT_STATE = ("dotfiles", "git-credential")


def _runs(options: argparse.Namespace) -> str:
    return os.path.join(os.path.abspath(options.state_dir), "runs")


def _parser(asked: List[str]) -> argparse.ArgumentParser:
    """A parser that knows the subcommands that are asked for."""
    parser = _Parser(prog="agent", description=__doc__)
    subcommands = parser.add_subparsers(dest="subcommand", required=True, prog="agent")
    for name in asked:
        purpose, describe = _DESCRIPTIONS[name]
        made = subcommands.add_parser(name, help=purpose)
        if name not in _WITHOUT_STATE:
            made.add_argument("--state-dir", default=STATE_DIRECTORY, help="default: %(default)s")
        if name in ("boot", "exec", "session", "credentials"):
            made.add_argument("--config", default=CONFIG_PATH, help="default: %(default)s")
        if describe is not None:
            describe(made)
    return parser


class _Parser(argparse.ArgumentParser):
    def __init__(self, **members: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_Formatter, **members)


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        # To ask the terminal for its width costs imports, also where no help is asked for.
        super().__init__(prog, width=100)


def _describe_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--wait", type=float, default=0.0, metavar="SECONDS")


def _describe_tail(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=_run_id)
    parser.add_argument("--from", dest="start", type=_sequence, default=1, metavar="SEQUENCE")


def _describe_stop(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=_run_id)
    parser.add_argument("--reason", default="cancelled", choices=["cancelled", "timeout", "stop"])
    parser.add_argument("--grace", type=float, metavar="SECONDS")


def _describe_forward(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)


def _describe_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run")


def _describe_dotfiles(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--source", required=True)
    parser.add_argument("--manager", required=True, choices=["auto", "copy", "stow", "chezmoi"])
    parser.add_argument("--home", required=True)
    parser.add_argument("--target", required=True, choices=["home", "config"])


def _describe_credentials(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["deliver", "collect", "withdraw"])
    parser.add_argument("--wait", type=float, metavar="SECONDS", help="for deliver: then status")


def _describe_git_credential(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", required=True)
    parser.add_argument("--token", required=True, metavar="FILE")
    parser.add_argument("operation")


_DESCRIPTIONS: Dict[str, Tuple[str, Optional[Callable[[argparse.ArgumentParser], None]]]] = {
    "boot": ("start the workspace; the container's entry", None),
    "status": ("print the status of the boot as JSON", _describe_status),
    "exec": ("run one recorded command; its spec is read from stdin", None),
    "session": ("run one recorded session; frames on stdin and stdout", None),
    "tail": ("stream the record of a run; take acknowledgements from stdin", _describe_tail),
    "stop": ("end everything of a run: TERM, and KILL after the grace", _describe_stop),
    "forward": ("connect stdin and stdout to a port of this workspace", _describe_forward),
    "runs": ("list the records that wait here, as JSON", None),
    "verify": ("check the record of a run, or in a folder; nothing is changed", _describe_verify),
    "dotfiles": ("apply a dotfiles checkout as this user", _describe_dotfiles),
    "credentials": (
        "take, give back or remove accounts; documents on stdin",
        _describe_credentials,
    ),
    "git-credential": ("answer git, which runs this as the user", _describe_git_credential),
    "compile": ("compile this archive for all later starts; for builds of images", None),
}


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
