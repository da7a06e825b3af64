"""What execs add to the OpenAPI description: texts, parameters, examples."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiExample, OpenApiParameter

EXEC_DESCRIPTION = """\
The command is a one-shot run, recorded like every run: `runId` leads to its timeline, output,
changes and proof. The answer comes when the command has ended, whatever its exit code; it has the
first MiB of each output, and `truncated` when there is more. With `background` the answer is 202
with the run, at once. With `Accept: text/event-stream` the answer is the stream of the run, `GET
/v1/runs/{runId}/stream`, from its beginning, with output as it is written.

While the command runs, the answer's head and empty lines are sent ahead of its JSON, so that
proxies keep the connection open. If the service itself stops in the meantime, `status` is that of
the run, which continues.

The command continues, and is recorded, when the client disconnects. `PATCH /v1/runs/{runId}`
cancels it.

| Status | `code` | When |
|---|---|---|
| 400 | `validation-failed` | members are wrong; see `errors` |
| 404 | `workspace-not-found` | the owner has no such workspace |
| 409 | `workspace-not-ready` | nothing can be executed in it at the moment; `reason` says why |
| 409 | `idempotency-key-reused` | the key was used for another request |
| 410 | `record-removed` | the request is a repetition, and retention has removed its run's record |
| 429 | `owner-limit-reached` | the owner's records use all the space that the operator allows |
| 503 | `record-signing-key-unset` | `env` or `stdin` was given, but there is no key to seal it |
| 503 | `too-many-streams` | too many requests are waiting; nothing was started |
"""
INPUT_DESCRIPTION = """\
For a command that was started with `openStdin` or with a terminal; a `signal` works for every
command. The answer says how much input has been accepted so far. With the `offset` of your bytes, a
request can be repeated without losing or doubling input. A signal has no offset: a repeated one is
sent again, unless the one before is still waiting. Signals and sizes overtake bytes that the
program has not read; of several waiting sizes the last one counts.

| Status | `code` | When |
|---|---|---|
| 400 | `validation-failed` | members are wrong; see `errors` |
| 404 | `run-not-found` | the owner has no such run |
| 409 | `run-ended` | the run has ended, so nothing can read it |
| 409 | `input-not-open` | the command was started without `openStdin`, or the run has no command |
| 409 | `input-ended` | the input was already closed |
| 409 | `input-gap` | bytes before these are missing; `offset` says where to continue |
| 409 | `not-a-terminal` | a size was sent for a command without a terminal |
| 503 | `input-full` | 4 MiB or 4,096 pieces wait for a program that does not read |
"""
INPUT_EXAMPLES = [
    OpenApiExample("A line", value={"stdin": "yes\n", "offset": 0}, request_only=True),
    OpenApiExample("Ctrl+C", value={"signal": "INT"}, request_only=True),
]
EXEC_HEADERS = [
    OpenApiParameter(
        "idempotency-key",
        str,
        OpenApiParameter.HEADER,
        description="Repeating a request with the same key does not execute the command again: "
        "it waits for the end of the first run, and the answer has the "
        "header `idempotency-replayed: true`. Keys belong to the owner.",
    ),
    OpenApiParameter(
        "Location",
        str,
        OpenApiParameter.HEADER,
        description="The run, when the answer does not wait for its end.",
        response=[200, 202],
    ),
    OpenApiParameter(
        "idempotency-replayed",
        str,
        OpenApiParameter.HEADER,
        description="`true` when an earlier request started the run.",
        response=[200, 202],
    ),
]
INPUT_LOCATION = OpenApiParameter(
    "Location", str, OpenApiParameter.HEADER, description="The run.", response=[202]
)
EXEC_EXAMPLES = [
    OpenApiExample("A shell command", value={"command": "npm test | tail -5"}, request_only=True),
    OpenApiExample(
        "A program",
        value={"command": ["python3", "-"], "stdin": "print(6 * 7)", "timeLimitMs": 60_000},
        request_only=True,
    ),
]
