"""The build worker and the engine's proxy side by side: what runs in the worker's container.

The one container that sees the engine's socket holds the two processes that need it. The proxy is
started again when it ends and stays open while the worker finishes its work; the worker's end is
the container's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

_PROXY_PAUSE_SECONDS = 1.0
_PROXY_STOP_SECONDS = 5.0
ENGINE_PROXY = "/run/svc-engineproxy/engine.sock"


def main() -> int:
    """Run both until the worker ends; return its exit code."""
    manage = [sys.executable, "manage.py"]
    worker = subprocess.Popen([*manage, "buildworker", *sys.argv[1:]])

    def pass_on(number: int, _: object) -> None:
        worker.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    proxy = _start_proxy(manage)
    while worker.poll() is None:
        # What ended is known without taking it away from the objects that wait for it.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        if proxy.poll() is not None and worker.poll() is None:
            print(f"the proxy ended with {proxy.returncode}; restarting it", file=sys.stderr)
            time.sleep(_PROXY_PAUSE_SECONDS)
            proxy = _start_proxy(manage)
    proxy.terminate()
    try:
        proxy.wait(_PROXY_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        proxy.kill()
        proxy.wait()
    return worker.returncode if worker.returncode >= 0 else 128 - worker.returncode


def _start_proxy(manage: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*manage, "engineproxy", "--listen", ENGINE_PROXY])


if __name__ == "__main__":
    sys.exit(main())
