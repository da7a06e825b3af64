"""A run of the demo: waiting for its end, and showing its record."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable

from deploy.services.errors import SetupError
from deploy.up.api import Api, indented
from deploy.up.progress import Progress

_SECONDS = 120.0
_FINAL = {"completed", "failed", "cancelled"}


def wait_completed(api: Api, run_id: str, title: str, progress: Progress) -> None:
    """Wait for the end of the run, saying each state. Raises SetupError unless it completed."""
    deadline = time.monotonic() + _SECONDS
    last = ""
    with progress.step(title) as step:
        while (run := api.get(f"/v1/runs/{run_id}"))["status"] not in _FINAL:
            if run["status"] != last:
                last = run["status"]
                step.now(last)
            if time.monotonic() > deadline:
                raise SetupError(f"The run has not ended after {_SECONDS:.0f} s.")
            time.sleep(0.1)
        if run["status"] != "completed":
            raise SetupError(f"The run is {run['status']}, not completed:\n{indented(run)}")
        step.done("completed")


def recorded(api: Api, run_id: str, stream: str) -> bytes:
    """The bytes that the record holds of a stream, as far as one answer carries them."""
    told = api.get(f"/v1/runs/{run_id}/scrollback", stream=stream)
    return base64.b64decode(told["contentBase64"])


def show_record(api: Api, run_id: str, streams: Iterable[str], progress: Progress) -> None:
    """Print the record of a run: what happened, what it wrote, what it changed, what is missing."""
    path = f"/v1/runs/{run_id}"
    items = api.get(f"{path}/timeline")["items"]
    lines = [f"  {item['sequence']:>3}  {item['kind']:<22} {item['summary']}" for item in items]
    progress.note(f"\nGET {api.url}{path}/timeline\n" + "\n".join(lines))
    for stream in streams:
        text = recorded(api, run_id, stream).decode(errors="replace").rstrip()
        shown = "\n".join(f"  {line}" for line in text.splitlines())
        progress.note(f"\nGET {api.url}{path}/scrollback?stream={stream}\n{shown}")
    changes = api.get(f"{path}/changes")
    if changes["files"]:
        progress.note(f"\nGET {api.url}{path}/changes\n{indented(changes)}")
    loss = {name: value for name, value in api.get(f"{path}/loss").items() if name != "coverage"}
    progress.note(f"\nGET {api.url}{path}/loss\n{indented(loss)}")
