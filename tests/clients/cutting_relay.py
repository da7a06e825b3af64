"""A relay that cuts connections, as networks do."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class CuttingRelay:
    """Hands bytes on to the API.

    ``cuts`` are for the next connections: after so many bytes of answers each is cut off. ``cut``
    counts those that were.
    """

    url: str
    cuts: list[int] = field(default_factory=list)
    cut: int = 0
    connections: set[socket.socket] = field(default_factory=set)

    def cut_all(self) -> None:
        """Cut every connection that there is."""
        for each in list(self.connections):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def cutting_relay_to(port: int, host: str = "127.0.0.1") -> Iterator[CuttingRelay]:
    """Serve a relay to the API, at a port of the loopback interface unless another is named."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        relay = CuttingRelay(f"http://127.0.0.1:{server.getsockname()[1]}")
        ended = threading.Event()
        threads: list[threading.Thread] = []

        def serve() -> None:
            server.settimeout(0.05)
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    client, _ = server.accept()
                    budget = relay.cuts.pop(0) if relay.cuts else None
                    thread = threading.Thread(target=hand_on, args=(client, budget))
                    threads.append(thread)
                    thread.start()

        def hand_on(client: socket.socket, budget: int | None) -> None:
            with (
                client,
                socket.create_connection((host, port)) as upstream,
                contextlib.ExitStack() as stack,
            ):
                pairs = {client: upstream, upstream: client}
                stack.callback(relay.connections.discard, client)
                relay.connections.add(client)
                while not ended.is_set():
                    for ready in select.select(list(pairs), [], [], 0.05)[0]:
                        try:
                            content = ready.recv(65536)
                            if ready is upstream and budget is not None:
                                content, budget = content[:budget], budget - len(content)
                            pairs[ready].sendall(content)
                        except OSError:
                            return
                        if not content or (budget is not None and budget <= 0):
                            relay.cut += budget is not None and budget <= 0
                            return

        accepting = threading.Thread(target=serve)
        accepting.start()
        try:
            yield relay
        finally:
            ended.set()
            for thread in [accepting, *threads]:
                thread.join()
