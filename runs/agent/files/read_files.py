"""Looking at files: their content, what is known of them, and what is in a folder."""

from __future__ import annotations

import base64
import heapq
import os
import stat
from typing import Any, Dict, Iterator, Optional, Tuple

from .access import AccessLog
from .entries import Conditions, bytes_of, digest, entry_of, open_regular, version_of
from .files_wire import END, HEAD, Refusal, Wire

MOST_ENTRIES = 1000


def read(wire: Wire, log: AccessLog, spec: Dict[str, Any], path: bytes) -> None:
    """Send a file, or a range of it. What was sent is what its hash says, or there is no END."""
    fd = open_regular(path)
    try:
        status = os.fstat(fd)
        sha256 = digest(fd, status.st_size, wire)
        if not _is_wanted(spec, sha256):
            log.tell("stat", path, size=status.st_size, sha256=sha256)
            wire.send_json(HEAD, {"notModified": True, "sha256": sha256})
            return
        found = _range(spec, status.st_size, sha256)
        start, end = found or (0, status.st_size)
        action = "stat" if spec.get("headOnly") else "read"
        log.tell(action, path, size=status.st_size, sha256=sha256, **{"from": start, "to": end})
        wire.send_json(
            HEAD,
            {
                "size": status.st_size,
                "sha256": sha256,
                "from": start,
                "to": end,
                "partial": found is not None,
                "modifiedNs": status.st_mtime_ns,
            },
        )
        if spec.get("headOnly"):
            return
        wire.send_file(fd, start, end - start)
        # A log that has grown meanwhile still begins with what was sent.
        after = os.fstat(fd)
        if version_of(after) == version_of(status) or digest(fd, status.st_size, wire) == sha256:
            wire.send_json(END, {})
    finally:
        os.close(fd)


def _is_wanted(spec: Dict[str, Any], sha256: str) -> bool:
    conditions = Conditions.of(spec)
    match, none_match = conditions
    if match is not None and "*" not in match and sha256 not in match:
        raise Refusal("precondition-failed", "The file does not meet the conditions.")
    return none_match is None or ("*" not in none_match and sha256 not in none_match)


def _range(spec: Dict[str, Any], size: int, sha256: str) -> Optional[Tuple[int, int]]:
    asked = spec.get("range")
    if asked is None or spec.get("ifRange") not in (None, sha256):
        return None
    first, last = asked
    start = max(0, size - last) if first is None else first
    end = size if first is None or last is None else min(last + 1, size)
    if start >= end:
        raise Refusal("range-not-satisfiable", f"The file has {size} bytes.", size=size)
    return start, end


def look(wire: Wire, log: AccessLog, spec: Dict[str, Any], path: bytes) -> None:
    """Tell what lies at a path; of a file with its hash if that is asked for."""
    told = entry_of(os.path.basename(path.rstrip(b"/")) or b"/", path)
    if spec.get("hash") and told["type"] == "file":
        fd = open_regular(path)
        try:
            told["sha256"] = digest(fd, os.fstat(fd).st_size, wire)
        finally:
            os.close(fd)
    log.tell("stat", path)
    wire.send_json(HEAD, {"entry": told})


def list_folder(wire: Wire, log: AccessLog, spec: Dict[str, Any], path: bytes) -> None:
    """Tell what is in a folder, in the order of the names' bytes, so many at once."""
    if not stat.S_ISDIR(os.stat(path).st_mode):
        raise Refusal("not-a-directory", "This is not a folder.")
    after = bytes_of(spec["after"]) if spec.get("after") else None
    limit = min(int(spec["limit"]), MOST_ENTRIES)
    # However large the folder is, only these are kept in memory.
    names = heapq.nsmallest(limit + 1, _names(path, after))
    entries = []
    for name in names[:limit]:
        try:
            entries.append(entry_of(name, os.path.join(path, name)))
        except FileNotFoundError:
            continue  # removed since
    log.tell("list", path)
    # Also when the last ones were removed meanwhile: there are more behind them.
    last = names[limit - 1] if len(names) > limit else None
    told = None if last is None else base64.b64encode(last).decode("ascii")
    wire.send_json(HEAD, {"entries": entries, "next": told})


def _names(path: bytes, after: Optional[bytes]) -> Iterator[bytes]:
    with os.scandir(path) as found:
        for entry in found:
            name: bytes = entry.name
            if after is None or name > after:
                yield name
