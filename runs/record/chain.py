"""The hash chain over a record.

``head_0 = SHA-256(TAG ‖ the run's uuid)``; ``head_n = SHA-256(head_{n-1} ‖ content of event n)``,
with the content as :func:`runs.agent.record.frames.content_of` packs it and the run's own
sequence and process numbers. Each stored event carries the first bytes of the head after it (its
*link*), so that a check names the first event that does not fit, not just that one does not.
"""

from __future__ import annotations

import hashlib
import uuid

TAG = b"svc-run-record-v1\0"
LINK_BYTES = 8


def genesis(run_id: uuid.UUID) -> bytes:
    """Return the head of the empty record of a run."""
    return hashlib.sha256(TAG + run_id.bytes).digest()


def advance(head: bytes, content: bytes) -> bytes:
    """Return the head after the event with this content."""
    return hashlib.sha256(head + content).digest()


def link(head: bytes) -> bytes:
    """Return what is stored with the event that ``head`` follows."""
    return head[:LINK_BYTES]
