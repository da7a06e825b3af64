"""Asking git, without its running anything that the repository names.

Two ways in. Questions about the user's repository (`Repository`) only list: which files are its
own, and where its objects lie. Everything else happens in a private repository (`PrivateStore`),
whose configuration is ours and which only borrows the user's objects to read them: no filter, hook,
textconv, driver, promisor or replaced object of theirs is known there. The user's index, refs and
objects, and even the times of their files, stay as they are.

Used in a process that has only the user's rights.
"""

from __future__ import annotations

import os
import stat
import zlib
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set

from .manifest import Entry, Manifest

if TYPE_CHECKING:
    import hashlib
    import subprocess

MOST_STORED_BYTES = 512 * 1024 * 1024
"""Content that the user's repository does not have is kept up to this much, compressed."""

_SAFE = (
    *("core.fsmonitor=", "core.hooksPath=/dev/null", "core.untrackedCache=false"),
    *("core.excludesFile=/dev/null", "core.attributesFile=/dev/null", "core.quotePath=true"),
    *("diff.external=", "diff.orderFile=", "diff.ignoreSubmodules=none", "log.showSignature=false"),
    "core.bigFileThreshold=8m",
)
_FALLBACK_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class GitFailed(Exception):
    """Git could not answer; the message says what it was asked and what it said."""


def _hash(name: str, content: bytes = b"") -> hashlib._Hash:
    import hashlib  # only those who have files to hash wait for it

    return hashlib.new(name, content)


def program() -> Optional[str]:
    """Where git is, if it is."""
    folders = (os.environ.get("PATH") or _FALLBACK_PATH).split(os.pathsep)
    candidates = (os.path.join(folder, "git") for folder in folders)
    return next(
        (git for git in candidates if os.path.isfile(git) and os.access(git, os.X_OK)), None
    )


class Git:
    """Runs git with an environment that names no configuration but ours, which lies in `home`."""

    def __init__(self, git: str, home: str) -> None:
        self._git = git
        self._env = {
            "PATH": os.environ.get("PATH") or _FALLBACK_PATH,
            "HOME": home,
            "XDG_CONFIG_HOME": home,
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.path.join(home, ".gitconfig"),
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_TERMINAL_PROMPT": "0",
        }

    def start(
        self,
        arguments: Sequence[str],
        cwd: str,
        *,
        env: Optional[Dict[str, str]] = None,
        with_input: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start git; its stdout is a pipe, and so is its stdin where there is input."""
        import subprocess  # only those who need git wait for it

        command = [self._git, "--no-pager", "--literal-pathspecs"]
        for setting in _SAFE:
            command += ["-c", setting]
        return subprocess.Popen(
            [*command, *arguments],
            cwd=cwd,
            env={**self._env, **(env or {})},
            stdin=subprocess.PIPE if with_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def run(
        self,
        arguments: Sequence[str],
        cwd: str,
        *,
        env: Optional[Dict[str, str]] = None,
        given: Optional[bytes] = None,
    ) -> bytes:
        """What git writes; raises GitFailed when it does not exit with 0."""
        process = self.start(arguments, cwd, env=env, with_input=given is not None)
        output, _ = process.communicate(given)
        if process.returncode != 0:
            raise GitFailed(f"git {arguments[0]} ended with {process.returncode}")
        return output


class Repository(NamedTuple):
    """The user's repository that a folder lies in. `objects`: its object directory."""

    root: str
    objects: str
    hash_name: str

    @classmethod
    def around(cls, root: str, git: Git) -> Optional[Repository]:
        """The repository that has `root` in its worktree, if there is one."""
        try:
            inside = git.run(["rev-parse", "--is-inside-work-tree"], root)
            place = git.run(["rev-parse", "--git-path", "objects"], root)
        except GitFailed:
            return None
        if inside.strip() != b"true":
            return None
        try:
            name = git.run(["rev-parse", "--show-object-format"], root).decode().strip()
        except GitFailed:
            name = "sha1"
        if name not in ("sha1", "sha256"):
            return None
        objects = os.path.join(root, os.fsdecode(place[:-1]))
        return cls(root, os.path.realpath(objects), name)

    def files(self, git: Git) -> Set[str]:
        """The tracked and the untracked paths below the folder; of nested repositories the folder,
        and nothing that is ignored."""
        output = git.run(["ls-files", "-z", "-c", "-o", "--exclude-standard"], self.root)
        return {os.fsdecode(path).rstrip("/") for path in output.split(b"\0") if path}

    def ignored(self, git: Git) -> Set[str]:
        """The ignored paths; a folder of which everything is ignored stands for all in it."""
        asked = ["ls-files", "-z", "-o", "-i", "--exclude-standard", "--directory"]
        output = git.run(asked, self.root)
        return {os.fsdecode(path).rstrip("/") for path in output.split(b"\0") if path}

    def nested_commit(self, path: str, git: Git) -> Optional[str]:
        """What the repository at `path` has checked out."""
        try:
            output = git.run(["rev-parse", "-q", "--verify", "HEAD"], os.path.join(self.root, path))
        except (GitFailed, OSError):
            return None
        commit = output.decode("ascii", "replace").strip()
        return commit if len(commit) == _hash(self.hash_name).digest_size * 2 else None

    def hasher(self, size: int, path: str, mode: int) -> Any:
        """A hash object that gives a file's name as a blob once it has been fed the content."""
        hasher = _hash(self.hash_name)
        hasher.update(b"blob %d\0" % size)
        return hasher


class PrivateStore:
    """A repository of our own in `home`; reads the user's objects and keeps what they lack."""

    def __init__(self, home: str, repository: Repository, git: Git) -> None:
        self._directory = os.path.join(home, "store")
        self._objects = os.path.join(self._directory, "objects")
        self._hash_name = repository.hash_name
        self._git = git
        self._env = {
            "GIT_DIR": self._directory,
            "GIT_OBJECT_DIRECTORY": self._objects,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": _quoted(repository.objects),
        }
        self._stored = 0
        if not os.path.isdir(self._directory):
            self._create()

    def _create(self) -> None:
        for folder in (self._directory, self._objects, os.path.join(self._directory, "refs")):
            os.mkdir(folder, 0o700)
        version, extension = 0, ""
        if self._hash_name != "sha1":
            version, extension = 1, f"[extensions]\n\tobjectFormat = {self._hash_name}\n"
        config = f"[core]\n\trepositoryFormatVersion = {version}\n\tbare = true\n{extension}"
        for name, text in (("HEAD", "ref: refs/heads/none\n"), ("config", config)):
            with open(os.path.join(self._directory, name), "w") as file:
                file.write(text)

    def start(self, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start git in this repository."""
        return self._git.start(arguments, self._directory, env=self._env)

    def run(self, arguments: Sequence[str], given: Optional[bytes] = None) -> bytes:
        """Git's answer in this repository; raises GitFailed."""
        return self._git.run(arguments, self._directory, env=self._env, given=given)

    def missing(self, hashes: Iterable[str]) -> Set[str]:
        """Which of these objects neither the user's repository nor this one has."""
        asked = sorted(set(hashes))
        if not asked:
            return set()
        output = self.run(["cat-file", "--batch-check"], "\n".join(asked).encode() + b"\n")
        return {line.split()[0].decode() for line in output.splitlines() if line.endswith(b"g")}

    def keep_blob(self, name: str, content: bytes) -> bool:
        """Store a file's content; False when it is not `name`, or when too much is stored."""
        if self._stored > MOST_STORED_BYTES:
            return False
        return self._store(b"blob", content, name) == name

    def write_tree(self, manifest: Manifest) -> str:
        """Store the manifest's tree, and give its name; every entry needs a hash."""
        return self._tree(_nested(manifest), write=True)

    def tree_name(self, manifest: Manifest) -> str:
        """The name the manifest's tree would have."""
        return self._tree(_nested(manifest), write=False)

    def _tree(self, folder: Dict[bytes, Any], write: bool) -> str:
        lines = []
        for name, entry in folder.items():
            if isinstance(entry, dict):
                mode, value, order = b"40000", self._tree(entry, write), name + b"/"
            else:
                mode, value = tree_mode(entry), entry.hash
                order = name + b"/" if entry.is_nested else name
            lines.append((order, mode + b" " + name + b"\0" + bytes.fromhex(value)))
        content = b"".join(line for _, line in sorted(lines))
        if write:
            return self._store(b"tree", content, None)
        return self._name(b"tree", content)

    def _name(self, kind: bytes, content: bytes) -> str:
        hasher = _hash(self._hash_name, b"%s %d\0" % (kind, len(content)))
        hasher.update(content)
        return hasher.hexdigest()

    def _store(self, kind: bytes, content: bytes, expected: Optional[str]) -> str:
        name = self._name(kind, content)
        if expected not in (None, name):
            return name
        folder = os.path.join(self._objects, name[:2])
        place = os.path.join(folder, name[2:])
        if not os.path.exists(place):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            packed = zlib.compress(b"%s %d\0" % (kind, len(content)) + content, 1)
            self._stored += len(packed)
            with open(place, "wb") as file:
                file.write(packed)
        return name


def _nested(manifest: Manifest) -> Dict[bytes, Any]:
    top: Dict[bytes, Any] = {}
    for path, entry in manifest.items():
        *folders, name = os.fsencode(path).split(b"/")
        folder = top
        for part in folders:
            inner = folder.setdefault(part, {})
            if not isinstance(inner, dict):
                raise GitFailed("a path below a file")
            folder = inner
        folder[name] = entry
    return top


def tree_mode(entry: Entry) -> bytes:
    """The mode that git gives an entry."""
    if entry.is_nested:
        return b"160000"
    if stat.S_ISLNK(entry.mode):
        return b"120000"
    return b"100755" if entry.mode & stat.S_IXUSR else b"100644"


def _quoted(path: str) -> str:
    escaped: List[str] = []
    for character in path:
        if character == "\n":
            escaped.append("\\n")
        else:
            escaped.append("\\" + character if character in '"\\' else character)
    return '"' + "".join(escaped) + '"'
