"""What a run changed below a folder: a snapshot before it, one after it, and what differs.

With git, a snapshot is a tree: tracked and untracked files, nothing that is ignored, of
repositories in the repository only their commit; very large files count by size and time.
Elsewhere it is a manifest, with the first versions of small text files. What lies between the two
snapshots is not seen: what a run changed and restored is no change.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set

from ..process.program import Account
from ..record.segments import SNAPSHOT_FOLDER
from .diff import Change, compare, compare_with_git
from .git import Git, GitFailed, PrivateStore, Repository, program
from .helper import HelperFailed, Message, Send, ask
from .manifest import (
    Entry,
    Manifest,
    Reader,
    changed_paths,
    nested_repository,
    plain_hasher,
    walk,
)
from .text_versions import Texts, compare_with_texts

SNAPSHOT_SECONDS = 20.0
GIT_HASH_BYTES = 32 * 1024 * 1024
PLAIN_HASH_BYTES = 4 * 1024 * 1024


class Snapshot(NamedTuple):
    """That a snapshot was taken. `tree`: its name in git."""

    method: str
    tree: Optional[str]
    files: int
    duration_ms: int


class Difference(NamedTuple):
    """What differs: at most as many entries as were asked for, but all of them counted."""

    changes: List[Change]
    counts: Dict[str, int]
    truncated: bool


class ChangesFailed(Exception):
    """A snapshot could not be taken, or not compared; the message says why."""


class Changes:
    """The two snapshots of one run. `state_directory` is root's; a folder is made below it.

    Its name has the run's id, so that it can be removed when this process was killed.
    """

    def __init__(
        self,
        root: str,
        account: Account,
        state_directory: str,
        *,
        patch_bytes: int,
        most: int,
        run_id: str = "",
    ) -> None:
        self.ignored: Set[str] = set()
        self.seconds = SNAPSHOT_SECONDS
        self._root = root
        self._account = account
        self._state_directory = state_directory
        self._patch_bytes = patch_bytes
        self._most = most
        self._run_id = run_id
        self._holder: Optional[str] = None
        self._repository: Optional[Repository] = None
        self._binary: Set[str] = set()
        self._place = ""
        self._before: Optional[Manifest] = None
        self._before_ns = 0

    def begin(self) -> Snapshot:
        """Take the first snapshot; raises ChangesFailed."""
        started, self._before_ns = time.monotonic(), time.time_ns()
        self._place = os.path.realpath(self._root)
        answer = self._ask(lambda send: _begin(send, self._root, self._home()))
        told: Dict[str, Any] = answer[0][0]
        if told["repository"] is not None:
            self._repository = Repository(*told["repository"])
        self.ignored = set(told["ignored"])
        self._binary = set(told.get("binary", ()))
        self._before = {path: Entry(*entry) for path, entry in told["entries"].items()}
        return self._snapshot(told["tree"], len(self._before), started)

    def end(self) -> "tuple[Snapshot, Difference]":
        """Take the second snapshot and compare; raises ChangesFailed, without a first one too."""
        before = self._before
        if before is None:
            raise ChangesFailed("there was no snapshot before the run")
        if os.path.realpath(self._root) != self._place:
            # What lies there now is not what the run found changed; it may be the whole system.
            raise ChangesFailed("the folder has become a link to elsewhere")
        started = time.monotonic()
        failure = ""
        try:
            answer = self._ask(lambda send: self._end(send, before))
        except _Partial as partial:
            answer, failure = partial.messages, str(partial)
        if not answer:
            raise ChangesFailed(failure)
        told: Dict[str, Any] = answer[0][0]
        snapshot = self._snapshot(told["tree"], told["files"], started)
        if failure or not answer[-1][0].get("counts"):
            changed = {path: Entry(*entry) for path, entry in told["changed"].items()}
            gone = {path: before[path] for path in told["paths"] if path in before}
            return snapshot, _cut(compare(gone, changed), self._most)
        changes = [Change.from_told(head["change"], body) for head, body in answer[1:-1]]
        last = answer[-1][0]
        return snapshot, Difference(changes, last["counts"], last["total"] > len(changes))

    def close(self) -> None:
        """Remove what was kept."""
        if self._holder is not None:
            import shutil  # not at every start

            shutil.rmtree(self._holder, ignore_errors=True)
            self._holder = None

    def _end(self, send: Send, before: Manifest) -> None:
        reader = self._reader(before)
        home = self._home()
        git = _git(home) if self._repository else None
        found = _final_paths(self._root, before, self.ignored, self._repository, git)
        after = reader.all(found)
        store = None
        if self._repository is not None and git is not None:
            _add_nested(after, found, self._repository, git)
            store = PrivateStore(home, self._repository, git)
        paths = changed_paths(before, after)
        tree = _tree_name(store, after)
        changed = {path: after[path] for path in paths if path in after}
        send({"tree": tree, "files": len(after), "paths": paths, "changed": changed}, b"")
        limits = self._patch_bytes, self._most
        if store is not None:
            _keep(store, reader, changed)
            changes = compare_with_git(store, before, after, *limits)
        elif self._repository is None:
            changes = compare_with_texts(Texts(home, self._binary), reader, before, after, *limits)
        else:
            return
        counts: Dict[str, int] = {}
        total = 0
        for change in changes:
            total += 1
            counts[change.kind] = counts.get(change.kind, 0) + 1
            if total <= self._most:
                send({"change": change.told()}, change.patch or b"")
        send({"counts": counts or {"none": 0}, "total": total}, b"")

    def _reader(self, before: Manifest) -> Reader:
        if self._repository is None:
            hasher, most = plain_hasher, PLAIN_HASH_BYTES
        else:
            hasher, most = self._repository.hasher, GIT_HASH_BYTES
        return Reader(self._root, hasher, most, before, self._before_ns)

    def _snapshot(self, tree: Optional[str], files: int, started: float) -> Snapshot:
        method = "manifest" if self._repository is None else "git"
        return Snapshot(method, tree, files, int((time.monotonic() - started) * 1000))

    def _home(self) -> str:
        return os.path.join(self._holder or "", "work")

    def _ask(self, work: Any) -> List[Message]:
        """Run `work` as the user, who can reach the private folder only meanwhile."""
        try:
            self._open_holder()
            return ask(self._account, self.seconds, work)
        except HelperFailed as failure:
            if failure.messages:
                raise _Partial(str(failure), failure.messages) from None
            raise ChangesFailed(str(failure)) from None
        except OSError as error:
            raise ChangesFailed(f"cannot keep a snapshot: {error.strerror}") from None
        finally:
            if self._holder is not None:
                os.chmod(self._holder, 0o700)

    def _open_holder(self) -> None:
        if self._holder is None:
            name = f"{SNAPSHOT_FOLDER}{self._run_id}-{os.urandom(8).hex()}"
            holder = os.path.join(self._state_directory, name)
            os.mkdir(holder, 0o700)
            self._holder = holder
            os.mkdir(self._home(), 0o700)
            if os.geteuid() == 0:
                os.chown(self._home(), self._account.uid, self._account.gid)
        # May be passed through, not listed.
        os.chmod(self._holder, 0o711)  # noqa: S103


class _Partial(ChangesFailed):
    def __init__(self, message: str, messages: List[Message]) -> None:
        super().__init__(message)
        self.messages = messages


def _begin(send: Send, root: str, home: str) -> None:
    git = _git(home)
    repository = Repository.around(root, git) if git is not None else None
    if repository is None or git is None:
        reader = Reader(root, plain_hasher, PLAIN_HASH_BYTES, {}, 0)
        entries = reader.all(walk(root))
        texts = Texts(home, set())
        texts.keep(reader, entries)
        told: Dict[str, Any] = {"repository": None, "ignored": [], "entries": entries, "tree": None}
        send({**told, "binary": sorted(texts.binary)}, b"")
        return
    reader = Reader(root, repository.hasher, GIT_HASH_BYTES, {}, 0)
    found = repository.files(git)
    entries = reader.all(found)
    _add_nested(entries, found, repository, git)
    store = PrivateStore(home, repository, git)
    _keep(store, reader, entries)
    ignored = sorted(repository.ignored(git))
    tree = _tree_name(store, entries)
    send({"repository": repository, "ignored": ignored, "entries": entries, "tree": tree}, b"")


def _git(home: str) -> Optional[Git]:
    found = program()
    if found is None:
        return None
    with open(os.path.join(home, ".gitconfig"), "w") as file:
        # Nothing of theirs is executed, and what is read is read with the user's rights.
        file.write("[safe]\n\tdirectory = *\n")
    return Git(found, home)


def _final_paths(
    root: str,
    before: Manifest,
    ignored: Set[str],
    repository: Optional[Repository],
    git: Optional[Git],
) -> Set[str]:
    """What to look at after the run: what was there before stays, however it is ignored now."""
    paths = set(before)
    if repository is None:
        return paths | set(walk(root))
    try:
        if git is None or Repository.around(root, git) is None:
            raise GitFailed("the repository is gone")
        found = repository.files(git)
    except GitFailed:
        # The run has taken the repository away; what it left behind counts all the same.
        found = set(walk(root))
    return paths | {path for path in found if not _is_below(path, ignored)}


def _is_below(path: str, folders: Set[str]) -> bool:
    while path:
        if path in folders:
            return True
        path = os.path.dirname(path)
    return False


def _add_nested(entries: Manifest, found: Set[str], repository: Repository, git: Git) -> None:
    for path in sorted(found - set(entries)):
        place = os.path.join(repository.root, path)
        if os.path.lexists(os.path.join(place, ".git")) and not os.path.islink(place):
            entries[path] = nested_repository(repository.nested_commit(path, git))


def _keep(store: PrivateStore, reader: Reader, entries: Manifest) -> None:
    """Store the content that the user's repository does not have, as long as there is room."""
    files = {path: entry for path, entry in entries.items() if entry.hash and not entry.is_nested}
    missing = store.missing(str(entry.hash) for entry in files.values())
    for path, entry in files.items():
        if entry.hash in missing:
            content = reader.content(path)
            if content is not None:
                store.keep_blob(str(entry.hash), content)


def _tree_name(store: Optional[PrivateStore], manifest: Manifest) -> Optional[str]:
    if store is None:
        return None
    return store.tree_name({path: entry for path, entry in manifest.items() if entry.hash})


def _cut(changes: List[Change], most: int) -> Difference:
    counts: Dict[str, int] = {}
    for change in changes:
        counts[change.kind] = counts.get(change.kind, 0) + 1
    return Difference(changes[:most], counts, len(changes) > most)
