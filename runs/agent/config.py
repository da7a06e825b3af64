"""What to boot: `boot.json`, parsed strictly into immutable values.

Unknown members, wrong types and text that no process could be given (NUL, lone surrogates) are
refused with a message that names the member by its JSON pointer. The file carries secrets, so one
that somebody else could have written or read is refused too.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Dict, NamedTuple, Optional, Tuple

from .strict import ConfigError, Members, environment

__all__ = ["Config", "ConfigError", "Dotfiles", "Step", "load", "parse"]

VERSION = 1
MAX_BYTES = 4 * 1024 * 1024
MAX_TAIL_BYTES = 1024 * 1024
MAX_SPOOL_BYTES = 1 << 40
CREDENTIALS_PLACE = "/run/svc"
DEFAULT_CREDENTIAL_SECONDS = 300.0


class Step(NamedTuple):
    """One setup or startup step. `working_directory` None means the configuration's own."""

    name: str
    run: str
    shell: str
    working_directory: Optional[str]


class Foreground(NamedTuple):
    """What keeps the workspace open.

    A step (kind `command`), or the harness itself (kind `harness`, `command` is its argv, empty
    for a plain shell), which sessions and runs start later.
    """

    kind: str
    command: Tuple[str, ...]
    step: Optional[Step]


class Dotfiles(NamedTuple):
    """Where the dotfiles checkout lies and how it is applied."""

    path: str
    manager: str
    target: str
    bootstrap: bool
    bootstrap_command: Optional[str]


class Limits(NamedTuple):
    """Seconds for one step, seconds between TERM and KILL, bytes of output kept for a failure.

    `credential_seconds`: how long a boot waits for its credentials.
    """

    step_seconds: float
    grace_seconds: float
    tail_bytes: int
    credential_seconds: float


class Record(NamedTuple):
    """How the boot is recorded, and whether a restart of the container goes on with the record."""

    policy: str
    input: str
    spool_bytes: int
    segment_bytes: int
    restart: bool


class Config(NamedTuple):
    """Everything that one boot needs to know."""

    run_id: str
    workspace_id: str
    attempt_id: str
    user: str
    home: str
    shell: str
    sudo: bool
    workspace_root: str
    working_directory: str
    env: Dict[str, str]
    dotfiles: Optional[Dotfiles]
    setup: Tuple[Step, ...]
    startup: Tuple[Step, ...]
    foreground: Foreground
    limits: Limits
    record: Record
    secrets: Tuple[bytes, ...]
    credentials: Optional[str] = None
    """Where the memory is mounted that holds them; None: the workspace gets none."""


def load(path: str) -> Config:
    """Read and parse the configuration; raises ConfigError."""
    return parse(read_json(path))


def read_json(path: str) -> object:
    """The configuration as it stands there, decoded; raises ConfigError."""
    try:
        return json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None


def parse(value: object) -> Config:
    """The configuration in a decoded JSON value; raises ConfigError for the first fault."""
    top = Members(value, "")
    version = top.take("version")
    if type(version) is not int or version != VERSION:
        top.refuse("version", f"must be {VERSION}")
    config = Config(
        run_id=top.word("runId"),
        workspace_id=top.word("workspaceId"),
        attempt_id=top.word("attemptId"),
        user=top.word("user"),
        home=top.path("home"),
        shell=top.path("shell"),
        sudo=top.flag("sudo"),
        workspace_root=top.path("workspaceRoot"),
        working_directory=top.path("workingDirectory"),
        env=environment(top),
        dotfiles=_dotfiles(top),
        setup=_steps(top, "setup"),
        startup=_steps(top, "startup"),
        foreground=_foreground(top),
        limits=_limits(top),
        record=_record(top),
        secrets=tuple(text.encode() for text in top.texts("secrets")),
        credentials=_credentials(top),
    )
    top.finish()
    return config


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"{path} is not a regular file")
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise ConfigError(f"{path} must belong to the agent's user and have mode 0600")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            content = file.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path} is larger than {MAX_BYTES} bytes")
    return content


def _dotfiles(top: Members) -> Optional[Dotfiles]:
    value = top.take("dotfiles")
    if value is None:
        return None
    members = Members(value, top.pointer("dotfiles"))
    dotfiles = Dotfiles(
        path=members.path("path"),
        manager=members.choice("manager", ["auto", "copy", "stow", "chezmoi"]),
        target=members.choice("target", ["home", "config"]),
        bootstrap=members.flag("bootstrap"),
        bootstrap_command=members.optional("bootstrapCommand"),
    )
    members.finish()
    return dotfiles


def _steps(top: Members, name: str) -> Tuple[Step, ...]:
    steps = []
    for index, value in enumerate(top.items(name)):
        members = Members(value, top.pointer(f"{name}/{index}"))
        step_name = members.word("name")
        steps.append(_step(members, step_name))
        members.finish()
    return tuple(steps)


def _step(members: Members, name: str) -> Step:
    return Step(
        name=name,
        run=members.word("run"),
        shell=members.choice("shell", ["sh", "bash"]),
        working_directory=members.optional("workingDirectory"),
    )


def _foreground(top: Members) -> Foreground:
    members = Members(top.take("foreground"), top.pointer("foreground"))
    kind = members.choice("kind", ["harness", "command"])
    if kind == "harness":
        foreground = Foreground(kind, members.texts("command"), None)
    else:
        foreground = Foreground(kind, (), _step(members, "foreground"))
    members.finish()
    return foreground


def _limits(top: Members) -> Limits:
    members = Members(top.take("limits"), top.pointer("limits"))
    limits = Limits(
        step_seconds=members.seconds("stepSeconds"),
        grace_seconds=members.seconds("graceSeconds"),
        tail_bytes=members.count("tailBytes", MAX_TAIL_BYTES),
        credential_seconds=members.seconds("credentialSeconds")
        if members.has("credentialSeconds")
        else DEFAULT_CREDENTIAL_SECONDS,
    )
    members.finish()
    return limits


def _credentials(top: Members) -> Optional[str]:
    """Whether the boot waits for credentials; a path is for those who cannot mount anything."""
    if not top.has("credentials"):
        return None
    if top.is_text("credentials"):
        return top.path("credentials")
    return CREDENTIALS_PLACE if top.flag("credentials") else None


def _record(top: Members) -> Record:
    members = Members(top.take("record"), top.pointer("record"))
    record = Record(
        policy=members.choice("policy", ["block", "drop"]),
        input=members.choice("input", ["off", "masked", "full"]),
        spool_bytes=members.count("spoolBytes", MAX_SPOOL_BYTES),
        segment_bytes=members.count("segmentBytes", MAX_SPOOL_BYTES),
        restart=members.flag("restart"),
    )
    members.finish()
    return record
