"""What execs add to the OpenAPI description: texts, parameters, examples."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiExample, OpenApiParameter

EXEC_DESCRIPTION = """\
The command is a one-shot run and recorded as every run is: `runId` leads to its timeline, output,
changes and proof. The answer comes when it has ended, whatever its exit code; it has the first MiB
of each output, and `truncated` when that is not all. With `background` it is 202 with the run, at
once. With `Accept: text/event-stream` it is the stream of the run, `GET /v1/runs/{runId}/stream`,
from its beginning, so its output as it is written.

An answer that is waited for begins with the head, and has empty lines until its JSON comes, so that
nobody on the way takes it for dead. When the service itself ends meanwhile, its `status` is that of
the run, which goes on.

A client that goes away ends nothing: the command goes on and is recorded. `PATCH /v1/runs/{runId}`
cancels it.

| Status | `code` | When |
|---|---|---|
| 400 | `validation-failed` | members are wrong; see `errors` |
| 404 | `workspace-not-found` | the owner has no such workspace |
| 409 | `workspace-not-ready` | nothing can be executed in it now; `reason` says why |
| 409 | `idempotency-key-reused` | the key was used for another request |
| 429 | `owner-limit-reached` | the owner's records take all the room that the operator allows |
| 503 | `too-many-streams` | too many are waited for, and nothing was started |
"""
INPUT_DESCRIPTION = """\
For a command that was started with `openStdin` or with a terminal; a `signal` is for every command.
The answer says how far the input goes now. Nothing is lost or doubled on the way: give the `offset`
of your bytes, and repeat a request as often as you like. A signal has no offset, and is sent again,
unless the one before is still waiting. Signals and sizes overtake bytes that the program does not
read; of sizes that wait the last one counts.

| Status | `code` | When |
|---|---|---|
| 400 | `validation-failed` | members are wrong; see `errors` |
| 404 | `run-not-found` | the owner has no such run |
| 409 | `run-ended` | nobody is there to read it |
| 409 | `input-not-open` | the command was started without `openStdin`, or is no command of ours |
| 409 | `input-ended` | the end of the input was given before |
| 409 | `input-gap` | bytes before these never came; `offset` says from where on |
| 409 | `not-a-terminal` | a size for a command without a terminal |
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
        description="Repeating a request with the same key executes nothing again: it waits for "
        "the end of the first one's run, with the header `idempotency-replayed: true`. Keys belong "
        "to the owner.",
    ),
    OpenApiParameter(
        "Location",
        str,
        OpenApiParameter.HEADER,
        description="Of the run, when the answer does not wait for its end.",
        response=[200, 202],
    ),
    OpenApiParameter(
        "idempotency-replayed",
        str,
        OpenApiParameter.HEADER,
        description="`true` when an earlier request has started it.",
        response=[200, 202],
    ),
]
EXEC_EXAMPLES = [
    OpenApiExample("Text of a shell", value={"command": "npm test | tail -5"}, request_only=True),
    OpenApiExample(
        "A program",
        value={"command": ["python3", "-"], "stdin": "print(6 * 7)", "timeLimitMs": 60_000},
        request_only=True,
    ),
]
