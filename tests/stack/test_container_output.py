"""The output of a command in a container is all of it, or none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import docker
import pytest
from docker.models.containers import Container

from tests.stack.container_output import heard_to_the_end
from tests.support.removal import remove_container
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import BASE_IMAGE, DOCKER_HOST

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def container() -> Iterator[Container]:
    """A container of the test's own."""
    engine = docker.DockerClient(base_url=DOCKER_HOST, timeout=int(LONG_WAIT))
    made = engine.containers.run(
        BASE_IMAGE, ["sleep", "infinity"], entrypoint="", network_mode="none", detach=True
    )
    try:
        yield made
    finally:
        remove_container(made)
        engine.close()


class CutOff:
    """A container of whose output less is heard the first two times."""

    def __init__(self, container: Container, lengths: list[int]) -> None:
        self._container = container
        self._lengths = lengths

    def exec_run(self, *command: Any, **how: Any) -> Any:
        """Run a command as the engine does."""
        answer: Any = self._container.exec_run(*command, **how)
        code, output = answer
        return code, output[: self._lengths.pop(0)] if self._lengths else output


def test_a_nul_is_not_the_end_and_the_exit_code_is_the_commands(container: Container) -> None:
    script = r"printf 'a\0b\n'; exit 7"
    assert heard_to_the_end(container, "sh", "-c", script) == (7, b"a\0b\n")


def test_output_that_was_cut_off_is_asked_for_again(container: Container) -> None:
    cut = CutOff(container, [0, 5, 30])
    assert heard_to_the_end(cut, "echo", "whole") == (0, b"whole\n")
