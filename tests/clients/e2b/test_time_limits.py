"""How long a call may take, whoever asks for its values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from e2bfacade.process_calls import until, with_pings
from e2bfacade.refused import Refused
from tests.runs.gateway.timed_gateway import Clock
from tests.support.waiting import LONG_WAIT

LIMIT = 60.0


async def counted(ended: list[bool], *, ends: bool = False) -> AsyncGenerator[int, None]:
    """Give numbers, and then nothing until long after the limit, or the end."""
    try:
        for number in range(3):
            yield number
        if not ends:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, Clock)
            loop.ahead += LIMIT
            await asyncio.sleep(3600)
    finally:
        ended.append(True)


def test_a_call_is_over_after_its_time_though_each_value_is_asked_for_by_another_task() -> None:
    async def work() -> None:
        ended: list[bool] = []
        found: list[int] = []
        values = with_pings(until(counted(ended), LIMIT), 3600, -1)

        async def read() -> None:
            async for value in values:
                found.append(value)

        with pytest.raises(Refused) as refused:
            await read()
        assert refused.value.code == "deadline_exceeded"
        assert (found, ended) == ([0, 1, 2], [True])

    with asyncio.Runner(loop_factory=Clock) as runner:
        runner.run(asyncio.wait_for(work(), LONG_WAIT))


def test_a_call_that_is_done_in_time_ends_as_it_does_without_a_limit() -> None:
    async def work() -> None:
        ended: list[bool] = []
        values = with_pings(until(counted(ended, ends=True), 3600), 3600, -1)
        assert [value async for value in values] == [0, 1, 2]
        assert ended == [True]

    asyncio.run(asyncio.wait_for(work(), LONG_WAIT))


def test_what_never_waits_is_ended_too() -> None:
    async def always() -> AsyncGenerator[int, None]:
        while True:
            yield 1

    async def read() -> None:
        async for _ in until(always(), 0.05):
            pass

    async def work() -> None:
        with pytest.raises(Refused):
            await read()

    asyncio.run(asyncio.wait_for(work(), LONG_WAIT))
