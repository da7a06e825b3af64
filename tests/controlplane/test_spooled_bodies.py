"""Bodies that are kept on a disk which has no room for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.http.spooled_body import MEMORY_BYTES, SpooledBody
from tests.stack.disks import fill, small_disk
from tests.support.open_files import open_below

SMALL = b"x" * 1448
"""What comes in one packet, and stays in the buffer of a file for a while."""


@pytest.fixture
def full(tmp_path: Path) -> Iterator[SpooledBody]:
    """A body with its beginning, of whole pages, on a disk that is full now."""
    with small_disk(tmp_path / "small", "4m") as place:
        body = SpooledBody(str(place))
        body.extend(bytes(2 * MEMORY_BYTES))
        fill(place)
        assert open_below(place)
        yield body
        assert open_below(place) == []


def test_a_body_that_comes_in_small_pieces_fails_where_the_disk_is_full(full: SpooledBody) -> None:
    size = len(full)
    for _ in range(100):
        full.extend(SMALL)
    assert full.failed
    assert len(full) == size + 100 * len(SMALL)
    assert full.opened().read() == b""
    full.close()


def test_a_body_whose_end_does_not_fit_fails_when_it_is_to_be_read(full: SpooledBody) -> None:
    full.extend(SMALL)
    assert not full.failed
    assert full.opened() is full
    assert full.failed
    assert full.read() == full.readline() == b""
    full.close()


def test_a_body_whose_end_does_not_fit_is_forgotten_without_a_word(full: SpooledBody) -> None:
    full.extend(SMALL)
    assert not full.failed
    full.close()
