"""The tail of a stream: bounded, masked, and the same however the stream was cut into chunks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runs.agent.record.tail import Tail, mask


def fed(chunks: list[bytes], limit: int, secrets: list[bytes]) -> Tail:
    tail = Tail(limit, secrets)
    for chunk in chunks:
        tail.feed(chunk)
    return tail


@given(
    chunks=st.lists(st.text("ab", max_size=6), max_size=12),
    limit=st.integers(0, 20),
    secrets=st.lists(st.text("ab", min_size=1, max_size=6), max_size=3),
)
def test_it_is_the_masked_end_of_the_whole_stream(
    chunks: list[str], limit: int, secrets: list[str]
) -> None:
    encoded = [secret.encode() for secret in secrets]
    whole = mask("".join(chunks).encode(), encoded)
    expected = whole[-limit:].decode() if limit else ""
    assert fed([chunk.encode() for chunk in chunks], limit, encoded).text() == expected


@given(
    content=st.text("abc", max_size=40),
    secrets=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
def test_masking_covers_exactly_the_bytes_of_every_occurrence(
    content: str, secrets: list[str]
) -> None:
    covered = {
        position
        for secret in secrets
        for start in range(len(content))
        if content.startswith(secret, start)
        for position in range(start, start + len(secret))
    }
    expected = "".join("*" if at in covered else char for at, char in enumerate(content))
    assert mask(content.encode(), [secret.encode() for secret in secrets]).decode() == expected


@given(chunks=st.lists(st.binary(max_size=30), max_size=10), limit=st.integers(0, 50))
def test_any_bytes_give_text_within_the_limit(chunks: list[bytes], limit: int) -> None:
    text = fed(chunks, limit, []).text()
    assert len(text.encode()) <= limit
    assert "\0" not in text


def test_a_secret_longer_than_the_tail_leaves_nothing_of_itself() -> None:
    assert fed([b"x" * 100_000, b"s3cret-", b"value"], 4, [b"s3cret-value"]).text() == "****"


def test_a_long_stream_of_small_chunks_keeps_only_its_end() -> None:
    tail = fed([b"%06d\n" % number for number in range(50_000)], 14, [b"never"])
    assert tail.text() == "049998\n049999\n"
