"""What a client may ask for when it opens a channel, and the program that is started for it."""

from __future__ import annotations

import os
import pwd
from typing import Dict, Iterable, NamedTuple, Optional, Tuple

from ..execution.runspec import Program, TerminalSpec, parse_argv, parse_object, parse_terminal
from ..process.program import Account
from ..strict import environment

BAD_REQUEST = "bad-request"
NO_SUBSYSTEM = "no-subsystem"
START_FAILED = "start-failed"
CONNECT_FAILED = "connect-failed"
TOO_MANY = "too-many"

_KINDS = ["shell", "exec", "command", "subsystem", "forward"]
_DEFAULT_SHELL = "/bin/sh"
# Accounts of images that were not made for people have one of these.
_NO_SHELLS = ("nologin", "false")
_SFTP_SERVERS = (
    "/usr/lib/openssh/sftp-server",
    "/usr/libexec/openssh/sftp-server",
    "/usr/lib/ssh/sftp-server",
    "/usr/libexec/sftp-server",
)


class Refusal(Exception):
    """A channel that is not opened; `code` says why to programs, the message to people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Request(NamedTuple):
    """One OPEN. Which members count depends on the kind."""

    kind: str
    env: Dict[str, str]
    terminal: Optional[TerminalSpec] = None
    command: str = ""
    argv: Tuple[str, ...] = ()
    name: str = ""
    host: str = ""
    port: int = 0


def parse_request(payload: bytes) -> Request:
    """The payload of OPEN; raises ConfigError for the first fault."""
    top = parse_object(payload, "the request")
    kind = top.choice("kind", _KINDS)
    if kind == "forward":
        request = Request(kind, {}, host=top.word("host"), port=top.count("port", 65535))
    else:
        request = Request(kind, environment(top))
    if kind in ("shell", "exec", "command"):
        request = request._replace(terminal=parse_terminal(top))
    if kind == "exec":
        request = request._replace(command=top.text("command"))
    elif kind == "command":
        request = request._replace(argv=parse_argv(top))
    elif kind == "subsystem":
        request = request._replace(name=top.word("name"))
    top.finish()
    return request


def program_of(request: Request, channel: int, account: Account, env: Dict[str, str]) -> Program:
    """What is started for a request; `env` is what every program of the run sees."""
    argv = request.argv
    if request.kind == "shell":
        argv = (login_shell(account), "-l")
    elif request.kind == "exec":
        argv = (login_shell(account), "-c", request.command)
    elif request.kind == "subsystem":
        argv = (_subsystem(request.name, env.get("PATH", os.defpath)),)
    return Program(argv, request.env, terminal=request.terminal, kind=request.kind, channel=channel)


def login_shell(account: Account) -> str:
    """The account's own shell, and `/bin/sh` where it has none that can be used."""
    try:
        shell = pwd.getpwuid(account.uid).pw_shell
    except KeyError:
        return _DEFAULT_SHELL
    usable = os.path.basename(shell) not in _NO_SHELLS and os.access(shell, os.X_OK)
    return shell if usable else _DEFAULT_SHELL


def _subsystem(name: str, path: str) -> str:
    if name != "sftp":
        raise Refusal(NO_SUBSYSTEM, f"there is no subsystem {name[:64]!r}")
    for candidate in _sftp_servers(path):
        if os.access(candidate, os.X_OK):
            return candidate
    raise Refusal(NO_SUBSYSTEM, "this workspace's image has no sftp-server")


def _sftp_servers(path: str) -> Iterable[str]:
    yield from _SFTP_SERVERS
    for folder in path.split(os.pathsep):
        yield os.path.join(folder, "sftp-server")
