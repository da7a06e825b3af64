"""A Docker Engine of the tests' own whose disk is soon full."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker

from deploy.services.engine import PrivateEngine
from tests.stack.disks import small_disk
from tests.support.waiting import LONG_WAIT


class _LoggingEngine(PrivateEngine):
    def __init__(self, root: Path, log_driver: str) -> None:
        super().__init__(root, networking=False)
        self._log_driver = log_driver

    def argv(self) -> list[str]:
        return [*super().argv(), f"--log-driver={self._log_driver}"]


@contextlib.contextmanager
def small_engine(
    machines_engine: str, *images: str, log_driver: str = "json-file"
) -> Iterator[PrivateEngine]:
    """Start an engine on a small disk of its own, with images of the machine's engine.

    It has no default bridge. ``log_driver`` keeps what containers print that name no other one.
    """
    # Below the shortest folder there is: addresses of sockets are short.
    with tempfile.TemporaryDirectory(prefix="svc-small-", dir="/tmp") as name:
        root = Path(name)
        root.chmod(0o755)
        with small_disk(root, "900m"):
            engine = _LoggingEngine(root, log_driver)
            try:
                engine.start()
                _carry(machines_engine, engine.url, images)
                yield engine
            finally:
                engine.stop()


def _carry(source: str, target: str, images: tuple[str, ...]) -> None:
    saving = subprocess.Popen(["docker", "--host", source, "save", *images], stdout=subprocess.PIPE)
    with saving, contextlib.closing(docker.DockerClient(target, timeout=int(LONG_WAIT))) as client:
        assert saving.stdout is not None
        client.images.load(saving.stdout)
