"""A shell into which the commands of a page are typed, one after the other."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support.waiting import LONG_WAIT

SECONDS = LONG_WAIT
_END = "the-command-has-ended"
_ENDED = re.compile(rf"\n?\n{_END} (\d+)\n\Z".encode())


class Shell:
    """One bash, in a folder of its own; what a command sets is there for the next one."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, command: str) -> tuple[int, str]:
        """Run a command to its end; return its exit code and all that it printed."""
        assert self._process.stdin is not None
        script = f"{{ {command}\n}} </dev/null 2>&1; printf '\\n{_END} %d\\n' $?\n"
        self._process.stdin.write(script.encode())
        self._process.stdin.flush()
        said = b""
        deadline = time.monotonic() + SECONDS
        while (ended := _ENDED.search(said)) is None:
            said += self._more(deadline, command, said)
        return int(ended[1]), said[: ended.start()].decode("utf-8", "replace")

    def _more(self, deadline: float, command: str, said: bytes) -> bytes:
        assert self._process.stdout is not None
        left = max(0.0, deadline - time.monotonic())
        if not select.select([self._process.stdout], [], [], left)[0]:
            raise AssertionError(f"it does not end: {command}\n{said[-4000:]!r}")
        part = os.read(self._process.stdout.fileno(), 65_536)
        assert part, f"the shell has ended: {command}\n{said[-4000:]!r}"
        return part

    def close(self) -> None:
        """End it with everything that it started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
