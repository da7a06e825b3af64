"""The machine's engine behind a switch: off, nobody reaches it, and who does is cut off."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path


class EngineSwitch:
    """A socket that hands everything on to an engine's socket while it is switched on."""

    def __init__(self, path: Path, engine: str) -> None:
        self._path = path
        self._engine = engine.removeprefix("unix://")
        self._listener: socket.socket | None = None
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.on()

    @property
    def url(self) -> str:
        """The engine's address."""
        return f"unix://{self._path}"

    def on(self) -> None:
        """Let the engine be reached."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._path))
        listener.listen(64)
        self._listener = listener
        threading.Thread(target=self._accept, args=[listener], daemon=True).start()

    def off(self) -> None:
        """Let nobody reach the engine, and cut off who does."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self._path.unlink()
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        with self._lock:
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:
                return
            engine = socket.socket(socket.AF_UNIX)
            engine.connect(self._engine)
            with self._lock:
                self._open |= {caller, engine}
            threading.Thread(target=self._serve, args=[caller, engine], daemon=True).start()

    def _serve(self, caller: socket.socket, engine: socket.socket) -> None:
        back = threading.Thread(target=_carry, args=[engine, caller], daemon=True)
        back.start()
        _carry(caller, engine)
        back.join()
        with self._lock:
            self._open -= {caller, engine}
        caller.close()
        engine.close()


def _carry(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(65536):
            target.sendall(chunk)
    # Half of a connection may end before the other one: the engine's streams depend on it.
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def engine_switch(engine: str) -> Iterator[EngineSwitch]:
    """Yield a switch that is on; addresses of sockets are short, so it lies where paths are."""
    with tempfile.TemporaryDirectory(prefix="svc-switch-", dir="/tmp") as folder:
        switch = EngineSwitch(Path(folder) / "docker.sock", engine)
        try:
            yield switch
        finally:
            switch.off()
