"""What a relay says of one call, taken apart."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workspaces.runtimes.kubernetes import relay
from workspaces.runtimes.kubernetes.agent_calls import CallFrames

SAID = st.lists(
    st.tuples(st.sampled_from((relay.OUTPUT, relay.ERRORS)), st.binary(min_size=1, max_size=40))
)


def frame(kind: int, content: bytes) -> bytes:
    """A frame of output or errors."""
    return struct.pack("!BI", kind, len(content)) + content


def ended(code: int) -> bytes:
    """The frame that tells how a call ended."""
    return struct.pack("!BI", relay.ENDED, code)


@given(SAID, st.lists(st.integers(1, 30), max_size=40), st.integers(0, 255))
def test_however_the_frames_are_cut_every_byte_comes_once(
    said: list[tuple[int, bytes]], cuts: list[int], code: int
) -> None:
    frames = CallFrames()
    data = b"".join(frame(*each) for each in said) + ended(code)
    output = b""
    for size in [*cuts, len(data)]:
        assert frames.exit_code is None or not data
        output += frames.feed(data[:size])
        data = data[size:]
    assert output == b"".join(content for kind, content in said if kind == relay.OUTPUT)
    errors = b"".join(content for kind, content in said if kind == relay.ERRORS)
    assert frames.said.bytes() == errors
    assert (frames.exit_code, frames.broken) == (code, False)


@pytest.mark.parametrize(
    "data",
    [b"\x07\0\0\0\1x", ended(0) + b"more", frame(relay.OUTPUT, b"x") + b"\xff" * 5],
)
def test_what_makes_no_sense_ends_the_call_and_its_exec_is_not_used_again(data: bytes) -> None:
    frames = CallFrames()
    frames.feed(data)
    assert frames.exit_code is not None
    assert frames.broken
