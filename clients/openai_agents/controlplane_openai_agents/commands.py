"""Commands that go on while the model does something else, with or without a terminal."""

from __future__ import annotations

import asyncio
import codecs
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from agents.sandbox.errors import PtySessionNotFoundError
from agents.sandbox.session.pty_types import (
    PTY_PROCESSES_MAX,
    PtyExecUpdate,
    allocate_pty_process_id,
    clamp_pty_yield_time_ms,
    process_id_to_prune_from_meta,
    resolve_pty_write_yield_time_ms,
    truncate_text_by_tokens,
)

from controlplane_client import AsyncRun, AsyncWorkspace, ControlPlaneError
from controlplane_openai_agents.failures import exec_failed, shell_exit_code

TERMINAL = (80, 24)
FULL_SECONDS = 5.0
"""So long input waits for a command that does not read; then the model is told."""
KEPT_BYTES = 1024 * 1024
"""How much output is kept for a model that does not ask; the record has all of it."""

_CHUNK_BYTES = 16 * 1024
_OUTPUTS = frozenset({"stdout", "stderr", "pty"})


@dataclass(eq=False)
class _Command:
    """A command, and what it wrote that the model has not seen."""

    run: AsyncRun
    terminal: bool
    chunks: deque[bytes] = field(default_factory=deque)
    omitted: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    exit_code: int | None = None
    last_used: float = field(default_factory=time.monotonic)
    reader: asyncio.Task[None] | None = None
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    async def read(self) -> None:
        """Take what it writes until it has ended."""
        try:
            async with aclosing(self.run.follow()) as events:
                async for event in events:
                    if event.stream in _OUTPUTS:
                        self._keep(event.content)
            info = self.run.info
            if info is None or not info.ended:
                info = await self.run.refresh()
            self.exit_code = shell_exit_code(info.exit_code, info.exit_signal, info.error_code)
            if info.exit_code is None and info.error:
                self._keep(f"{info.error}\n".encode())
        except ControlPlaneError as error:
            self._keep(f"{error}\n".encode())
            self.exit_code = shell_exit_code(None, None, None)
        self.ended.set()

    def _keep(self, content: bytes) -> None:
        if self.chunks and len(self.chunks[-1]) + len(content) <= _CHUNK_BYTES:
            self.chunks[-1] += content
        else:
            self.chunks.append(content)
        while len(self.chunks) > 1 and sum(map(len, self.chunks)) > KEPT_BYTES:
            self.omitted += len(self.chunks.popleft())

    async def taken(self, seconds: float) -> tuple[str, bool]:
        """Wait for its end, at most so long; return what it wrote, and whether it has ended."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.ended.wait(), seconds)
        self.last_used = time.monotonic()
        ended = self.ended.is_set()
        text = self.decoder.decode(b"".join(self.chunks), ended)
        if self.omitted:
            note = f"[{self.omitted} bytes left out here; they are in run {self.run.id}]\n"
            text, self.omitted = note + text, 0
        self.chunks.clear()
        return text, ended

    async def end(self) -> None:
        """Have it ended, unless it has."""
        if not self.ended.is_set():
            with suppress(ControlPlaneError):
                await self.run.cancel()
        if self.reader is not None:
            self.reader.cancel()
            await asyncio.gather(self.reader, return_exceptions=True)


class Commands:
    """The commands of a session that the model may come back to."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._known: dict[int, _Command] = {}

    async def start(
        self,
        workspace: AsyncWorkspace,
        command: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        timeout: float | None,
        terminal: bool,
        seconds: float,
        tokens: int | None,
    ) -> PtyExecUpdate:
        """Start one and wait for its end, at most ``seconds``."""
        size = TERMINAL if terminal else None
        try:
            run = await workspace.spawn(command, cwd=cwd, env=env, timeout=timeout, terminal=size)
        except ControlPlaneError as error:
            raise exec_failed(command, error) from error
        made = _Command(run, terminal)
        made.reader = asyncio.create_task(made.read())
        async with self._lock:
            number = allocate_pty_process_id(set(self._known))
            oldest = self._oldest() if len(self._known) >= PTY_PROCESSES_MAX else None
            self._known[number] = made
        if oldest is not None:
            await oldest.end()
        return await self._update(number, made, clamp_pty_yield_time_ms(_ms(seconds)), tokens)

    async def write(
        self, number: int, content: str, *, seconds: float, tokens: int | None
    ) -> PtyExecUpdate:
        """Give one input, or nothing, and tell what it wrote since."""
        known = self._known.get(number)
        if known is None:
            raise PtySessionNotFoundError(session_id=number)
        if content:
            if not known.terminal:
                raise RuntimeError("stdin is not available for this process")  # as the SDK knows it
            try:
                await known.run.write(content, timeout=FULL_SECONDS)
            except ControlPlaneError as error:
                if not known.ended.is_set():
                    raise exec_failed(["write_stdin", known.run.id], error) from error
        wait = resolve_pty_write_yield_time_ms(
            yield_time_ms=_ms(seconds), input_empty=content == ""
        )
        return await self._update(number, known, wait, tokens)

    async def end_all(self) -> None:
        """End whatever still runs."""
        async with self._lock:
            known = list(self._known.values())
            self._known.clear()
        await asyncio.gather(*(each.end() for each in known))

    async def _update(
        self, number: int, known: _Command, wait: int, tokens: int | None
    ) -> PtyExecUpdate:
        text, ended = await known.taken(wait / 1000)
        text, count = truncate_text_by_tokens(text, tokens)
        if ended:
            async with self._lock:
                self._known.pop(number, None)
            await known.end()
        return PtyExecUpdate(
            process_id=None if ended else number,
            output=text.encode(),
            exit_code=known.exit_code if ended else None,
            original_token_count=count,
        )

    def _oldest(self) -> _Command | None:
        used = [
            (number, each.last_used, each.ended.is_set()) for number, each in self._known.items()
        ]
        number = process_id_to_prune_from_meta(used)
        return None if number is None else self._known.pop(number)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
