"""Nothing that a command printed is lost where this process reads it late."""

from __future__ import annotations

import contextlib
import http.client
import time
from typing import Any

import docker
import pytest
from docker.api.client import APIClient
from docker.models.containers import Container

from tests.stack.test_container_output import container as container
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import DOCKER_HOST
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker.engine_api.outputs import output_of

pytestmark = pytest.mark.docker


@pytest.fixture(autouse=True)
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer of the engine is there as a whole before this process reads its head."""
    begin = http.client.HTTPResponse.begin

    def begin_late(response: http.client.HTTPResponse) -> None:
        time.sleep(0.5)
        begin(response)

    monkeypatch.setattr(http.client.HTTPResponse, "begin", begin_late)


@pytest.mark.parametrize("tty", [False, True])
def test_output_that_came_before_its_head_was_read_is_not_lost(
    container: Container, tty: bool
) -> None:
    answer: Any = container.exec_run(["echo", "whole"], tty=tty)
    assert (answer.exit_code, answer.output.split()) == (0, [b"whole"])


def test_both_streams_are_told_apart(container: Container) -> None:
    script = "echo out; echo err >&2; exit 3"
    answer: Any = container.exec_run(["sh", "-c", script], demux=True)
    assert tuple(answer) == (3, (b"out\n", b"err\n"))


def test_parts_come_as_they_are_printed(container: Container) -> None:
    answer: Any = container.exec_run(["sh", "-c", "echo one; echo two"], stream=True)
    assert b"".join(answer.output) == b"one\ntwo\n"


def test_the_product_reads_all_of_it_without_the_sdks_reader(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(APIClient, "_read_from_socket")
    with contextlib.closing(docker.DockerClient(DOCKER_HOST)) as client:
        script = "echo out; echo err >&2; exit 3"
        said = output_of(client, container, ["sh", "-c", script], seconds=LONG_WAIT)
    assert said == b"out\nerr\n"


def test_the_product_takes_no_part_of_an_answer_for_the_whole(container: Container) -> None:
    with (
        contextlib.closing(docker.DockerClient(DOCKER_HOST)) as client,
        pytest.raises(LaunchError, match="did not come as a whole"),
    ):
        output_of(client, container, ["sh", "-c", "echo out; sleep 60"], seconds=0.1)
