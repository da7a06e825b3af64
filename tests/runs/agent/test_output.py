"""Pipes of user processes: what lay in one when its process ended, and what a slow log does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from runs.agent.execution.output import Capture, ContainerOutput
from runs.agent.masking.masker import Masker
from runs.agent.record.frames import Method, Stream
from runs.agent.record.recording import RecordedStream, Recording
from runs.agent.record.spool import SpoolLimits, SpoolWriter
from runs.agent.record.tail import Tail


@pytest.fixture
def log() -> Iterator[tuple[int, int]]:
    """The container's stdout: the end that is read and the end that is written."""
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[RecordedStream]:
    """The record's side of a pipe."""
    writer = SpoolWriter.create(str(tmp_path / "runs"), "run", SpoolLimits(), "boot")
    recording = Recording(writer, policy="block", masker=Masker([]))
    yield recording.stream(1, Stream.STDOUT, Method.PIPE)
    recording.seal("ended", None)


def test_what_a_process_wrote_last_is_kept_although_it_was_never_waited_for(
    log: tuple[int, int], stream: RecordedStream
) -> None:
    output, tail = ContainerOutput(log[1]), Tail(8192)
    reading, writing = os.pipe()
    capture = Capture(reading, output, tail, stream)
    os.write(writing, b"last words")
    capture.drain()
    assert tail.text() == "last words"
    assert os.read(log[0], 100) == b"last words"
    assert stream.offset == 10
    assert not capture.closed
    os.close(writing)
    capture.drain()
    assert capture.closed
    os.close(output.fd)


def test_what_comes_after_the_end_of_a_step_is_recorded_but_not_in_its_tail(
    log: tuple[int, int], stream: RecordedStream
) -> None:
    output, tail = ContainerOutput(log[1]), Tail(8192)
    reading, writing = os.pipe()
    capture = Capture(reading, output, tail, stream)
    capture.drain()
    capture.forget_tail()
    os.write(writing, b"from the background")
    capture.read()
    assert os.read(log[0], 100) == b"from the background"
    assert stream.offset == 19
    assert tail.text() == ""
    os.close(writing)
    capture.read()
    assert capture.closed
    os.close(output.fd)


def test_a_slow_log_loses_no_byte_and_says_when_it_is_full(log: tuple[int, int]) -> None:
    output = ContainerOutput(log[1])
    chunks = [bytes([number]) * 40_000 for number in range(10)]
    for chunk in chunks:
        output.write(chunk)
    assert not output.accepts
    received = b""
    while output.has_pending:
        received += os.read(log[0], 65536)
        output.flush()
    assert output.accepts
    while len(received) < 400_000:
        received += os.read(log[0], 65536)
    assert received == b"".join(chunks)
    os.close(output.fd)


def test_writing_does_not_make_the_log_of_others_non_blocking(log: tuple[int, int]) -> None:
    output = ContainerOutput(log[1])
    assert os.get_blocking(log[1])
    assert not os.get_blocking(output.fd)
    os.close(output.fd)
