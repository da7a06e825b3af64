"""Runs as the tests of the whole service ask for them and read them."""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from django.conf import settings as django_settings
from django.test import override_settings

from runs import offline
from runs.agent.session.channel import WINDOW, FrameDecoder, FromClient, ToClient, encode_frame
from runs.models import Run
from runs.record import signatures
from runs.record.checking import Checked
from tests.conftest import OWNER
from tests.stack.run_worker_process import RunWorkerProcess
from tests.stack.service import GitServer, Stack, Started
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT
from workspaces.runtimes.base import AgentChannel
from workspaces.runtimes.configured import configured_adapter

FINAL = {"completed", "failed", "cancelled"}
FINAL_SECONDS = LONG_WAIT
"""No run stays open for longer after whatever it depended on has gone."""

REPOSITORY = "/workspace/repo"
RAW = {"accept": "application/octet-stream"}
GATEWAY_TOKEN = "the-gateway-of-the-tests"
RECORD = {
    "policy": "block",
    "input": "full",
    "spoolBytes": 64 * 1024**2,
    "segmentBytes": 1024**2,
    "files": True,
    "network": True,
    "processes": True,
    "patchBytes": 1024**2,
    "maxFiles": 1000,
}


@dataclass
class Place:
    """A workspace with a repository, and a run worker that sees to its runs."""

    stack: Stack
    started: Started
    worker: RunWorkerProcess

    def run(self, *argv: str, cwd: str | None = None, **members: Any) -> str:
        """Have a command executed; return the run's id."""
        command: dict[str, Any] = {"executable": argv[0], "args": list(argv[1:])}
        if cwd is not None:
            command["cwd"] = cwd
        return self.ask(command=command, **members)

    def shell(self, script: str, **members: Any) -> str:
        """Have a script executed by bash."""
        return self.run("bash", "-c", script, **members)

    def python(self, script: str, *arguments: str, **members: Any) -> str:
        """Have a Python program executed."""
        return self.run("python3", "-c", script, *arguments, **members)

    def ask(self, *, headers: dict[str, str] | None = None, **members: Any) -> str:
        """Create a run; return its id."""
        body = {
            "ownerUserId": OWNER,
            "workspaceId": self.started.answer["workspaceId"],
            "harnessId": "shell",
            **members,
        }
        answer = self.stack.api.post("/v1/runs", body, expect=201, headers=headers)
        return str(answer.body["runId"])

    def read(self, run: str) -> Any:
        """Return the run as a client sees it."""
        return self.stack.api.get(f"/v1/runs/{run}").body

    def ended(self, run: str, within: float = LONG_WAIT) -> Any:
        """Wait until the run has ended; return it."""
        try:
            eventually(
                lambda: self.read(run)["status"] in FINAL, what="the run ends", timeout=within
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.worker.told[-4000:]}") from None
        return self.read(run)

    @contextlib.contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Have the run worker stand still for the block, so that spools fill."""
        self.worker.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.worker.process.send_signal(signal.SIGCONT)

    def waits_sealed(self, run: str) -> bool:
        """Whether the whole record of a run lies in the workspace and waits to be taken over."""
        boot = Run.objects.get(pk=self.started.answer["runId"]).pk
        answer = configured_adapter().call_agent(boot, ["runs"], timeout=LONG_WAIT)
        return any(found["runId"] == run and found["sealed"] for found in json.loads(answer.stdout))

    def completed(self, run: str) -> Any:
        """Wait until the run has ended, which it has to with nothing of it missing."""
        shown = self.ended(run)
        assert shown["status"] == "completed", shown
        assert self.loss(run)["complete"], self.loss(run)
        return shown

    def lost(self, run: str) -> Any:
        """Wait until the run has ended, in time, with a record that says that it lacks something.

        What the record holds nevertheless fits together.
        """
        shown = self.ended(run, FINAL_SECONDS)
        assert shown["status"] == "failed", shown
        loss = self.loss(run)
        assert not loss["complete"]
        assert loss["spans"]
        self.verify(run)
        return shown

    def cancel(self, run: str) -> None:
        """Ask for the end of a run."""
        body = {"ownerUserId": OWNER, "status": "cancelled"}
        self.stack.api.patch(f"/v1/runs/{run}", body)

    def scrollback(self, run: str, stream: str = "stdout", **query: Any) -> Any:
        """Return a piece of a stream as JSON shows it."""
        asked = "".join(f"&{name}={value}" for name, value in query.items())
        return self.stack.api.get(f"/v1/runs/{run}/scrollback?stream={stream}{asked}").body

    def output(self, run: str, stream: str = "stdout") -> bytes:
        """Return a whole stream, byte for byte."""
        path = f"/v1/runs/{run}/scrollback?stream={stream}"
        return self.stack.api.get(path, headers=RAW).content

    def wait_output(self, run: str, text: bytes, stream: str = "stdout") -> None:
        """Wait until the record holds this output."""
        eventually(lambda: text in self.output(run, stream), what=f"{text!r} is recorded")

    def wait_begun(self, run: str) -> None:
        """Wait until the record holds the start of the command."""
        eventually(lambda: self.timeline(run, "processStarted"), what="the command has begun")

    def loss(self, run: str) -> Any:
        """Return what the record lacks."""
        return self.stack.api.get(f"/v1/runs/{run}/loss").body

    def changes(self, run: str) -> Any:
        """Return what the run changed."""
        return self.stack.api.get(f"/v1/runs/{run}/changes").body

    def changed(self, run: str) -> dict[bytes, str]:
        """Return how each file changed, by its exact name."""
        return {exact_path(entry): entry["change"] for entry in self.changes(run)["files"]}

    def timeline(self, run: str, *kinds: str, limit: int = 5000) -> list[Any]:
        """Return the events, of these kinds or of all, page by page."""
        items: list[Any] = []
        start: str | None = "0"
        chosen = f"&kinds={','.join(kinds)}" if kinds else ""
        while start is not None:
            path = f"/v1/runs/{run}/timeline?fromSequence={start}&limit={limit}{chosen}"
            page = self.stack.api.get(path).body
            assert len(page["items"]) <= limit
            items += page["items"]
            start = page.get("nextFromSequence")
        return items

    def export(self, run: str) -> bytes:
        """Take the record away."""
        return self.stack.api.get(f"/v1/runs/{run}/export?format=ndjson").content

    def checked(self, lines: list[bytes]) -> Checked:
        """Hold the lines of an export against nothing but the public key."""
        private = signatures.decode_key(django_settings.SVC_RECORD_SIGNING_KEY)
        return offline.verify(lines, public_key=signatures.public_key_of(private))

    def verify(self, run: str) -> None:
        """The record, taken away, is as it was written."""
        checked = self.checked(self.export(run).splitlines(keepends=True))
        assert checked.ok, checked

    def inside(self, script: str, user: str = "workspace") -> str:
        """Run a script in the workspace, past all records."""
        return self.stack.inside(self.started, script, user)

    def session(self, *argv: str, pty: Any = None, **members: Any) -> Session:
        """Open a session with one program, as the gateway does: announced, opened, begun."""
        token = {"x-svc-gateway-token": GATEWAY_TOKEN}
        run = self.ask(mode="interactive", headers=token)
        boot = Run.objects.get(pk=self.started.answer["runId"]).pk
        channel = configured_adapter().open_agent(boot, ["session"])
        session = Session(run, channel)
        spec = {
            "version": 2,
            "mode": "interactive",
            "runId": run,
            "cwd": None,
            "env": {},
            "graceSeconds": 1,
            "secrets": [],
            "record": RECORD,
            "origin": None,
            **members,
        }
        session.send(FromClient.SPEC, json.dumps(spec).encode(), 0)
        session.until(ToClient.READY)
        body = {"ownerUserId": OWNER, "status": "running"}
        self.stack.api.patch(f"/v1/runs/{run}", body, headers=token)
        program = {"kind": "command", "argv": list(argv), "pty": pty, "env": {}}
        session.send(FromClient.OPEN, json.dumps(program).encode())
        session.until(ToClient.OPENED)
        return session


class Session:
    """The client's end of a session with one channel."""

    def __init__(self, run: str, channel: AgentChannel) -> None:
        self.run = run
        self.said = b""
        """The output that has come so far."""
        self._channel = channel
        self._decoder = FrameDecoder()

    def send(self, kind: int, payload: bytes = b"", channel: int = 1) -> None:
        """Send one frame."""
        self._channel.write(encode_frame(kind, channel, payload))

    def until(self, kind: int) -> Any:
        """Take frames up to one of this kind; return what that one says."""
        return self._take(lambda got, _: got == kind)

    def until_said(self, text: bytes) -> None:
        """Take frames until this text has been put out."""
        if text not in self.said:
            self._take(lambda _, __: text in self.said)

    def _take(self, enough: Callable[[int, bytes], bool]) -> Any:
        deadline = time.monotonic() + LONG_WAIT
        while True:
            while frame := self._decoder.take():
                kind, _, payload = frame
                assert kind not in (ToClient.ERROR, ToClient.REFUSED), payload
                if kind in (ToClient.STDOUT, ToClient.STDERR):
                    self.said += payload
                    self.send(FromClient.WINDOW, WINDOW.pack(len(payload)))
                if enough(kind, payload):
                    return json.loads(payload) if kind in (ToClient.READY, ToClient.EXIT) else None
            assert time.monotonic() < deadline, f"nothing more came after {self.said[-500:]!r}"
            part = self._channel.read(1.0)
            assert part != b"", f"it ended: {self._channel.errors()}"
            self._decoder.feed(part or b"")

    def close(self) -> None:
        """Go away."""
        self._channel.close()


def exact_path(entry: Any) -> bytes:
    """Return the name of a changed file, whatever bytes it has."""
    if "pathBase64" in entry:
        return base64.b64decode(entry["pathBase64"])
    return cast("str", entry["path"]).encode()


@contextlib.contextmanager
def place_of(stack: Stack, git_server: GitServer, run_queue: str, folder: Path) -> Iterator[Place]:
    """A ready workspace with a repository of one file, and a worker for its runs."""
    source = git_server.publish(f"place-{folder.name}", {"kept": "one\n", "gone": "two\n"})
    with override_settings(WORKSPACE_RUN_QUEUE=run_queue):
        started = stack.ready({"sources": {"workspace": {"url": source}}})
        worker = RunWorkerProcess(folder / "run-worker.log", RUN_STOP_GRACE_MS="10000")
        try:
            yield Place(stack, started, worker)
        finally:
            worker.stop()
