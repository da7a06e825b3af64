"""``process.Process``: commands and terminals. Each is a run, whose id its number is made of.

A number is no process id of the sandbox. It means the same to every facade at every time, so
nothing has to be remembered; the table of those that go on is what the API says.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, TypeVar

from controlplane_client import (
    AsyncRun,
    AsyncWorkspace,
    Conflict,
    RunInfo,
    StreamEvent,
)
from e2bfacade.connect_protocol import (
    STREAM_TYPE,
    answer_stream,
    end_of_stream,
    envelope,
    messages,
    one_message,
)
from e2bfacade.http_call import Exchange, member, number, text, texts
from e2bfacade.refused import STATUS_OF_CODE, Refused, refusal_of, unsupported
from e2bfacade.sandbox_access import spec_of
from e2bfacade.watches import WATCHER

T = TypeVar("T")

MAX_KNOWN = 4096
START_GRACE_SECONDS = 15.0
FULL_SECONDS = 5.0
"""So long input waits for a process that does not read: signals for it wait behind that."""
MOST_PING_SECONDS, PING_SECONDS = 300, 50
_SIGNALS = {"SIGNAL_SIGTERM": "TERM", "SIGNAL_SIGKILL": "KILL", 15: "TERM", 9: "KILL"}
_USERS = {"", "user", "workspace"}


def process_number(run_id: str) -> int:
    """Return the number under which SDKs know a run: 1 to 2³¹ - 1."""
    digest = hashlib.sha256(run_id.encode()).digest()
    return int.from_bytes(digest[:4], "big") % (2**31 - 1) + 1


class Known:
    """A run that was asked for lately, with what keeps two inputs in their order."""

    def __init__(self, run: AsyncRun) -> None:
        self.run = run
        self.lock = asyncio.Lock()


class Processes:
    """Answers the calls of ``process.Process``."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str, int], Known] = OrderedDict()

    async def answer(self, exchange: Exchange, workspace: AsyncWorkspace, call: str) -> None:
        """Answer one call. Raises ``Refused`` and the client's errors."""
        match call:
            case "Start":
                await self._start(exchange, workspace)
            case "Connect":
                await self._connect(exchange, workspace)
            case "StreamInput":
                await self._stream_input(exchange, workspace)
            case "List":
                await exchange.json()
                await exchange.answer_json(200, {"processes": await self._list(workspace)})
            case "SendInput" | "SendSignal" | "Update" | "CloseStdin":
                body = await exchange.json()
                known = await self._selected(workspace, member(body, "process"))
                await self._tell(known, call, body)
                await exchange.answer_json(200, {})
            case _:
                raise unsupported(f"process.Process/{call[:40]}")

    # ------------------------------------------------------------ start and follow

    async def _start(self, exchange: Exchange, workspace: AsyncWorkspace) -> None:
        body = await one_message(exchange)
        await check_user(exchange, workspace)
        config = member(body, "process")
        args = config.get("args") or []
        if not isinstance(args, list) or not all(isinstance(each, str) for each in args):
            raise Refused(400, "invalid_argument", "args has to be a list of strings.")
        size = member(member(body, "pty"), "size")
        terminal = (number(size, "cols", 80), number(size, "rows", 24)) if "pty" in body else None
        milliseconds = number(exchange.headers, "connect-timeout-ms")
        run = await workspace.spawn(
            [text(config, "cmd"), *args],
            cwd=text(config, "cwd") or None,
            env=texts(config, "envs"),
            stdin=bool(body.get("stdin", False)) and terminal is None,
            terminal=terminal,
            timeout=milliseconds / 1000 if milliseconds else None,
        )
        self._remember(workspace, run)
        # The run itself is ended at its limit; that it was is told a moment later.
        await self._stream(exchange, run, None, grace=START_GRACE_SECONDS)

    async def _connect(self, exchange: Exchange, workspace: AsyncWorkspace) -> None:
        body = await one_message(exchange)
        known = await self._selected(workspace, member(body, "process"))
        run = AsyncRun(known.run._connection, known.run.id)
        await self._stream(exchange, run, "latest", grace=0)

    async def _stream(
        self, exchange: Exchange, run: AsyncRun, after: str | None, *, grace: float
    ) -> None:
        every = number(exchange.headers, "keepalive-ping-interval", PING_SECONDS)
        values = process_events(run, after)
        seconds: float = min(max(every, 1), MOST_PING_SECONDS)
        limit = number(exchange.headers, "connect-timeout-ms") / 1000
        if limit:
            # Some SDKs take so long a silence for the end of their time, and raise another error.
            seconds = min(seconds, limit / 2)
            values = until(values, limit + grace)
        keepalive: dict[str, Any] = {"event": {"keepalive": {}}}
        # A client that leaves has stopped to listen; what it has started goes on.
        async with aclosing(with_pings(values, seconds, keepalive)) as told:
            await exchange.while_connected(answer_stream(exchange, told))

    # ------------------------------------------------------------ input

    async def _tell(self, known: Known, call: str, body: dict[str, Any]) -> None:
        async with known.lock:
            try:
                if call == "SendInput":
                    # Others may have typed since: its place in the input is asked for again.
                    known.run._input_offset = None
                    await known.run.write(_input(member(body, "input")), timeout=FULL_SECONDS)
                elif call == "CloseStdin":
                    await known.run.close_stdin()
                elif call == "Update":
                    size = member(member(body, "pty"), "size")
                    await known.run.resize(number(size, "cols", 80), number(size, "rows", 24))
                else:
                    signal = _SIGNALS.get(body.get("signal", ""))
                    if signal is None:
                        raise Refused(400, "invalid_argument", "There is no such signal.")
                    await known.run.signal(signal)
            except Conflict as problem:
                if (await known.run.refresh()).ended:
                    raise _no_process() from None
                raise problem

    async def _stream_input(self, exchange: Exchange, workspace: AsyncWorkspace) -> None:
        known: Known | None = None
        async with aclosing(messages(exchange, silence=None)) as sent:
            async for message in sent:
                if "start" in message:
                    selector = member(member(message, "start"), "process")
                    known = await self._selected(workspace, selector)
                elif "data" in message:
                    if known is None:
                        raise Refused(400, "invalid_argument", "The first message has to be start.")
                    await self._tell(known, "SendInput", member(message, "data"))
        await exchange.begin(200, {"content-type": STREAM_TYPE})
        await exchange.more(envelope({}) + end_of_stream())
        await exchange.end()

    # ------------------------------------------------------------ which

    def _remember(self, workspace: AsyncWorkspace, run: AsyncRun) -> Known:
        owner = workspace._connection.owner
        key = (owner, workspace.id, process_number(run.id))
        known = self._known.get(key)
        if known is None or known.run.id != run.id:
            known = self._known[key] = Known(run)
        self._known.move_to_end(key)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return known

    async def _selected(self, workspace: AsyncWorkspace, selector: dict[str, Any]) -> Known:
        """Return the run that a selector means. Raises ``Refused`` when none such goes on."""
        if "pid" not in selector:
            raise unsupported("processes by tag")
        wanted = number(selector, "pid")
        found = self._known.get((workspace._connection.owner, workspace.id, wanted))
        if found is not None:
            if (await found.run.refresh()).ended:
                raise _no_process()
            return found
        infos = [each for each in await _going_on(workspace) if process_number(each.id) == wanted]
        if len(infos) != 1:
            raise _no_process()
        return self._remember(workspace, AsyncRun(workspace._connection, infos[0].id, infos[0]))

    async def _list(self, workspace: AsyncWorkspace) -> list[dict[str, Any]]:
        return [
            {
                "pid": process_number(info.id),
                "config": {
                    "cmd": info.command[0],
                    "args": info.command[1:],
                    **({"cwd": cwd} if (cwd := info.raw["command"].get("cwd")) else {}),
                },
            }
            for info in await _going_on(workspace)
            if info.command and WATCHER not in info.command
        ]


async def check_user(
    exchange: Exchange, workspace: AsyncWorkspace, name: str | None = None
) -> None:
    """Raise ``Refused`` for a user that the sandbox does not run as.

    SDKs name the user as that of Basic authentication, or as ``name``.
    """
    if name is None:
        scheme, _, encoded = exchange.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return
        try:
            name = base64.b64decode(encoded).decode().partition(":")[0]
        except ValueError:
            raise Refused(
                400, "invalid_argument", "The user is given in an invalid form."
            ) from None
    if name in _USERS:
        return
    own = (await spec_of(workspace)).get("customization", {}).get("user", "workspace")
    if name != own:
        raise Refused(
            400,
            "invalid_argument",
            f"Everything in this sandbox runs as its user {own}, not as {name[:40]}.",
        )


async def process_events(run: AsyncRun, after: str | None) -> AsyncGenerator[dict[str, Any], None]:
    """Give a run as E2B tells it: its start, what it writes, and its end.

    Raises ``Refused`` for one that reached its time limit or could not be started.
    """
    yield {"event": {"start": {"pid": process_number(run.id)}}}
    try:
        async with aclosing(run.follow(after)) as events:
            async for event in events:
                told = _output(event)
                if told is not None:
                    yield {"event": {"data": told}}
        info = run.info if run.info is not None and run.info.ended else await run.refresh()
    except Exception as error:
        raise refusal_of(error) from error
    yield {"event": {"end": _end(info)}}


def _output(event: StreamEvent) -> dict[str, str] | None:
    if event.stream not in {"stdout", "stderr", "pty"}:
        return None
    return {str(event.stream): base64.b64encode(event.content).decode()}


def _end(info: RunInfo) -> dict[str, Any]:
    if info.error_code == "run-timeout":
        raise Refused(504, "deadline_exceeded", "The command reached its time limit and was ended.")
    if info.exit_code is not None:
        code = info.exit_code
        return {"exitCode": code, "exited": True, "status": f"exit status {code}"}
    if info.exit_signal is not None:
        told = f"signal: {info.exit_signal}"
        return {"exitCode": -1, "exited": False, "status": told, "error": told}
    why = info.error or f"The command ended as {info.status}."
    refused = "invalid_argument" if info.error_code == "run-start-failed" else "unknown"
    raise Refused(STATUS_OF_CODE[refused], refused, f"{why} ({info.error_code})")


async def until(values: AsyncGenerator[T, None], seconds: float) -> AsyncGenerator[T, None]:
    """Give ``values`` for so many seconds. Raises ``Refused`` after that."""
    over = Refused(504, "deadline_exceeded", "The time for this call is over.")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    async with aclosing(values):
        while loop.time() < deadline:
            try:
                # Not around all: who asks for each value may be another task, and a time limit
                # ends the task in which it began.
                async with asyncio.timeout_at(deadline):
                    value = await anext(values)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise over from None
            yield value
        raise over


async def with_pings(
    values: AsyncGenerator[T, None], seconds: float, ping: T
) -> AsyncGenerator[T, None]:
    """Give ``values``, and ``ping`` whenever nothing has come for so many seconds."""
    coming: asyncio.Future[T] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(values))
            done, _ = await asyncio.wait({coming}, timeout=seconds)
            if not done:
                yield ping
                continue
            finished, coming = coming, None
            try:
                value = finished.result()
            except StopAsyncIteration:
                return
            yield value
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.wait({coming})
        await values.aclose()


async def _going_on(workspace: AsyncWorkspace) -> list[RunInfo]:
    # Those that wait first: one that begins in between is among both then, and never among none.
    found = [info async for info in workspace.runs(status="queued")]
    found += [info async for info in workspace.runs(status="running")]
    return list({info.id: info for info in found}.values())


def _input(told: dict[str, Any]) -> bytes:
    encoded = text(told, "stdin") or text(told, "pty")
    try:
        # Some write base64 without its padding.
        return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except binascii.Error:
        raise Refused(400, "invalid_argument", "The input has to be base64.") from None


def _no_process() -> Refused:
    return Refused(404, "not_found", "There is no such process, or it has ended.")
