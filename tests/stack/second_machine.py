"""Another machine with a Docker Engine: a network namespace of its own, reached over a cable."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker

from deploy.services.engine import api_version, mounts_below, unmount
from tests.stack.worker_process import ROOT, eventually

_RELAY = """
import asyncio, sys
listen, port, host, target = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])

async def pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()

async def serve(reader, writer):
    try:
        there, here = await asyncio.open_connection(host, target)
    except OSError:
        writer.close()
        return
    await asyncio.gather(pump(reader, here), pump(there, writer))
    here.close()
    writer.close()

async def main():
    server = await asyncio.start_server(serve, listen, port)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""
"""Forwards a port, as ``ssh -L`` does."""


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, timeout=60)


@dataclass
class SecondMachine:
    """Its engine is started and killed as often as a test wants; what it has stays."""

    number: int
    root: Path
    relays: list[subprocess.Popen[str]] = field(default_factory=list)
    engine: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where this machine is reached."""
        return f"10.214.{self.number}.2"

    @property
    def gateway(self) -> str:
        """Where it reaches the first machine."""
        return f"10.214.{self.number}.1"

    @property
    def url(self) -> str:
        """The engine's own socket, for what a test looks at."""
        return f"unix://{self.root}/docker.sock"

    @property
    def _namespace(self) -> str:
        return f"svc-machine-{self.number}"

    @property
    def _cable(self) -> str:
        return f"svcm{self.number}"

    def connect(self) -> None:
        """Lay the cable."""
        _run("ip", "netns", "add", self._namespace)
        inside = ("ip", "-n", self._namespace)
        _run("ip", "link", "add", self._cable, "type", "veth", "peer", f"{self._cable}b")
        _run("ip", "link", "set", f"{self._cable}b", "netns", self._namespace)
        _run("ip", "address", "add", f"{self.gateway}/30", "dev", self._cable)
        _run("ip", "link", "set", self._cable, "up")
        _run(*inside, "address", "add", f"{self.address}/30", "dev", f"{self._cable}b")
        _run(*inside, "link", "set", f"{self._cable}b", "up")
        _run(*inside, "link", "set", "lo", "up")
        _run(*inside, "route", "add", "default", "via", self.gateway)

    def cut(self) -> None:
        """Pull the cable: nothing is refused, nothing comes."""
        _run("ip", "link", "set", self._cable, "down")

    def mend(self) -> None:
        """Plug it in again."""
        _run("ip", "link", "set", self._cable, "up")

    def forward(self, port: int) -> None:
        """Have its ``127.0.0.1:port`` be the first machine's."""
        outside = self._relay((), self.gateway, 0, "127.0.0.1", port)
        self._relay(self._inside(), "127.0.0.1", port, self.gateway, outside)

    def _relay(self, before: tuple[str, ...], *arguments: object) -> int:
        argv = [*before, sys.executable, "-c", _RELAY, *map(str, arguments)]
        relay = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        self.relays.append(relay)
        assert relay.stdout is not None
        return int(relay.stdout.readline())

    def _inside(self) -> tuple[str, ...]:
        # Not `ip netns exec`, which mounts /sys anew and hides the control groups.
        return ("nsenter", f"--net=/run/netns/{self._namespace}", "--")

    def start_engine(self, configuration: dict[str, Any]) -> None:
        """Start dockerd with this ``daemon.json``, and wait until it answers."""
        # Engines of one machine would share the key by which they name themselves.
        own = {"deprecated-key-path": f"{self.root}/key.json"}
        (self.root / "daemon.json").write_text(json.dumps({**configuration, **own}))
        for pid in ("docker.pid", "exec/containerd/containerd.pid"):
            (self.root / pid).unlink(missing_ok=True)
        with (self.root / "dockerd.log").open("ab") as log:
            self.engine = subprocess.Popen(
                [
                    *self._inside(),
                    "dockerd",
                    f"--config-file={self.root}/daemon.json",
                    f"--data-root={self.root}/data",
                    f"--exec-root={self.root}/exec",
                    f"--pidfile={self.root}/docker.pid",
                ],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        eventually(self._answers, what=f"the engine answers\n{self.told()}")

    def told(self) -> str:
        """Return the end of the engine's log."""
        path = self.root / "dockerd.log"
        return path.read_text(errors="replace")[-3000:] if path.exists() else ""

    def _answers(self) -> bool:
        return api_version(self.url) is not None

    def client(self) -> docker.DockerClient:
        """Return a client of its engine; to be closed."""
        return docker.DockerClient(self.url, timeout=60)

    def signal_engine(self, number: signal.Signals) -> None:
        """Stop, continue or kill everything of the engine but its containers."""
        assert self.engine is not None
        os.killpg(self.engine.pid, number)
        if number == signal.SIGKILL:
            self.engine.wait()

    def close(self) -> None:
        """Leave nothing of it."""
        if self.engine is not None and self.engine.poll() is None:
            with contextlib.suppress(Exception), contextlib.closing(self.client()) as client:
                for container in client.containers.list(all=True):
                    container.remove(force=True, v=True)
            self.engine.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.engine.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.engine.pid, signal.SIGKILL)
        for relay in self.relays:
            relay.kill()
            relay.wait()
            assert relay.stdout is not None
            relay.stdout.close()
        unmount(mounts_below(self.root))
        for argv in (
            ("ip", "link", "delete", self._cable),
            ("ip", "netns", "delete", self._namespace),
        ):
            subprocess.run(argv, capture_output=True, timeout=60, check=False)
        shutil.rmtree(self.root, ignore_errors=True)


@contextlib.contextmanager
def second_machine(number: int) -> Iterator[SecondMachine]:
    """Have a machine; ``number``, below 256, tells those apart that are there at once."""
    # Below the shortest folder there is: addresses of sockets are short.
    root = Path(tempfile.mkdtemp(prefix="svc-machine-", dir="/tmp"))
    machine = SecondMachine(number, root)
    try:
        machine.connect()
        yield machine
    finally:
        machine.close()


def carry_image(source: str, machine: SecondMachine, *images: str) -> None:
    """Give the machine's engine images of another engine."""
    saving = subprocess.Popen(["docker", "--host", source, "save", *images], stdout=subprocess.PIPE)
    with saving, contextlib.closing(machine.client()) as client:
        assert saving.stdout is not None
        client.images.load(saving.stdout)
