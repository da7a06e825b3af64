"""What a proxy does beside its connections, in a thread: it answers when records are to end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from django.db import connections

from workspaces.egress.decided.journal import Journal
from workspaces.egress.known_networks import KnownNetworks


@contextlib.contextmanager
def live_proxy(journal: Journal) -> Iterator[None]:
    """Have a proxy with this journal follow what is asked of it; it ends no pass by itself."""
    stopped = threading.Event()
    loop = asyncio.new_event_loop()

    async def follow() -> None:
        with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as waiting:
            loop.set_default_executor(one)
            following = asyncio.create_task(KnownNetworks("none", journal).follow())
            await loop.run_in_executor(waiting, stopped.wait)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await asyncio.to_thread(connections.close_all)

    thread = threading.Thread(target=loop.run_until_complete, args=[follow()])
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        loop.close()
