"""Identifiers: UUIDv7 (RFC 9562 section 5.7), rising within one process.

The 12 bits after the version hold a counter seeded at random in each millisecond (method 1 of
section 6.2), so that ids made one after the other sort in that order.
"""

from __future__ import annotations

import secrets
import threading
import time
import uuid

from django.db import models

OWNER_MAX_LENGTH = 200
"""Owners are free strings that callers choose (specification, "Authentication")."""


class IdOrder(models.Func):
    """The order of an id, for lists of what has some state, with an index that ends in it.

    Ordered by the id itself, PostgreSQL may walk the primary key and look at every row, because it
    thinks that what an owner has in some state lies evenly among all rows.
    """

    function = "uuid_send"
    output_field = models.BinaryField()


_lock = threading.Lock()
_last_ms = 0
_counter = 0


def uuid7() -> uuid.UUID:
    """Return a new UUIDv7, greater than every one this process returned before.

    The clock may jump back: the id then continues from the last millisecond that was used.
    """
    global _last_ms, _counter
    with _lock:
        now_ms = time.time_ns() // 1_000_000
        if now_ms > _last_ms:
            _last_ms = now_ms
            # The upper half of the counter is left free, so that it seldom overflows.
            _counter = secrets.randbits(11)
        else:
            _counter += 1
            if _counter > 0xFFF:
                _last_ms += 1
                _counter = 0
        milliseconds, counter = _last_ms, _counter
    value = (milliseconds << 80) | (0x7 << 76) | (counter << 64)
    value |= (0b10 << 62) | secrets.randbits(62)
    return uuid.UUID(int=value)
