"""Rows of ``run_event`` as ``COPY … (FORMAT binary)`` takes them.

Packed by hand: the generic encoders cost more per event than hashing and storing it. Numbers go
over the wire as big-endian bytes of the column's width.
"""

from __future__ import annotations

import struct

COLUMNS = (
    "run_number",
    "sequence",
    "stream_offset",
    "wall_us",
    "monotonic_ns",
    "process_number",
    "length",
    "kind",
    "stream",
    "method",
    "confidence",
    "link",
    "meta",
    "body",
)
COPY = f"COPY run_event ({', '.join(COLUMNS)}) FROM STDIN (FORMAT binary)"
HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = struct.pack("!h", -1)

_FIXED = "!h iq iq iq iq iq ii ii iH ih ih ih i8s i"
pack_fixed = struct.Struct(_FIXED).pack
"""The number of columns, then each column behind its length, up to the length of the meta.

A kind is an unsigned 16-bit number; one above 32767 is stored by its bits. Of the chain's head its
first bytes are taken, which is the link.
"""
pack_length = struct.Struct("!i").pack
pack_without_meta = struct.Struct(_FIXED + "i").pack
"""As ``pack_fixed`` for an empty meta, and then the length of the body."""
