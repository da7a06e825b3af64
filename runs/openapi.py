"""What runs add to the OpenAPI description: texts, parameters, examples, media types."""

from __future__ import annotations

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter

from controlplane.http.gateway_token import HEADER
from runs.record.reading.export import CONTENT_TYPES
from runs.serializers import ScrollbackSerializer

GATEWAY_TOKEN = OpenApiParameter(
    HEADER,
    str,
    OpenApiParameter.HEADER,
    description="Sent by the SSH gateway; other clients do not have one.",
)
LOCATION = OpenApiParameter(
    "Location",
    str,
    OpenApiParameter.HEADER,
    description="Where its current state can be read.",
    response=[201],
)
SEQUENCE = OpenApiParameter(
    "sequence", str, OpenApiParameter.PATH, description="The event's number, in decimal."
)
STREAM_HEADERS = [
    OpenApiParameter(
        "x-missing-ranges",
        str,
        OpenApiParameter.HEADER,
        description="For raw bytes: the missing ranges, as `from-to` with commas, `to` "
        "exclusive; at most 100 ranges.",
        response=[200],
    ),
    OpenApiParameter(
        "x-missing-count",
        str,
        OpenApiParameter.HEADER,
        description="For raw bytes: how many ranges are missing.",
        response=[200],
    ),
    OpenApiParameter(
        "x-stream-complete",
        str,
        OpenApiParameter.HEADER,
        description="For raw bytes: `true` when nothing is missing up to the stream's end.",
        response=[200],
    ),
]

CREATE_DESCRIPTION = """\
A one-shot run with a `command` or a `prompt` is executed in the workspace, which must be ready, and
is recorded. A prompt becomes the one-shot command of the harness `harnessId`: `opencode run`,
`codex exec`, `claude -p`, `bash -lc` for `shell`, and the blueprint's own command for `custom`.
With a blueprint whose harness is `custom`, any name that is not built in means that one; otherwise
the answer is a 400 that lists the known names. With a `command`, `harnessId` may be any name.
Harnesses do not ask for confirmation: they work with full rights inside the workspace, as its user,
unless the blueprint's `harness.rights` is `read-only`. Any other run is only stored: its client
does the work and reports with `PATCH`.

| Status | `code` | When |
|---|---|---|
| 400 | `validation-failed` | members are wrong; see `errors` |
| 401 | `gateway-token-invalid` | a gateway token was sent, and it is wrong |
| 404 | `workspace-not-found`, `attempt-not-found` | the owner has no such workspace or attempt |
| 409 | `workspace-not-ready` | nothing can be executed in it at the moment; `reason` says why |
| 429 | `owner-limit-reached` | the owner's records use all the space that the operator allows |
| 502 | `queue-publish-failed` | recorded as failed: the queue could not be reached |
| 503 | `gateway-token-unset` | a gateway token was sent, but none is configured here |
| 503 | `record-signing-key-unset` | `env` or `stdin` was given, but there is no key to seal it |

`env` and `stdin` are stored sealed, and erased once the run has started. Values of variables whose
names suggest a secret (`…TOKEN`, `…SECRET`, `…PASSWORD`, `…API_KEY` and the like) are masked in its
record.
"""

UPDATE_DESCRIPTION = """\
`queued → running → completed | failed | cancelled`, and `queued → failed | cancelled`. Everything
else is
409 `run-transition`. The state of a run that is not recorded is what its client reports. The state
of a recorded run follows from its record, and a client can only cancel it: a queued run at once, a
running one by having it stopped, which `cancelRequestedAt` shows until it has ended.
"""

TIMELINE_DESCRIPTION = """\
Events in the order of their numbers. Continue with `fromSequence` = `nextFromSequence`; the cost of
a page does not depend on its position. A page of `ioChunk` together with other kinds may hold fewer
items than `limit`, even none, and still have a next page. A record that retention removed is 410
`record-removed`, here and wherever records are read.

A session is one client connection: its `recordStarted` has `origin` with `address`, `port`,
`client`, `user` and `key`, each of its channels is a leading process, whose `processStarted` has
`channel` and `kind` (`shell`, `exec`, `command`, `subsystem`). `forwardOpened` and `forwardClosed`
have `channel`, `host` and `port`, the latter also `sentBytes`, `receivedBytes` and `reason`. In a
boot run they belong to a preview, and have `via`, and `by`, the owner whose link was used, instead
of `channel`.
"""

RUN_STREAM_DESCRIPTION = """\
Everything in the timeline, as server-sent events, from the beginning or behind `after`, and then as
it is recorded. `id` is the event's sequence.

| `event` | `data` |
|---|---|
| `event` | an item of the timeline |
| `output` | an item of the timeline of kind `ioChunk`, with its bytes in `contentBase64` |
| `resync` | `{reason, detail, after}`: what followed `after` was removed (`record-removed`) |
| `end` | the run, as `GET` shows it; the connection closes, and reconnecting gives 204 |
| `error` | a problem, as elsewhere; the connection closes, and the client may reconnect |

A comment is sent at least every 15 seconds. A slow reader is disconnected, but loses nothing: it
reconnects with the last event that it received.
"""

WORKSPACE_STREAM_DESCRIPTION = """\
What happens to a workspace, as server-sent events: all of it from the beginning, with the output of
its latest build and boot, or what follows `after`.

| `event` | `data` |
|---|---|
| `status` | the workspace as lists show it, with `reason`; first, and when it changes; no `id` |
| `event` | an item of `GET /v1/workspaces/{workspaceId}/events` |
| `output` | what a build or boot printed: an item of its run's timeline, with `contentBase64` |
| `resync` | `{runId, reason, detail, after}`: the record of a boot was removed (`record-removed`) |
| `end` | the workspace, once it is deleted; the connection closes, and 204 follows |
| `error` | a problem, as elsewhere; the connection closes, and the client may reconnect |

Everything else is as in the stream of a run.
"""

OWNER_STREAM_DESCRIPTION = """\
The state of all workspaces of an owner, and their events, as server-sent events. The stream begins
with the current state and never ends.

| `event` | `data` |
|---|---|
| `status` | a workspace as lists show it: each one first, later before its events; no `id` |
| `current` | `{ownerUserId}`: every workspace has been sent once |
| `event` | an item of `GET /v1/workspaces/{workspaceId}/events` |
| `error` | a problem, as elsewhere; the connection closes, and the client may reconnect |

The output of runs is in their own streams.
"""

SCROLLBACK_DESCRIPTION = """\
What a process wrote to, or read from, one of its streams: the leading process that has such a
stream or, where several do, the one that `processId` names. `missing` names every range of bytes
that the record does not hold. With `Accept: application/octet-stream` the bytes themselves are
sent, of any length, without the missing ranges; the headers `x-missing-ranges`, `x-missing-count`
and `x-stream-complete` describe those.
"""

EXPORT_DESCRIPTION = """\
`asciicast` is a recording in version 3 of asciinema's format, or in 2 with `version=2`, of one
terminal where there is one: a session may have several, and `processId` says which one. `text` is
the output without escape sequences, `ndjson` the whole record, which can be checked for tampering
without this service (`python -m runs.offline`). `in-toto` is a signed statement (in-toto v1 in a
DSSE envelope) about the record, the image's digest and the git tree that the run left; for a record
that has not ended, as it is now, with `sealedAt` null. Without a signing key it is 503
`record-signing-key-unset`. `ocsf` lists processes, files, connections and sessions as events of the
Open Cybersecurity Schema Framework 1.8.0, one per line, and then what the record lacks. `otlp` is
the run and its processes as OpenTelemetry spans (OTLP/JSON), whose trace id is the run's id.
"""

_RUN: dict[str, Any] = {
    "ownerUserId": "usr_local",
    "workspaceId": "019c0f5e-2b1a-7c44-9d2f-6f1f3a0b5c77",
}
CREATE_EXAMPLES = [
    OpenApiExample(
        "A prompt",
        value={**_RUN, "harnessId": "claude-code", "prompt": "Make the tests pass."},
        request_only=True,
    ),
    OpenApiExample(
        "A command",
        value={
            **_RUN,
            "harnessId": "shell",
            "command": {"executable": "npm", "args": ["test"], "cwd": "web"},
            "timeLimitMs": 600_000,
        },
        request_only=True,
    ),
]

SCROLLBACK_RESPONSES: dict[Any, Any] = {
    (200, "application/json"): ScrollbackSerializer,
    (200, "application/octet-stream"): OpenApiTypes.BINARY,
}
EXPORT_RESPONSES: dict[Any, Any] = {
    (200, media.split(";")[0]): OpenApiTypes.STR for media in CONTENT_TYPES.values()
} | {(200, CONTENT_TYPES[name]): OpenApiTypes.OBJECT for name in ("otlp", "in-toto")}
