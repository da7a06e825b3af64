"""The SSH gateway in a thread of the tests, on a clock that a test sets forward."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace

from runs.gateway.configuration import configured
from runs.gateway.gateway import Gateway
from runs.gateway.host_key import load_host_key
from tests.stack.free_ports import free_port
from tests.stack.gateway_process import known_host
from tests.support.waiting import LONG_WAIT


class Clock(asyncio.SelectorEventLoop):
    """A loop that takes the time to be later than it is."""

    ahead = 0.0

    def time(self) -> float:
        """Return the seconds that its timers go by."""
        return super().time() + self.ahead


class TimedGateway:
    """A gateway with the settings of the moment, for which time passes when a test says so."""

    def __init__(self) -> None:
        self._configuration = replace(configured(), host="127.0.0.1", port=free_port(), drain=0)
        self._loop = Clock()
        self._listens = threading.Event()
        self._stopped = asyncio.Event()

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator[TimedGateway]:
        """Run one until the end of the block."""
        gateway = cls()
        thread = threading.Thread(target=gateway._loop.run_until_complete, args=[gateway._serve()])
        thread.start()
        try:
            assert gateway._listens.wait(LONG_WAIT)
            yield gateway
        finally:
            gateway._loop.call_soon_threadsafe(gateway._stopped.set)
            thread.join()
            gateway._loop.close()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._configuration.port

    @property
    def known_host(self) -> str:
        """The line of a ``known_hosts`` file that says who it is."""
        return known_host(self._configuration.host_key_path, self.port)

    def pass_time(self, seconds: float) -> None:
        """Set its clock forward; return when it has done what is due by then."""
        asyncio.run_coroutine_threadsafe(self._pass(seconds), self._loop).result(LONG_WAIT)

    async def _pass(self, seconds: float) -> None:
        self._loop.ahead += seconds
        for _ in range(2):  # timers that are due come behind what is due anyway
            await asyncio.sleep(0)

    async def _serve(self) -> None:
        key = load_host_key(self._configuration.host_key_path)
        gateway = Gateway(self._configuration, key)
        await gateway.start()
        self._listens.set()
        await self._stopped.wait()
        await gateway.drain()
        gateway.control_plane.close()
