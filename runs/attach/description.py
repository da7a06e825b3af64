"""What attaching adds to the OpenAPI description: text, parameters, answers."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework import serializers

from controlplane.http.serializers import QuerySerializer
from controlplane.http.server_sent_events import MAX_CURSOR

ATTACH_DESCRIPTION = """\
A WebSocket (RFC 6455, version 13) to the command of a one-shot run, from its beginning or behind
`after`. Binary messages are bytes: output to the client, input from it, however the messages are
cut. Text messages are JSON, at most 4 KiB, and their `type` says what they are.

| From the service | |
|---|---|
| `start` | first: `runId`, `terminal` (its size, or null), `inputOpen`, `inputOffset` |
| `output` | `stream` (`pty`, `stdout`, `stderr`) and `offset` of the bytes that follow: at first, when the other stream goes on, and behind what the record lacks |
| `end` | `status`, `exitCode`, `exitSignal`, `errorCode`, `errorMessage` of the run; then 1000 |
| `error` | `problem`, as elsewhere; then 4000 and the problem's status |

| From the client | |
|---|---|
| `resize` | `columns`, `rows`: another size of the terminal |
| `signal` | `signal`, for the process group of the command |
| `input` | `offset`, where the input belongs that follows: what was taken already is not taken again |
| `input-end` | the program reads the end of its input |

`after` is how many bytes of output the client has, so whoever comes back misses nothing and sees
nothing twice. What was sent without an answer is in `inputOffset` of the next `start`, or is still
on its way: say `input` with its offset, and send it again. A ping comes when nothing else does for
ten seconds. Input that the program does not read is taken up to a limit, and no more is read then.

Close codes: 1000 at the end, 1001 when the service ends, 1002, 1007 and 1009 for what is no sound
frame, 4400 for a message that cannot be understood, 4408 for a client that takes nothing, and
others of problems; the reason is the `code`.

| Status | `code` | When |
|---|---|---|
| 101 | | the connection is a WebSocket now |
| 400 | `validation-failed` | parameters are wrong, or the output has no such place |
| 400 | `bad-handshake` | the key of the handshake is none |
| 403 | `origin-not-trusted` | a web page of another origin asks |
| 404 | `run-not-found` | the owner has no such run |
| 409 | `input-not-open` | the run has no command of ours |
| 410 | `record-removed` | the time of the record is over |
| 426 | `upgrade-required` | the request asks for no WebSocket |
| 503 | `too-many-streams` | the client has as many streams as it may have |
"""  # noqa: E501 - a row of a table is a line
ATTACH_RESPONSES: dict[Any, Any] = {
    101: OpenApiResponse(description="The connection is a WebSocket from here on."),
}


def _header(name: str, description: str) -> OpenApiParameter:
    return OpenApiParameter(name, str, OpenApiParameter.HEADER, description=description)


HANDSHAKE = [
    _header("Upgrade", "`websocket`; libraries of WebSockets send these headers by themselves."),
    _header("Connection", "`Upgrade`"),
    _header("Sec-WebSocket-Version", "`13`"),
    _header("Sec-WebSocket-Key", "16 random bytes in base64."),
]


class AttachParameters(QuerySerializer):
    # Where the output is to begin.
    after = serializers.CharField(
        required=False,
        max_length=MAX_CURSOR,
        help_text="How many bytes of `pty`, or of `stdout`, the client has. `latest`: only what is "
        "yet to come.",
    )
    after_stderr = serializers.CharField(
        required=False,
        max_length=MAX_CURSOR,
        help_text="How many bytes of `stderr` the client has, of a command without a terminal.",
    )
