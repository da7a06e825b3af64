"""What differs between two manifests: one entry per path, with patches where git can make them."""

from __future__ import annotations

import heapq
import os
import re
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from .git import GitFailed, PrivateStore, tree_mode
from .manifest import Entry, Manifest, changed_paths

FILE_PATCH_BYTES = 256 * 1024
_RENAME_LIMIT = 1000
_DIFF = (
    *("diff-tree", "-r", "-M", f"-l{_RENAME_LIMIT}", "--no-ext-diff", "--no-textconv"),
    *("--no-color", "--src-prefix=a/", "--dst-prefix=b/", "--submodule=short", "--full-index"),
)
_SECTION_START = re.compile(rb"^diff --git ", re.MULTILINE)
_BIG_FILE_BYTES = 8 * 1024 * 1024
_READ_BYTES = 1 << 18


class Change(NamedTuple):
    """How one path differs. `patch`: None where there should be one and is none."""

    path: str
    old_path: Optional[str]
    kind: str
    before: Optional[Entry]
    after: Optional[Entry]
    binary: bool
    added_lines: Optional[int] = None
    removed_lines: Optional[int] = None
    patch: Optional[bytes] = None

    def told(self) -> Dict[str, Any]:
        """All but the patch, for JSON."""
        return {**self._asdict(), "patch": self.patch is not None}

    @classmethod
    def from_told(cls, told: Dict[str, Any], patch: bytes) -> Change:
        """The other direction."""
        members = dict(told)
        for name in ("before", "after"):
            members[name] = Entry(*members[name]) if members[name] else None
        members["patch"] = patch if members["patch"] else None
        return cls(**members)


def compare(before: Manifest, after: Manifest) -> List[Change]:
    """The changes without their text; only what has the very same content is a rename."""
    paths = changed_paths(before, after)
    gone: Dict[Tuple[str, int], List[str]] = {}
    for path in paths:
        if path not in after and before[path].hash is not None and before[path].size:
            entry = before[path]
            gone.setdefault((str(entry.hash), entry.size), []).append(path)
    changes: List[Change] = []
    moved = set()
    for path in paths:
        old, new = before.get(path), after.get(path)
        old_path = None
        if old is None and new is not None and new.hash is not None:
            sources = gone.get((new.hash, new.size))
            if sources:
                old_path = sources.pop(0)
                moved.add(old_path)
                old = before[old_path]
        changes.append(_plain(path, old_path, old, new))
    return [change for change in changes if change.path not in moved or change.after is not None]


def compare_with_git(
    store: PrivateStore, before: Manifest, after: Manifest, patch_bytes: int, most: int
) -> Iterator[Change]:
    """The changes with their text, in the order of their paths' bytes.

    Only the first `most` have patches, and those together at most `patch_bytes`.
    """
    paths = changed_paths(before, after)
    sides = [{path: side[path] for path in paths if path in side} for side in (before, after)]
    lacking = store.missing(
        entry.hash
        for side in sides
        for entry in side.values()
        if entry.hash is not None and not entry.is_nested
    )
    opaque = {
        path
        for side in sides
        for path, entry in side.items()
        if entry.hash is None or entry.hash in lacking
    }
    old, new = ({path: side[path] for path in side if path not in opaque} for side in sides)
    unseen = {
        path
        for path in old.keys() & new.keys()
        if old[path].hash == new[path].hash and tree_mode(old[path]) == tree_mode(new[path])
    }
    plain = compare(
        {path: before[path] for path in opaque | unseen if path in before},
        {path: after[path] for path in opaque | unseen if path in after},
    )
    listed = _listed(store, old, new) if old or new else []
    # Git's own order is kept, because the patches come in it too.
    changes = heapq.merge(plain, listed, key=lambda change: os.fsencode(change.path))
    patches = _patches(store, old, new, patch_bytes) if old or new else iter(())
    for position, change in enumerate(changes):
        if position >= most or change.path in opaque or change.path in unseen:
            yield change
            continue
        patch = _next_patch(patches, change)
        if patch is not None and change.binary:
            patch = b""
        yield change._replace(patch=patch)


def _plain(
    path: str, old_path: Optional[str], old: Optional[Entry], new: Optional[Entry]
) -> Change:
    if old_path is not None:
        kind = "renamed"
    elif old is None:
        kind = "added"
    elif new is None:
        kind = "deleted"
    else:
        kind = "metadataChanged" if new.has_content_of(old) else "modified"
    no_text_needed = kind == "metadataChanged" or (kind == "renamed" and old is not None)
    return Change(path, old_path, kind, old, new, False, patch=b"" if no_text_needed else None)


def _listed(store: PrivateStore, old: Manifest, new: Manifest) -> List[Change]:
    trees = [store.write_tree(old), store.write_tree(new)]
    output = store.run([*_DIFF, "-z", "--raw", "--numstat", *trees])
    fields = output.split(b"\0")
    fields.pop()
    raw: List[Tuple[bytes, str, Optional[str]]] = []
    at = 0
    while at < len(fields) and fields[at].startswith(b":"):
        status = fields[at].split()[4][:1]
        if status == b"R":
            raw.append((status, os.fsdecode(fields[at + 2]), os.fsdecode(fields[at + 1])))
            at += 3
        else:
            raw.append((status, os.fsdecode(fields[at + 1]), None))
            at += 2
    changes = []
    for status, path, old_path in raw:
        if at >= len(fields):
            raise GitFailed("git counted fewer files than it listed")
        added, removed, _ = fields[at].split(b"\t", 2)
        at += 3 if old_path is not None else 1
        before, after = old.get(old_path or path), new.get(path)
        kind = {b"A": "added", b"D": "deleted", b"R": "renamed"}.get(status, "modified")
        if kind == "modified" and before and after and before.has_content_of(after):
            kind = "metadataChanged"
        binary = added == b"-"
        counts = (None, None) if binary else (int(added), int(removed))
        changes.append(Change(path, old_path, kind, before, after, binary, *counts))
    return changes


def _next_patch(patches: Iterator[Optional[bytes]], change: Change) -> Optional[bytes]:
    sections = [next(patches, None)]
    before, after = change.before, change.after
    if before and after and tree_mode(before)[:3] != tree_mode(after)[:3]:
        # A file that became a link, or the like, is one deleted and one added.
        sections.append(next(patches, None))
    big = max(entry.size for entry in (before, after) if entry is not None) >= _BIG_FILE_BYTES
    if big or None in sections:
        return None
    patch = b"".join(section for section in sections if section is not None)
    return patch if len(patch) <= FILE_PATCH_BYTES else None


def _patches(
    store: PrivateStore, old: Manifest, new: Manifest, patch_bytes: int
) -> Iterator[Optional[bytes]]:
    """The sections of git's patch in its order; None for one that is too long or past the limit."""
    trees = [store.write_tree(old), store.write_tree(new)]
    process = store.start([*_DIFF, "-p", *trees])
    assert process.stdout is not None
    left = patch_bytes
    section = b""
    try:
        for begins, part in _parts(process.stdout):
            if begins and section:
                whole = section if len(section) <= min(FILE_PATCH_BYTES, left) else None
                left -= len(whole or b"")
                yield whole
                section = b""
            # What is known to be too long is not gathered further.
            section += part if len(section) <= FILE_PATCH_BYTES else b""
        if section:
            yield section if len(section) <= min(FILE_PATCH_BYTES, left) else None
    finally:
        process.stdout.close()
        process.kill()
        process.wait()


def _parts(stdout: Any) -> Iterator[Tuple[bool, bytes]]:
    """The output in pieces, and whether a section begins with the piece."""
    kept, in_line = b"", False
    while True:
        read = stdout.read1(_READ_BYTES)
        data = kept + read
        # Only whole lines, as the start of a section could be cut; but not for ever.
        cut = data.rfind(b"\n") + 1
        if not read or (not cut and len(data) > _READ_BYTES):
            cut = len(data)
        if cut:
            starts = {found.start() for found in _SECTION_START.finditer(data, 0, cut)}
            if in_line:
                starts.discard(0)
            borders = sorted({0, cut, *starts})
            for start, end in zip(borders, borders[1:]):
                yield start in starts, data[start:end]
            in_line = data[cut - 1 : cut] != b"\n"
        kept = data[cut:]
        if not read:
            return
