"""A headless Chromium for tests that look at pages, driven over its debugging pipe.

The DevTools protocol on two pipes (``--remote-debugging-pipe``: JSON messages, each ended by NUL)
needs neither a port nor a driver of somebody else's.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.services.private import find_program
from tests.support.waiting import LONG_WAIT

_ANSWER_SECONDS = LONG_WAIT
_LOOK_SECONDS = 0.05
_LOADS = 20
_NETWORK_CHANGED = "ERR_NETWORK_CHANGED"
"""Chromium drops its requests when an interface comes or goes, as with every container."""


_GONE = (
    "Execution context was destroyed",
    "Cannot find context with specified id",
    "Cannot find default execution context",
    "Inspected target navigated or closed",
    "Promise was collected",
)
"""What Chromium says of an expression whose document gives way to another one meanwhile."""


class DocumentGone(AssertionError):
    """The document that was asked is being left."""


class Page:
    """One tab. Everything waits for at most a minute and then raises ``TimeoutError``."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests = requests
        self._answers = answers
        self._buffer = b""
        self._last_id = 0
        self._session: str | None = None
        self.console: list[str] = []
        """What the page's scripts complained about: errors, exceptions, violated policies."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def set_cookie(self, name: str, value: str, url: str) -> None:
        """Give the browser a cookie for ``url``."""
        self._call("Network.setCookie", name=name, value=value, url=url)

    def open(self, url: str, *, width: int = 1200, height: int = 1400) -> None:
        """Load ``url`` and wait until the document is complete with all that belongs to it."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        complaints = list(self.console)
        for _ in range(_LOADS):
            told = self._call("Page.navigate", url=url)
            if _NETWORK_CHANGED not in told.get("errorText", ""):
                here = f"location.href === {json.dumps(url)}"
                self.wait_for(f"{here} && document.readyState === 'complete'")
                if not any(_NETWORK_CHANGED in line for line in self.console):
                    return
            self.console[:] = complaints
        raise AssertionError(f"the network changed during each of {_LOADS} loads of {url}")

    def start(self, url: str) -> None:
        """Begin to load ``url``, which may lead elsewhere; wait for what is to be seen there."""
        self._call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until ``expression`` is true."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        while not self._holds(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{expression} did not come true; {self.console}")
            time.sleep(_LOOK_SECONDS)

    def _holds(self, expression: str) -> bool:
        """Whether an expression is true; between two documents none is."""
        try:
            return bool(self.evaluate(expression))
        except DocumentGone:
            return False

    def screenshot(self, path: Path, *, selector: str | None = None) -> None:
        """Write a PNG of the page, or of one element."""
        options: dict[str, Any] = {"format": "png", "captureBeyondViewport": True}
        if selector is not None:
            box = self.evaluate(
                f"(() => {{ const b = document.querySelector({json.dumps(selector)})"
                ".getBoundingClientRect(); return {x: b.x + scrollX, y: b.y + scrollY,"
                " width: b.width, height: b.height, scale: 1}; })()"
            )
            options["clip"] = box
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", **options)["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._requests, data) :]
        while True:
            answer = self._next_message()
            if answer.get("id") == self._last_id:
                if "error" in answer:
                    told = f"{method}: {answer['error']}"
                    raise (DocumentGone if any(each in told for each in _GONE) else AssertionError)(
                        told
                    )
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _next_message(self) -> dict[str, Any]:
        deadline = time.monotonic() + _ANSWER_SECONDS
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            chunk = os.read(self._answers, 1 << 20)
            if not chunk:
                raise AssertionError("the browser has ended")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        if message.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.console.append(parameters["entry"]["text"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.console.append(str(parameters["exceptionDetails"]))


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """Run a browser with the empty folder ``profile`` and give its page."""
    program = find_program("chromium", "chromium-browser", "google-chrome")
    assert program is not None, "no browser is installed: python3 -m deploy.up prepare-test"
    for_browser, requests = os.pipe()
    answers, from_browser = os.pipe()

    def hand_over() -> None:
        # The browser expects its pipes as descriptors 3 and 4, whatever their numbers are here:
        # they may be these two, so both are copied to numbers that nobody has.
        spare = [
            fcntl.fcntl(pipe, fcntl.F_DUPFD_CLOEXEC, 5) for pipe in (for_browser, from_browser)
        ]
        for wanted, descriptor in zip((3, 4), spare, strict=True):
            os.dup2(descriptor, wanted)

    process = subprocess.Popen(
        [
            str(program),
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--disable-background-networking", "--no-first-run", "--hide-scrollbars"),
            *("--remote-debugging-pipe", f"--user-data-dir={profile}"),
        ],
        preexec_fn=hand_over,
        close_fds=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(for_browser)
    os.close(from_browser)
    try:
        yield Page(requests, answers)
    finally:
        os.close(requests)
        os.close(answers)
        process.terminate()
        try:
            process.wait(LONG_WAIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
