"""How many bytes the records of an owner take, exact at any time and without looking at each run.

A record that goes on says it in its head; one that has ended is counted in its owner's row, from
the transaction that seals it until the one that removes it. So recording locks nothing that runs
of one owner share, and what is summed is one row and the few records that go on.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connection

from runs.models import RunHead
from runs.record.ingest.tables import Beside

_TAKEN = """
    SELECT coalesce((SELECT sealed_bytes FROM run_owner WHERE owner_user_id = %(owner)s), 0)
        + coalesce((SELECT sum(stored_bytes) FROM run_head
            WHERE owner_user_id = %(owner)s AND sealed_at IS NULL), 0)::bigint
"""
_ADD = """
    INSERT INTO run_owner (owner_user_id, sealed_bytes) VALUES (%s, %s)
    ON CONFLICT (owner_user_id)
    DO UPDATE SET sealed_bytes = run_owner.sealed_bytes + excluded.sealed_bytes
"""
# Records are removed by one process at a time, and whoever seals one locks one row: in whatever
# order this takes the rows of several owners, nobody waits for it in a circle.
_TAKE = """
    UPDATE run_owner SET sealed_bytes = sealed_bytes - gone.bytes FROM (
        SELECT owner_user_id, sum(stored_bytes)::bigint AS bytes FROM run_head
        WHERE run_number = ANY(%(runs)s) GROUP BY owner_user_id
    ) AS gone
    WHERE run_owner.owner_user_id = gone.owner_user_id
"""


def taken_by(owner_user_id: str) -> int:
    """Return how many bytes an owner's records take now; removed ones take none."""
    with connection.cursor() as cursor:
        cursor.execute(_TAKEN, {"owner": owner_user_id})
        (taken,) = cursor.fetchone()
    return int(taken)


def counting(head: RunHead) -> Beside:
    """Return what counts a record in its owner's row, for the statement that seals it."""
    return _ADD, [head.owner_user_id, head.stored_bytes]


def give_back(run_numbers: Sequence[int]) -> None:
    """Take sealed records out of their owners' rows, in the transaction that removes them."""
    with connection.cursor() as cursor:
        cursor.execute(_TAKE, {"runs": list(run_numbers)})
