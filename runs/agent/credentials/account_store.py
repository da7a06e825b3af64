"""The files in memory: one set of accounts, replaced as a whole.

    /run/svc/                       root's, 0711; the memory, mounted by the engine
        credentials -> set-…        the present set; missing until the first delivery
        set-…/accounts.json         root's, 0600: the accounts as they were delivered
              gitconfig             everybody's to read: names the helper, and no secret
              codex/auth.json       the user's, 0600, in a folder of the user's: its tool renews it
              github/token          the user's, 0600: for the helper of git
        values.json                 root's, 0600: what recorders mask, of earlier sets too
        lock                        held by whoever changes any of this

A set is made completely before the link leads to it, so a crash leaves the old or the new one. What
it leaves lying about is removed by the next change. Folders of the user are never read or removed
through a path that the user could have replaced.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from ..process.program import Account as User
from .document import MAX_SECRET_BYTES, Account, is_codex, lines_of, secrets_of

CURRENT = "credentials"
VALUES = "values.json"
CODEX = ("codex", "auth.json")
GITHUB = ("github", "token")
MAX_VALUES_BYTES = 1536 * 1024

_LOCK = "lock"
_ACCOUNTS = "accounts.json"
_GITCONFIG = "gitconfig"
_SET = "set-"
_MAX_DEPTH = 32
_MAX_FILES = 4
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC


class NoPlace(Exception):
    """There is no memory of ours to keep credentials in; the message says why."""


class CredentialSet(NamedTuple):
    """The accounts of one delivery, and what could not be done with them, in sentences."""

    accounts: Tuple[Account, ...] = ()
    notes: Tuple[str, ...] = ()

    def of(self, provider: str) -> Optional[Account]:
        """The account of a provider that has one at most."""
        return next((item for item in self.accounts if item.provider == provider), None)

    def without(self, ids: Iterable[str]) -> CredentialSet:
        """The set with these accounts removed."""
        gone = frozenset(ids)
        return CredentialSet(tuple(item for item in self.accounts if item.id not in gone))


def is_delivered(place: str) -> bool:
    """Whether there is a set, be it an empty one."""
    return os.path.lexists(os.path.join(place, CURRENT))


def path_of(place: str, *names: str) -> str:
    """Where a file of the present set is, whichever set that is."""
    return os.path.join(place, CURRENT, *names)


def read_set(place: str) -> Optional[CredentialSet]:
    """The present set; None before the first delivery."""
    try:
        with open(path_of(place, _ACCOUNTS), "rb") as file:
            kept = json.load(file)
    except FileNotFoundError:
        return None
    accounts = tuple(Account(**item) for item in kept["accounts"])
    return CredentialSet(accounts, tuple(kept["notes"]))


def environment(place: str) -> Dict[str, str]:
    """The variables that the present set gives to every program of the user."""
    present = read_set(place) or CredentialSet()
    env: Dict[str, str] = {}
    for account in present.accounts:
        if account.provider == "claude":
            env["CLAUDE_CODE_OAUTH_TOKEN"] = account.secret
        if account.provider == "github":
            env["GH_TOKEN"] = env["GITHUB_TOKEN"] = account.secret
            # Not GIT_CONFIG_KEY_…: tools that hide variables with such names from what they start
            # would leave git with half of them, and git refuses to work then.
            env["GIT_CONFIG_SYSTEM"] = path_of(place, _GITCONFIG)
    generic = (item for item in present.accounts if item.provider == "generic")
    env.update({item.name: item.secret for item in generic})
    return env


def read_renewable(place: str, user: User) -> Optional[str]:
    """The file that a provider's tool renews, as it is now; None when it makes no sense."""
    try:
        folder = os.open(path_of(place, CODEX[0]), _FOLDER)
    except OSError:
        return None
    try:
        return read_codex(CODEX[1], user, folder)
    finally:
        os.close(folder)


def read_codex(name: str, user: User, folder: Optional[int] = None) -> Optional[str]:
    """A regular file of the user with the provider's JSON; None for everything else."""
    try:
        descriptor = os.open(name, _READ, dir_fd=folder)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != user.uid:
            return None
        with os.fdopen(os.dup(descriptor), "rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
        secret = content.decode()
    except (OSError, UnicodeDecodeError):
        return None
    finally:
        os.close(descriptor)
    return secret if len(content) <= MAX_SECRET_BYTES and is_codex(secret) else None


class Store:
    """The one who may change the files, for as long as it is open. Raises NoPlace and OSError."""

    def __init__(self, place: str, user: User, helper: Sequence[str], gitconfig: str) -> None:
        self._place = place
        self._user = user
        self._helper = helper
        self._inherited_gitconfig = gitconfig
        try:
            self._folder = os.open(place, _FOLDER)
        except OSError as error:
            raise NoPlace(f"there is no memory at {place}: {error.strerror}") from None
        try:
            found = os.fstat(self._folder)
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise NoPlace(f"{place} is not the agent's own")
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._lock = os.open(_LOCK, flags, 0o600, dir_fd=self._folder)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except BaseException:
            os.close(self._folder)
            raise

    def close(self) -> None:
        """Let others change the files."""
        os.close(self._lock)
        os.close(self._folder)

    def prepare(self, made: CredentialSet) -> str:
        """Make a set that is not the present one yet; returns its name.

        From now on its values are masked: nobody can read them before.
        """
        self._remove_others()
        self._remember(made)
        name = _SET + os.urandom(8).hex()
        try:
            self._write_set(name, made)
        except BaseException:
            self._remove(name)
            raise
        return name

    def publish(self, name: str) -> None:
        """Make a prepared set the present one."""
        link = name.replace(_SET, "link-")
        os.symlink(name, link, dir_fd=self._folder)
        os.rename(link, CURRENT, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._remove_others()

    def discard(self, name: str) -> None:
        """Remove a prepared set."""
        self._remove(name)

    def _write_set(self, name: str, made: CredentialSet) -> None:
        os.mkdir(name, 0o700, dir_fd=self._folder)
        folder = os.open(name, _FOLDER, dir_fd=self._folder)
        try:
            os.fchmod(folder, 0o711)
            kept = {"accounts": [item.to_wire() for item in made.accounts], "notes": made.notes}
            _write(folder, _ACCOUNTS, _json(kept))
            codex, github = made.of("codex"), made.of("github")
            if codex is not None:
                self._write_for_user(folder, CODEX, codex.secret)
            if github is not None:
                self._write_for_user(folder, GITHUB, github.secret)
                _write(folder, _GITCONFIG, self._gitconfig(github).encode(), 0o644)
        finally:
            os.close(folder)

    def _write_for_user(self, folder: int, place: Tuple[str, str], secret: str) -> None:
        os.mkdir(place[0], 0o700, dir_fd=folder)
        inner = os.open(place[0], _FOLDER, dir_fd=folder)
        try:
            # The folder becomes the user's only when the file is there.
            _write(inner, place[1], secret.encode(), 0o600, self._user)
            if os.geteuid() == 0:
                os.fchown(inner, self._user.uid, self._user.gid)
        finally:
            os.close(inner)

    def _gitconfig(self, github: Account) -> str:
        token = path_of(self._place, *GITHUB)
        helper = " ".join((*self._helper, "--host", github.host, "--token", token))
        return (
            f"[include]\n\tpath = {_quoted(self._inherited_gitconfig)}\n"
            f'[credential "https://{github.host}"]\n\thelper = {_quoted(helper)}\n'
        )

    def _remember(self, made: CredentialSet) -> None:
        """Add to the values that are masked; when there are too many, the oldest are left out."""
        before = _read_remembered(self._place)
        added = [value.decode() for item in made.accounts for value in secrets_of(item)]
        files = [item.secret for item in made.accounts if item.provider == "codex"]
        files = list(dict.fromkeys((*files, *before["files"])))[:_MAX_FILES]
        kept: Dict[str, List[str]] = {"values": [], "files": files}
        size = 0
        for value in dict.fromkeys((*added, *before["values"])):
            size += len(value.encode())
            if size > MAX_VALUES_BYTES:
                break
            kept["values"].append(value)
        temporary = VALUES + ".new"
        try:
            _write(self._folder, temporary, _json(kept))
            os.rename(temporary, VALUES, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except BaseException:
            self._remove(temporary)
            raise

    def _remove_others(self) -> None:
        """Remove what earlier changes have left, and sets that are not the present one."""
        try:
            present = os.readlink(CURRENT, dir_fd=self._folder)
        except FileNotFoundError:
            present = ""
        for name in os.listdir(self._folder):
            if name not in (CURRENT, present, VALUES, _LOCK):
                self._remove(name)

    def _remove(self, name: str) -> None:
        _remove(self._folder, name, depth=0)


def read_values(place: str) -> List[bytes]:
    """What is to be masked because it is or was delivered."""
    kept = _read_remembered(place)
    values = [value.encode() for value in kept["values"]]
    return values + [line for file in kept["files"] for line in lines_of(file)]


def _read_remembered(place: str) -> Dict[str, List[str]]:
    try:
        with open(os.path.join(place, VALUES), "rb") as file:
            kept: Dict[str, List[str]] = json.load(file)
            return kept
    except FileNotFoundError:
        return {"values": [], "files": []}


def _quoted(text: str) -> str:
    """A value as git reads it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _write(
    folder: int, name: str, content: bytes, mode: int = 0o600, owner: Optional[User] = None
) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fchmod(descriptor, mode)
        if owner is not None and os.geteuid() == 0:
            os.fchown(descriptor, owner.uid, owner.gid)
    finally:
        os.close(descriptor)


def _remove(folder: int, name: str, *, depth: int) -> None:
    """Remove whatever has this name. The user may be at work in it, so something may be left."""
    try:
        os.unlink(name, dir_fd=folder)
        return
    except OSError:
        pass
    try:
        inner = os.open(name, _FOLDER, dir_fd=folder)
    except OSError:
        return
    try:
        if depth < _MAX_DEPTH:
            for below in os.listdir(inner):
                _remove(inner, below, depth=depth + 1)
    finally:
        os.close(inner)
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError:
        pass
