"""Patches where there is no repository: the first version of small text files is kept.

What is kept is bounded, and lies in the run's private folder until its end. A patch reads as git's
do, and `git apply` takes it.
"""

from __future__ import annotations

import os
import re
import stat
from typing import Any, Iterator, List, Optional, Set, Tuple

from .diff import FILE_PATCH_BYTES, Change, compare
from .git import tree_mode
from .manifest import Entry, Manifest, Reader

TEXT_BYTES = 256 * 1024
KEPT_BYTES = 32 * 1024 * 1024
MOST_KEPT = 20_000
_FOLDER = "texts"
_BINARY_BYTES = 8000
_CONTEXT = 3
# Beyond this many pairs of lines that differ, what was there is all removed and what is there all
# added: finding what they share could take longer than a run's end may.
_MOST_PAIRS = 4_000_000
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_QUOTED = re.compile(rb'[\x00-\x1f"\\\x7f-\xff]')
_ESCAPES = {b"\t": b"\\t", b"\n": b"\\n", b'"': b'\\"', b"\\": b"\\\\"}


class Texts:
    """First versions by their hashes, in a folder of their own below `home`.

    `binary` are the hashes of small files that are no text; they are not kept.
    """

    def __init__(self, home: str, binary: Set[str]) -> None:
        self.binary = binary
        self._folder = os.path.join(home, _FOLDER)

    def keep(self, reader: Reader, entries: Manifest) -> None:
        """Keep what is small and text of a first snapshot, in the order of paths while it fits."""
        os.mkdir(self._folder, 0o700)
        left, kept = KEPT_BYTES, set()
        for path in sorted(entries):
            entry = entries[path]
            if entry.hash is None or entry.hash in kept or entry.size > min(TEXT_BYTES, left):
                continue
            content = content_of(reader, path, entry)
            if content is None:
                continue
            if is_binary(content):
                self.binary.add(entry.hash)
                continue
            with open(os.path.join(self._folder, entry.hash), "wb") as file:
                file.write(content)
            kept.add(entry.hash)
            left -= len(content)
            if len(kept) == MOST_KEPT:
                return

    def first(self, entry: Optional[Entry]) -> Optional[bytes]:
        """What a file held before the run, nothing for one that was not there; None: not kept."""
        if entry is None:
            return b""
        try:
            with open(os.path.join(self._folder, str(entry.hash)), "rb") as file:
                return file.read()
        except OSError:
            return None


def compare_with_texts(
    texts: Texts, reader: Reader, before: Manifest, after: Manifest, patch_bytes: int, most: int
) -> Iterator[Change]:
    """The changes, those of small text files with their text, in the order of their paths' bytes.

    Only the first `most` have patches, and those together at most `patch_bytes`.
    """
    left = patch_bytes
    for position, change in enumerate(compare(before, after)):
        if position >= most or change.patch is not None:
            yield change
            continue
        told = _with_patch(texts, reader, change)
        if told.patch is not None and len(told.patch) > min(FILE_PATCH_BYTES, left):
            told = told._replace(patch=None)
        left -= len(told.patch or b"")
        yield told


def content_of(reader: Reader, path: str, entry: Entry) -> Optional[bytes]:
    """What an entry says of a small file; None when it is large, or has changed since."""
    if entry.hash is None or entry.size > TEXT_BYTES:
        return None
    import hashlib  # not at every start, as below

    content = reader.content(path)
    if content is None or hashlib.sha256(content).hexdigest() != entry.hash:
        return None
    return content


def is_binary(content: bytes) -> bool:
    """Whether it is no text, as git judges it."""
    return b"\0" in content[:_BINARY_BYTES]


def patch_of(
    path: str, before: Optional[Entry], after: Optional[Entry], old: bytes, new: bytes
) -> Tuple[bytes, int, int]:
    """A section of a patch, with how many lines it adds and removes."""
    if before and after and stat.S_IFMT(before.mode) != stat.S_IFMT(after.mode):
        # A file that became a link is one deleted and one added, as in git.
        gone, _, removed = patch_of(path, before, None, old, b"")
        come, added, _ = patch_of(path, None, after, b"", new)
        return gone + come, added, removed
    raw = os.fsencode(path)
    names = _name(b"a/" + raw), _name(b"b/" + raw)
    parts = [b"diff --git " + names[0] + b" " + names[1] + b"\n"]
    if before is None and after is not None:
        parts.append(b"new file mode " + tree_mode(after) + b"\n")
    elif after is None and before is not None:
        parts.append(b"deleted file mode " + tree_mode(before) + b"\n")
    elif before and after and tree_mode(before) != tree_mode(after):
        parts.append(b"old mode " + tree_mode(before) + b"\n")
        parts.append(b"new mode " + tree_mode(after) + b"\n")
    if old == new:
        return b"".join(parts), 0, 0
    # A name with a space is told from a date behind it by the tab.
    ends = b"\t\n" if b" " in raw else b"\n"
    parts.append(b"--- " + (names[0] + ends if before else b"/dev/null\n"))
    parts.append(b"+++ " + (names[1] + ends if after else b"/dev/null\n"))
    added, removed = 0, 0
    for line in _hunks(_LINE.findall(old), _LINE.findall(new)):
        added += line.startswith(b"+")
        removed += line.startswith(b"-")
        parts.append(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n")
    return b"".join(parts), added, removed


def _with_patch(texts: Texts, reader: Reader, change: Change) -> Change:
    before, after = change.before, change.after
    if before is not None and before.hash in texts.binary:
        return change._replace(binary=True, patch=b"")
    new: Optional[bytes] = b""
    if after is not None:
        new = content_of(reader, change.path, after)
        if new is not None and is_binary(new):
            return change._replace(binary=True, patch=b"")
    old = texts.first(before)
    if old is None or new is None:
        return change
    patch, added, removed = patch_of(change.path, before, after, old, new)
    return change._replace(patch=patch, added_lines=added, removed_lines=removed)


def _hunks(old: List[bytes], new: List[bytes]) -> Iterator[bytes]:
    import difflib

    matcher: Any = difflib.SequenceMatcher(None, [], [])
    matcher.opcodes = _opcodes(old, new)
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        first, last = group[0], group[-1]
        ranges = _range(first[1], last[2]), _range(first[3], last[4])
        yield b"@@ -%s +%s @@\n" % ranges
        for tag, old_start, old_end, new_start, new_end in group:
            if tag == "equal":
                yield from (b" " + line for line in old[old_start:old_end])
                continue
            yield from (b"-" + line for line in old[old_start:old_end])
            yield from (b"+" + line for line in new[new_start:new_end])


def _opcodes(old: List[bytes], new: List[bytes]) -> List[Tuple[str, int, int, int, int]]:
    """What to do with which lines; both differ."""
    most = min(len(old), len(new))
    head = next((n for n in range(most) if old[n] != new[n]), most)
    most -= head
    tail = next((n for n in range(most) if old[-1 - n] != new[-1 - n]), most)
    old_end, new_end = len(old) - tail, len(new) - tail
    middle = [("replace", 0, old_end - head, 0, new_end - head)]
    if (old_end - head) * (new_end - head) <= _MOST_PAIRS:
        import difflib

        differing = difflib.SequenceMatcher(None, old[head:old_end], new[head:new_end])
        middle = [(str(each[0]), *each[1:]) for each in differing.get_opcodes()]
    codes = [("equal", 0, head, 0, head)] if head else []
    codes += [
        (tag, head + from_old, head + to_old, head + from_new, head + to_new)
        for tag, from_old, to_old, from_new, to_new in middle
    ]
    if tail:
        codes.append(("equal", old_end, len(old), new_end, len(new)))
    return codes


def _range(start: int, end: int) -> bytes:
    if end - start == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + 1 if end > start else start, end - start)


def _name(name: bytes) -> bytes:
    if not _QUOTED.search(name):
        return name
    escaped = _QUOTED.sub(lambda found: _ESCAPES.get(found[0], b"\\%03o" % ord(found[0])), name)
    return b'"' + escaped + b'"'
