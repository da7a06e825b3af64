"""The Connect protocol's envelopes with JSON, the one encoding that E2B's SDKs use.

A call without a stream is a JSON document both ways. One with a stream consists of envelopes: a
byte of flags, four of length, and a JSON document; the last one has the flag ``END`` and holds the
error.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from e2bfacade.http_call import MAX_JSON_BYTES, Exchange, json_object
from e2bfacade.refused import STATUS_OF_CODE, Refused

STREAM_TYPE = "application/connect+json"
COMPRESSED, END = 0x01, 0x02


def envelope(value: Any, flags: int = 0) -> bytes:
    """Return one envelope."""
    content = json.dumps(value).encode()
    return bytes([flags]) + len(content).to_bytes(4, "big") + content


def end_of_stream(error: Refused | None = None) -> bytes:
    """Return the last envelope of a stream."""
    return envelope({} if error is None else {"error": _told(error)}, END)


async def answer_error(exchange: Exchange, error: Refused) -> None:
    """Answer a call that failed before its stream began, or that has none."""
    if exchange.headers.get("content-type", "").startswith(STREAM_TYPE):
        await exchange.begin(200, {"content-type": STREAM_TYPE})
        await exchange.more(end_of_stream(error))
        await exchange.end()
        return
    # What E2B's proxy says stays the proxy's: the SDKs tell it by its status.
    status = 502 if error.status == 502 else STATUS_OF_CODE[error.code]
    await exchange.answer_json(status, _told(error))


def _told(error: Refused) -> dict[str, str]:
    return {"code": error.code, "message": error.message}


async def messages(
    exchange: Exchange, *, silence: float | None = 60.0
) -> AsyncGenerator[dict[str, Any], None]:
    """Give the messages of a stream that the client sends, as they come. Raises ``Refused``."""
    content = exchange.headers.get("content-type", "").partition(";")[0].strip()
    if content != STREAM_TYPE:
        raise Refused(415, "invalid_argument", f"A stream has to be {STREAM_TYPE}.")
    rest = b""
    async for part in exchange.body(silence):
        rest += part
        while len(rest) >= 5:
            size = int.from_bytes(rest[1:5], "big")
            if size > MAX_JSON_BYTES:
                raise Refused(
                    413, "invalid_argument", f"A message may have at most {MAX_JSON_BYTES} bytes."
                )
            if len(rest) < 5 + size:
                break
            flags, message, rest = rest[0], rest[5 : 5 + size], rest[5 + size :]
            if flags & COMPRESSED:
                raise Refused(501, "unimplemented", "Compressed messages are not supported.")
            if flags & END:
                return
            yield json_object(message)
    if rest:
        raise Refused(400, "invalid_argument", "The last message is not complete.")


async def one_message(exchange: Exchange) -> dict[str, Any]:
    """Return the only message of a stream that the client sends; reads the request to its end."""
    found = [message async for message in messages(exchange)]
    if len(found) != 1:
        raise Refused(400, "invalid_argument", "This call takes exactly one message.")
    return found[0]


async def answer_stream(exchange: Exchange, values: AsyncIterator[dict[str, Any]]) -> None:
    """Send ``values`` as they come; one that raises ``Refused`` ends the stream with that error."""
    await exchange.begin(200, {"content-type": STREAM_TYPE})
    try:
        async for value in values:
            await exchange.more(envelope(value))
    except Refused as error:
        await exchange.more(end_of_stream(error))
    else:
        await exchange.more(end_of_stream())
    await exchange.end()
