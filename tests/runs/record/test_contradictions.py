"""Of chunks that a workspace forged every reader sees the same bytes, wherever it begins."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runs.agent.record.frames import Stream
from runs.models import Run
from runs.record.reading import contradictions
from runs.record.reading.output_tail import OutputPlace, output_state, place_at, read_tail
from runs.record.reading.scrollback import StreamView, open_stream, scrollback
from runs.record.reading.timeline import MAX_SEQUENCE
from tests.runs.record_factory import Source, make_run

pytestmark = pytest.mark.django_db

CHUNKS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=12)
"""Where chunks begin, and how long they are."""
LIMITS = st.lists(st.integers(1, 9), min_size=1, max_size=5)


def forged(chunks: list[tuple[int, int]]) -> Run:
    """Return a run whose command has told of these chunks, each with a letter of its own."""
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    process = source.process()
    for number, (offset, length) in enumerate(chunks):
        source.output(process, bytes([65 + number]) * length, offset=offset)
    source.append()
    return run


def view_of(run: Run) -> StreamView:
    return open_stream(run.number, 1, Stream.STDOUT, MAX_SEQUENCE)


def shown(pieces: Iterator[tuple[int, bytes]]) -> dict[int, int]:
    """Return the bytes of pieces by their offsets; each is there once, in order."""
    found: dict[int, int] = {}
    for offset, piece in pieces:
        assert piece
        for at, byte in enumerate(piece, offset):
            assert at > max(found, default=-1)
            found[at] = byte
    return found


@settings(max_examples=80, deadline=None)
@given(chunks=CHUNKS, limits=LIMITS)
def test_pages_put_together_are_one_read_and_no_byte_is_skipped(
    chunks: list[tuple[int, int]], limits: list[int]
) -> None:
    view = view_of(forged(chunks))
    known = {at for offset, length in chunks for at in range(offset, offset + length)}

    whole = shown(view.chunks(0))

    assert set(whole) == known
    assert view.end == max((offset + length for offset, length in chunks), default=0)
    found: dict[int, int] = {}
    missing: set[int] = set()
    position: int | None = 0
    for limit in itertools.cycle(limits):
        if position is None:
            break
        page = scrollback(view, start=position, limit=limit)
        content = base64.b64decode(page["contentBase64"])
        holes = {
            at
            for hole in page["missing"]
            for at in range(int(hole["fromOffset"]), int(hole["toOffset"]))
        }
        following = int(page.get("nextOffset", view.end))
        assert "nextOffset" not in page or following > position
        places = [at for at in range(position, following) if at not in holes]
        found |= dict(zip(places, content, strict=True))
        missing |= holes
        position = following if "nextOffset" in page else None
    assert found == whole
    assert missing == set(range(view.end)) - known


@settings(max_examples=60, deadline=None)
@given(chunks=CHUNKS, start=st.integers(0, 60))
def test_what_is_shown_at_an_offset_does_not_depend_on_where_a_reader_begins(
    chunks: list[tuple[int, int]], start: int
) -> None:
    view = view_of(forged(chunks))
    whole = shown(view.chunks(0))
    expected = {at: byte for at, byte in whole.items() if at >= start}
    assert shown(view.chunks(start)) == expected


@settings(max_examples=60, deadline=None)
@given(chunks=CHUNKS, rooms=LIMITS, after=st.integers(0, 60))
def test_a_client_that_attaches_again_goes_on_where_it_was(
    chunks: list[tuple[int, int]], rooms: list[int], after: int
) -> None:
    run = forged(chunks)
    streams = [Stream.STDOUT, Stream.STDERR]
    known = output_state(run.number, streams)
    beginning = dict.fromkeys(streams, 0)
    whole = shown(followed(run, place_at(run.number, beginning, known), itertools.repeat(9999)))
    assert shown(followed(run, place_at(run.number, beginning, known), itertools.cycle(rooms))) == (
        whole
    )
    after = min(after, known.ends[Stream.STDOUT])
    place = place_at(run.number, beginning | {Stream.STDOUT: after}, known)
    expected = {at: byte for at, byte in whole.items() if at >= after}
    assert shown(followed(run, place, itertools.cycle(rooms))) == expected


def followed(run: Run, place: OutputPlace, rooms: Iterator[int]) -> Iterator[tuple[int, bytes]]:
    """Read to the end of the record, each time with so much room."""
    while True:
        before = (place.sequence, dict(place.offsets))
        tail = read_tail(run.number, place, room=next(rooms))
        assert tail is not None
        yield from ((offset, piece) for _, offset, piece in tail.pieces)
        if not tail.more:
            return
        assert before != (place.sequence, place.offsets), "it would ask for ever"


def test_the_end_is_that_of_the_chunk_that_reaches_farthest() -> None:
    run = forged([(0, 100), *((at, 1) for at in range(80))])
    view = view_of(run)
    assert view.end == 100
    assert set(shown(view.chunks(90))) == set(range(90, 100))


def test_many_pieces_come_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contradictions, "PIECES", 3)
    view = view_of(forged([(0, 40), *((at, 1) for at in range(0, 40, 4))]))
    assert set(shown(view.chunks(0))) == set(range(40))
    assert set(shown(view.chunks(3, limit=10))) == set(range(3, 13))
