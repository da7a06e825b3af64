"""Watches of folders whose program does not do as it should."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from controlplane_client import AsyncClient, AsyncRun, AsyncWorkspace, Workspace
from e2bfacade import watches
from e2bfacade.refused import Refused
from e2bfacade.watches import Watches
from tests.conftest import OWNER
from tests.stack.gateway_process import ApiProcess
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.docker

EVENT = '{"name": "a", "type": "EVENT_TYPE_CREATE"}'


class Odd(Watches):
    """What watches in the sandbox is another program, as where its python3 is none."""

    def __init__(self, script: str) -> None:
        super().__init__()
        self._script = script
        self.runs: list[AsyncRun] = []

    async def _begin(self, workspace: AsyncWorkspace, path: str, recursive: bool) -> AsyncRun:
        self.runs.append(await workspace.spawn(["bash", "-c", self._script]))
        return self.runs[-1]


@pytest.fixture
def odd(
    api_process: ApiProcess, workspace: Workspace
) -> Callable[[str, Callable[[Odd, AsyncWorkspace], Awaitable[None]]], None]:
    """Do something with watches by a script, which have to be given up and ended."""

    def run(script: str, work: Callable[[Odd, AsyncWorkspace], Awaitable[None]]) -> None:
        async def inside() -> None:
            async with AsyncClient(api_process.url, OWNER) as client:
                made = Odd(script)
                await work(made, client.workspace(workspace.id))
                assert (await made.runs[0].wait(timeout=LONG_WAIT)).status == "cancelled"

        asyncio.run(asyncio.wait_for(inside(), 120))

    return run


@pytest.mark.parametrize(
    "line", ["echo no", "echo [1]", "echo null", "head -c 200000 /dev/zero", "echo '{\"error\":1}'"]
)
def test_a_program_that_tells_no_events_ends_the_call_and_is_ended(odd: Any, line: str) -> None:
    async def work(made: Odd, workspace: AsyncWorkspace) -> None:
        with pytest.raises(Refused):
            await made.create(workspace, "/tmp", False)

    odd(f"{line}; sleep 600", work)


def test_a_watch_whose_events_nobody_fetches_is_ended_in_the_sandbox(
    odd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "MAX_EVENT_BYTES", 1000)

    async def work(made: Odd, workspace: AsyncWorkspace) -> None:
        number = await made.create(workspace, "/tmp", False)
        await made.runs[0].wait(timeout=LONG_WAIT)
        assert made.events(workspace, number)
        with pytest.raises(Refused, match="Nobody has fetched"):
            made.events(workspace, number)

    odd(f"echo '{{\"ready\":true}}'; for i in {{1..99}}; do echo '{EVENT}'; done; sleep 600", work)
