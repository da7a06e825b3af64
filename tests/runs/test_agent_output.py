"""Pipes of user processes: what lay in one when its process ended, and what a slow log does."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from runs.agent.output import Capture, ContainerOutput


@pytest.fixture
def log() -> Iterator[tuple[int, int]]:
    """The container's stdout: the end that is read and the end that is written."""
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


def test_what_a_process_wrote_last_is_kept_although_it_was_never_waited_for(
    log: tuple[int, int],
) -> None:
    output = ContainerOutput(log[1])
    capture = Capture(output, 8192, [])
    os.write(capture.write_fd, b"last words")
    assert capture.finish() == "last words"
    assert os.read(log[0], 100) == b"last words"
    capture.started()
    capture.close()
    os.close(output.fd)


def test_what_comes_after_the_end_of_a_step_is_passed_on_but_not_kept(log: tuple[int, int]) -> None:
    output = ContainerOutput(log[1])
    capture = Capture(output, 8192, [])
    capture.finish()
    os.write(capture.write_fd, b"from the background")
    capture.read()
    assert os.read(log[0], 100) == b"from the background"
    assert capture.finish() == ""
    capture.started()
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
