"""One request and its answer, over ASGI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qsl, unquote

from e2bfacade.refused import Refused

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_JSON_BYTES = 4 * 1024 * 1024
SILENCE_SECONDS = 60.0
"""How long a client may take for the next piece of what it sends."""


class ClientGone(Exception):
    """The client has left in the middle of what it sent."""


class Exchange:
    """A request that came, and the one answer to it."""

    def __init__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        # Of an address only what stands between slashes is unquoted: a slash may be part of a name.
        raw = bytes(scope.get("raw_path") or scope["path"].encode()).partition(b"?")[0]
        self.parts = [unquote(part) for part in raw.decode("latin-1").split("/") if part]
        self.query: dict[str, str] = {}
        for name, told in parse_qsl(scope["query_string"].decode("latin-1"), True):
            # What is given twice is a list, which others write with commas.
            self.query[name] = f"{self.query[name]},{told}" if name in self.query else told
        self.headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            text = name.decode("latin-1").lower()
            before = self.headers.get(text)
            content = value.decode("latin-1")
            self.headers[text] = content if before is None else f"{before}, {content}"
        client = scope.get("client")
        self.address: str = client[0] if client else ""
        self.answered = False
        self._receive, self._send = receive, send
        self._read_all = False

    async def body(self, silence: float | None = SILENCE_SECONDS) -> AsyncIterator[bytes]:
        """Give what is sent, as it comes. Raises ``ClientGone``, and ``Refused`` after silence."""
        while not self._read_all:
            try:
                message = await asyncio.wait_for(self._receive(), silence)
            except TimeoutError:
                raise Refused(
                    408, "deadline_exceeded", "The rest of the body did not arrive."
                ) from None
            if message["type"] == "http.disconnect":
                raise ClientGone
            self._read_all = not message.get("more_body", False)
            if message.get("body"):
                yield message["body"]

    async def read(self, limit: int = MAX_JSON_BYTES) -> bytes:
        """Return all that is sent; raises ``Refused`` when it is longer than ``limit``."""
        parts, size = [], 0
        async for part in self.body():
            size += len(part)
            if size > limit:
                raise Refused(413, "invalid_argument", f"A message may have at most {limit} bytes.")
            parts.append(part)
        return b"".join(parts)

    async def json(self) -> dict[str, Any]:
        """Return the JSON object that is sent, an empty one for nothing."""
        content = await self.read()
        if not content:
            return {}
        # A page of somebody else can send what claims to be text without being asked first.
        if self.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise Refused(415, "invalid_argument", "The body has to be application/json.")
        return json_object(content)

    async def answer(
        self, status: int, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send all of an answer."""
        sized = {
            **(headers or {}),
            **({} if status == 204 else {"content-length": str(len(content))}),
        }
        await self.begin(status, sized)
        await self._send({"type": "http.response.body", "body": content})

    async def answer_json(
        self, status: int, value: Any, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a JSON document."""
        told = {"content-type": "application/json", **(headers or {})}
        await self.answer(status, json.dumps(value).encode(), told)

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of an answer whose content follows by ``more`` and ``end``."""
        self.answered = True
        pairs = [
            (name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()
        ]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def more(self, content: bytes) -> None:
        """Send more of the content; waits while the client has no room for it."""
        if content:
            await self._send({"type": "http.response.body", "body": content, "more_body": True})

    async def end(self) -> None:
        """Say that the answer is complete."""
        await self._send({"type": "http.response.body", "body": b""})

    async def while_connected(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do ``work``, and give it up when the client leaves; tell whether it was done.

        What is left of the request is read before, and ignored.
        """
        async for _ in self.body():
            pass
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self._receive())
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
                return False
            await task
            return True
        finally:
            gone.cancel()
            task.cancel()


def json_object(content: bytes) -> dict[str, Any]:
    """Return the JSON object that ``content`` is. Raises ``Refused``."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise Refused(400, "invalid_argument", "This is not JSON.") from None
    if not isinstance(value, dict):
        raise Refused(400, "invalid_argument", "This is not a JSON object.")
    return value


def text(value: Mapping[str, Any], name: str, default: str = "") -> str:
    """Return a member that is text. Raises ``Refused``."""
    found = value.get(name)
    if found is None:
        return default
    if not isinstance(found, str):
        raise Refused(400, "invalid_argument", f"{name} has to be text.")
    return found


def number(value: Mapping[str, Any], name: str, default: int = 0) -> int:
    """Return a member that is a whole number, which JSON may have as text. Raises ``Refused``."""
    found = value.get(name)
    if found is None:
        return default
    try:
        if isinstance(found, bool | float) and found != int(found):
            raise ValueError
        return int(found)
    except (ValueError, TypeError, OverflowError):
        raise Refused(400, "invalid_argument", f"{name} has to be a whole number.") from None


def member(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a member that is an object, an empty one where it is absent. Raises ``Refused``."""
    found = value.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise Refused(400, "invalid_argument", f"{name} has to be an object.")
    return found


def texts(value: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return a member that is an object of texts. Raises ``Refused``."""
    found = member(value, name)
    if not all(isinstance(each, str) for each in found.values()):
        raise Refused(400, "invalid_argument", f"Every value of {name} has to be text.")
    return found
