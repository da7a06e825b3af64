"""What to boot: `boot.json`, parsed strictly into immutable values.

Unknown members, wrong types and text that no process could be given (NUL, lone surrogates) are
refused with a message that names the member by its JSON pointer. The file carries secrets, so one
that somebody else could have written or read is refused too.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any, Dict, List, NamedTuple, NoReturn, Optional, Sequence, Tuple

VERSION = 1
MAX_BYTES = 4 * 1024 * 1024
MAX_TAIL_BYTES = 1024 * 1024
MAX_SPOOL_BYTES = 1 << 40
RESERVED_PREFIX = "SVC_"


class ConfigError(Exception):
    """`boot.json` cannot be used; the message says which member and why."""


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
    """Seconds for one step, seconds between TERM and KILL, bytes of output kept for a failure."""

    step_seconds: float
    grace_seconds: float
    tail_bytes: int


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


def load(path: str) -> Config:
    """Read and parse the configuration; raises ConfigError."""
    try:
        value = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    return parse(value)


def parse(value: object) -> Config:
    """The configuration in a decoded JSON value; raises ConfigError for the first fault."""
    top = _Members(value, "")
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
        env=_environment(top),
        dotfiles=_dotfiles(top),
        setup=_steps(top, "setup"),
        startup=_steps(top, "startup"),
        foreground=_foreground(top),
        limits=_limits(top),
        record=_record(top),
        secrets=tuple(text.encode() for text in top.texts("secrets")),
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


class _Members:
    """Takes the members of one JSON object one by one, and refuses what was not taken."""

    def __init__(self, value: object, pointer: str) -> None:
        if not isinstance(value, dict):
            raise ConfigError(f"{pointer or '/'} must be an object")
        self._left: Dict[str, Any] = dict(value)
        self._pointer = pointer

    def take(self, name: str) -> Any:
        if name not in self._left:
            self.refuse(name, "is missing")
        return self._left.pop(name)

    def finish(self) -> None:
        for name in self._left:
            self.refuse(name, "is not a known member")

    def refuse(self, name: str, reason: str) -> NoReturn:
        raise ConfigError(f"{self._pointer}/{name} {reason}")

    def text(self, name: str, *, empty: bool = True) -> str:
        value = self.take(name)
        if not _is_text(value) or (not value and not empty):
            self.refuse(name, "must be text without NUL" if empty else "must be non-empty text")
        return str(value)

    def word(self, name: str) -> str:
        return self.text(name, empty=False)

    def optional(self, name: str) -> Optional[str]:
        if name in self._left and self._left[name] is None:
            del self._left[name]
            return None
        return self.word(name)

    def path(self, name: str) -> str:
        value = self.word(name)
        if not value.startswith("/"):
            self.refuse(name, "must be an absolute path")
        return value

    def flag(self, name: str) -> bool:
        value = self.take(name)
        if not isinstance(value, bool):
            self.refuse(name, "must be true or false")
        return bool(value)

    def choice(self, name: str, choices: Sequence[str]) -> str:
        value = self.take(name)
        if value not in choices:
            self.refuse(name, "must be one of " + ", ".join(choices))
        return str(value)

    def seconds(self, name: str) -> float:
        value = self.take(name)
        if type(value) not in (int, float) or not 0 <= value < 1e9:
            self.refuse(name, "must be a number of seconds")
        return float(value)

    def count(self, name: str, most: int) -> int:
        value = self.take(name)
        if type(value) is not int or not 0 <= value <= most:
            self.refuse(name, f"must be a whole number between 0 and {most}")
        return int(value)

    def items(self, name: str) -> List[Any]:
        value = self.take(name)
        if not isinstance(value, list):
            self.refuse(name, "must be a list")
        return list(value)

    def texts(self, name: str) -> Tuple[str, ...]:
        values = self.items(name)
        for index, value in enumerate(values):
            if not _is_text(value) or not value:
                self.refuse(f"{name}/{index}", "must be non-empty text")
        return tuple(values)

    def pointer(self, name: str) -> str:
        return f"{self._pointer}/{name}"


def _is_text(value: object) -> bool:
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _environment(top: _Members) -> Dict[str, str]:
    given = top.take("env")
    if not isinstance(given, dict):
        top.refuse("env", "must be an object")
    for name, value in given.items():
        if not (name.isascii() and name.isidentifier()):
            top.refuse(f"env/{name}", "is not a name for an environment variable")
        if name.startswith(RESERVED_PREFIX):
            top.refuse(
                f"env/{name}", f"is reserved: names in {RESERVED_PREFIX}* are the platform's"
            )
        if not _is_text(value):
            top.refuse(f"env/{name}", "must be text without NUL")
    return dict(given)


def _dotfiles(top: _Members) -> Optional[Dotfiles]:
    value = top.take("dotfiles")
    if value is None:
        return None
    members = _Members(value, top.pointer("dotfiles"))
    dotfiles = Dotfiles(
        path=members.path("path"),
        manager=members.choice("manager", ["auto", "copy", "stow", "chezmoi"]),
        target=members.choice("target", ["home", "config"]),
        bootstrap=members.flag("bootstrap"),
        bootstrap_command=members.optional("bootstrapCommand"),
    )
    members.finish()
    return dotfiles


def _steps(top: _Members, name: str) -> Tuple[Step, ...]:
    steps = []
    for index, value in enumerate(top.items(name)):
        members = _Members(value, top.pointer(f"{name}/{index}"))
        step_name = members.word("name")
        steps.append(_step(members, step_name))
        members.finish()
    return tuple(steps)


def _step(members: _Members, name: str) -> Step:
    return Step(
        name=name,
        run=members.word("run"),
        shell=members.choice("shell", ["sh", "bash"]),
        working_directory=members.optional("workingDirectory"),
    )


def _foreground(top: _Members) -> Foreground:
    members = _Members(top.take("foreground"), top.pointer("foreground"))
    kind = members.choice("kind", ["harness", "command"])
    if kind == "harness":
        foreground = Foreground(kind, members.texts("command"), None)
    else:
        foreground = Foreground(kind, (), _step(members, "foreground"))
    members.finish()
    return foreground


def _limits(top: _Members) -> Limits:
    members = _Members(top.take("limits"), top.pointer("limits"))
    limits = Limits(
        step_seconds=members.seconds("stepSeconds"),
        grace_seconds=members.seconds("graceSeconds"),
        tail_bytes=members.count("tailBytes", MAX_TAIL_BYTES),
    )
    members.finish()
    return limits


def _record(top: _Members) -> Record:
    members = _Members(top.take("record"), top.pointer("record"))
    record = Record(
        policy=members.choice("policy", ["block", "drop"]),
        input=members.choice("input", ["off", "masked", "full"]),
        spool_bytes=members.count("spoolBytes", MAX_SPOOL_BYTES),
        segment_bytes=members.count("segmentBytes", MAX_SPOOL_BYTES),
        restart=members.flag("restart"),
    )
    members.finish()
    return record
