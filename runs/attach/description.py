"""What attaching adds to the OpenAPI description: text, parameters, answers."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework import serializers

from controlplane.http.serializers import QuerySerializer
from controlplane.http.server_sent_events import MAX_CURSOR

ATTACH_DESCRIPTION = """\
A WebSocket (RFC 6455, version 13) to the command of a one-shot run, from its beginning or from
`after` on. Binary messages are bytes: output to the client, input from it, however the messages are
cut. Text messages are JSON, at most 4 KiB, and their `type` says what they mean.

| From the service | |
|---|---|
| `start` | first: `runId`, `terminal` (its size, or null), `inputOpen`, `inputOffset` |
| `output` | `stream` (`pty`, `stdout`, `stderr`) and `offset` of the bytes that follow: at first, when the other stream goes on, and behind what the record lacks |
| `end` | `status`, `exitCode`, `exitSignal`, `errorCode`, `errorMessage` of the run; then 1000 |
| `error` | `problem`, as elsewhere; then 4000 and the problem's status |

| From the client | |
|---|---|
| `resize` | `columns`, `rows`: a new size of the terminal |
| `signal` | `signal`, for the process group of the command |
| `input` | `offset` of the input that follows: bytes already accepted are not accepted again |
| `input-end` | closes the program's input |

`after` is how many bytes of output the client has, so a client that reconnects misses nothing and
gets nothing twice. Input that was not acknowledged may or may not be counted in `inputOffset` of
the next `start`: send `input` with its offset, and send it again. A ping is sent after ten seconds
without any other message. Input that the program does not read is accepted up to a limit; then the
service stops reading.

Close codes: 1000 at the end, 1001 when the service stops, 1002, 1007 and 1009 for invalid frames,
4400 for an invalid message, 4408 for a client that does not read, and 4000 plus the status for
other problems; the reason is the `code`.

| Status | `code` | When |
|---|---|---|
| 101 | | the connection is a WebSocket now |
| 400 | `validation-failed` | parameters are wrong, or the output is shorter than `after` |
| 400 | `bad-handshake` | the key of the handshake is invalid |
| 403 | `origin-not-trusted` | the request comes from a web page of another origin |
| 404 | `run-not-found` | the owner has no such run |
| 409 | `input-not-open` | the run has no command to attach to |
| 410 | `record-removed` | the record was removed by retention |
| 426 | `upgrade-required` | the request is not a WebSocket handshake |
| 503 | `too-many-streams` | the client has too many open streams |
"""  # noqa: E501 - a row of a table is a line
ATTACH_RESPONSES: dict[Any, Any] = {
    101: OpenApiResponse(description="The connection is a WebSocket from here on."),
}


def _header(name: str, description: str) -> OpenApiParameter:
    return OpenApiParameter(name, str, OpenApiParameter.HEADER, description=description)


HANDSHAKE = [
    _header("Upgrade", "`websocket`; WebSocket libraries send these headers automatically."),
    _header("Connection", "`Upgrade`"),
    _header("Sec-WebSocket-Version", "`13`"),
    _header("Sec-WebSocket-Key", "16 random bytes in base64."),
]


class AttachParameters(QuerySerializer):
    # Where the output is to begin.
    after = serializers.CharField(
        required=False,
        max_length=MAX_CURSOR,
        help_text="How many bytes of `pty`, or of `stdout`, the client already has. `latest`: "
        "only new "
        "output.",
    )
    after_stderr = serializers.CharField(
        required=False,
        max_length=MAX_CURSOR,
        help_text="How many bytes of `stderr` the client already has; for a command without a "
        "terminal.",
    )
