"""One private stack for all chaos tests, cleaned up after each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stack.private_stack import PrivateStack


@pytest.fixture(scope="session")
def services() -> Iterator[PrivateStack]:
    """The services, with an image that sandboxes can reuse."""
    stack = PrivateStack()
    try:
        try:
            stack.build()
        except BaseException:
            _show_logs(stack)
            raise
        yield stack
    finally:
        stack.close()


@pytest.fixture
def stack(services: PrivateStack) -> Iterator[PrivateStack]:
    """The stack with API, without workers. What its processes said is shown when a test fails."""
    services.begin()
    yield services
    _show_logs(services)
    services.end()


def _show_logs(stack: PrivateStack) -> None:
    stack.dump_stacks()
    for child in stack.processes:
        lines = child.log.read_text(errors="replace").splitlines()
        told = "\n".join(line for line in lines if "request_answered" not in line)
        print(f"----- {child.log.name}\n{told[-6000:]}")  # noqa: T201
