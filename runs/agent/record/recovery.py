"""What an earlier life of a spool's writer has left, for the next one to go on from."""

from __future__ import annotations

from typing import NamedTuple

from .acks import free, read_acknowledged
from .segments import SUMMARY, Reader, last_written, list_segments, read_json
from .summary import Summary, read_to_end


class Left(NamedTuple):
    """Where the next writer goes on: behind `size` bytes of `segment`.

    `missing`: so many events were committed elsewhere and are not here any more.
    """

    segment: str
    size: int
    last_sequence: int
    sealed: bool
    summary: Summary
    missing: int


def read_left(directory: int) -> Left:
    """Read what is there to its end; raises SpoolDamaged. Frees only what is acknowledged.

    An acknowledgement is durable, a frame that was acknowledged need not be: the disk may have lost
    it in an outage. Its sequence is used up all the same.
    """
    acknowledged = read_acknowledged(directory)
    # A life that ended while it began a segment behind lost frames left one that does not follow.
    free(directory, acknowledged)
    summary = Summary(read_json(directory, SUMMARY))
    # What was written last tells whether the record has ended, though it is counted already.
    reader = Reader(directory, min(summary.through + 1, last_written(directory)))
    try:
        last_segment = list_segments(directory)[-1].name
        last, sealed = read_to_end(reader, last_segment, summary)
        missing = max(0, acknowledged - last)
        if missing:
            summary.skip(acknowledged, missing)
        return Left(reader.segment, reader.offset, last + missing, sealed, summary, missing)
    finally:
        reader.close()
