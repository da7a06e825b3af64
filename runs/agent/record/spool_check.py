"""`agent verify`: an offline check of a spool, which changes nothing."""

from __future__ import annotations

import os
import sys

from .acks import read_acknowledged
from .segments import (
    IDENTITY,
    Reader,
    SpoolDamaged,
    list_segments,
    open_folder,
    read_json,
    size_of,
)
from .summary import Summary, read_to_end

EXIT_DAMAGED = 1
EXIT_MISSING = 4


def verify(root: str, run: str) -> int:
    """Check the spool of a run, or the one in a folder; print what it holds or what is wrong."""
    path = run if os.path.isabs(run) else os.path.join(root, run)
    try:
        directory = open_folder(path)
    except OSError as error:
        print(f"agent: no spool is there: {path}: {error.strerror}", file=sys.stderr)
        return EXIT_MISSING
    try:
        print(check(directory))
    except (SpoolDamaged, OSError, ValueError) as error:
        print(f"agent: {error}", file=sys.stderr)
        return EXIT_DAMAGED
    finally:
        os.close(directory)
    return 0


def check(directory: int) -> str:
    """What a sound spool holds, as a sentence; raises SpoolDamaged at the first bad frame."""
    spool_id = read_json(directory, IDENTITY).get("spoolId")
    if not spool_id:
        raise SpoolDamaged(f"{IDENTITY} does not say whose spool this is")
    segments = list_segments(directory)
    acknowledged = read_acknowledged(directory)
    # With the first segment missing too, what is not acknowledged must be here.
    if segments and segments[0].first > max(acknowledged, 0) + 1:
        raise SpoolDamaged(f"sequences {acknowledged + 1} to {segments[0].first - 1} are missing")
    # Older segments may be freed at any time, and need not be there to the end any more.
    reader = Reader(directory, acknowledged + 1)
    try:
        last, sealed = read_to_end(reader, segments[-1].name, Summary())
        torn = size_of(directory, reader.segment) - reader.offset
    finally:
        reader.close()
    state = "sealed" if sealed else "open"
    note = f", and {torn} bytes of a frame that was not finished" if torn else ""
    return f"{spool_id}: {state}, sound up to sequence {last}{note}"
