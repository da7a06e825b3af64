"""Requests to the service: made again where that does no harm, streams that resume."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from controlplane_client._sync.platform import sleep
from controlplane_client.errors import Problem, RecordGone, Unreachable, WaitTimeout, problem_of
from controlplane_client.models import StreamEvent
from controlplane_client.retrying import (
    may_repeat_answer,
    may_repeat_failure,
    seconds_asked,
    seconds_before,
)
from controlplane_client.sse import Parser

SILENCE_SECONDS = 45.0
"""A stream that says nothing for so long is dead: the service says something every 15 seconds."""

Body = bytes | Callable[[], Iterator[bytes]] | None
"""What is sent: bytes, or what makes them anew for each try."""


class Connection:
    """The service at one address, for one owner."""

    def __init__(
        self,
        base_url: str,
        owner: str,
        *,
        headers: Mapping[str, str],
        timeout: float,
        retries: int,
        transport: httpx.BaseTransport | None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.owner = owner
        self.retries = retries
        self.headers = {"user-agent": "controlplane-client/0.4.0", **headers}
        self._timeout = httpx.Timeout(timeout)
        self._http = httpx.Client(
            base_url=self.base_url,
            # As a proxy has them: bytes, which WSGI and ASGI show as Latin-1.
            headers=httpx.Headers(self.headers, encoding="latin-1"),
            timeout=self._timeout,
            transport=transport,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
        )

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def json(
        self,
        method: str,
        path: str,
        body: Any = None,
        /,
        *,
        repeatable: bool = False,
        content: Body = None,
        headers: Mapping[str, str] | None = None,
        **query: Any,
    ) -> Any:
        """Send a request; return the JSON of its answer, None where it has none."""
        given = dict(headers or {})
        if body is not None:
            content = json.dumps(body).encode()
            given["content-type"] = "application/json"
        with self.answer(
            method, path, repeatable=repeatable, content=content, headers=given, **query
        ) as answer:
            # Part of the answer may be lost after its head: all of it is read before it counts.
            return json.loads(answer.content) if answer.content.strip() else None

    @contextmanager
    def answer(
        self,
        method: str,
        path: str,
        /,
        *,
        repeatable: bool = False,
        content: Body = None,
        headers: Mapping[str, str] | None = None,
        streamed: bool = False,
        silence: float | None = None,
        **query: Any,
    ) -> Iterator[httpx.Response]:
        """Send a request and give its answer, read to the end unless it is ``streamed``.

        After ``silence`` seconds without a byte the connection is taken for dead.

        Raises ``Problem`` for what is no success, ``Unreachable`` when there was no answer.
        """
        attempt = 0
        while True:
            attempt += 1
            last = attempt > self.retries
            request = self._request(method, path, content, headers, silence, query)
            try:
                answer = self._http.send(request, stream=True)
                if not streamed or answer.status_code >= 400:
                    self._read(answer)
            except httpx.TransportError as error:
                if last or not may_repeat_failure(error, repeatable=repeatable):
                    raise Unreachable(self._no_answer(error)) from error
                sleep(seconds_before(attempt))
                continue
            if answer.status_code >= 400:
                problem = _problem(answer)
                if last or not may_repeat_answer(
                    problem.status, problem.code, repeatable=repeatable
                ):
                    raise problem
                sleep(seconds_before(attempt, problem.retry_after))
                continue
            break
        try:
            yield answer
        finally:
            answer.close()

    def _read(self, answer: httpx.Response) -> None:
        try:
            answer.read()
        finally:
            answer.close()

    def _no_answer(self, error: Exception) -> str:
        return f"{self.base_url} does not answer: {str(error) or type(error).__name__}"

    def _request(
        self,
        method: str,
        path: str,
        content: Body,
        headers: Mapping[str, str] | None,
        silence: float | None,
        query: Mapping[str, Any],
    ) -> httpx.Request:
        params = {name: _text(value) for name, value in query.items() if value is not None}
        if self.owner and path.startswith("/v1/") and path != "/v1/system/setup-state":
            params.setdefault("ownerUserId", self.owner)
        return self._http.build_request(
            method,
            path,
            params=params,
            content=content() if callable(content) else content,
            headers=headers,
            timeout=self._timeout if silence is None else self._times(silence),
        )

    def _times(self, silence: float) -> httpx.Timeout:
        seconds = self._timeout.as_dict() | {"read": silence}
        return httpx.Timeout(**seconds)

    def events(
        self, path: str, *, after: str | None = None, deadline: float | None = None
    ) -> Generator[StreamEvent, None, None]:
        """Follow a stream to its end, over however many connections that takes.

        ``deadline`` is a time of ``time.monotonic()``, after which it raises ``WaitTimeout``.
        """
        failures = 0
        while True:
            parser = Parser()
            try:
                with self._stream(path, after, deadline) as answer:
                    if answer.status_code == 204:
                        return
                    for content in answer.iter_raw():
                        for event in parser.feed(content):
                            _in_time(deadline)
                            if event is None:
                                failures = 0
                                continue
                            if event.type == "error":
                                continue
                            failures, after = 0, event.id or after
                            if event.type == "resync" and "runId" not in event.data:
                                raise RecordGone(str(event.data.get("detail", "")))
                            yield event
                            if event.type == "end":
                                return
            except httpx.TransportError as error:
                _in_time(deadline)
                failures += 1
                if failures > self.retries:
                    raise Unreachable(self._no_answer(error)) from error
            else:
                failures += 1
                if failures > self.retries:
                    raise Unreachable(f"{self.base_url} keeps closing the stream")
            asked = parser.retry_seconds
            sleep(seconds_before(failures) if asked is None else min(asked, 5.0))

    @contextmanager
    def _stream(
        self, path: str, after: str | None, deadline: float | None
    ) -> Iterator[httpx.Response]:
        headers = {"accept": "text/event-stream", "accept-encoding": "identity"}
        query: dict[str, Any] = {}
        if after == "latest":
            query["after"] = after
        elif after is not None:
            headers["last-event-id"] = after
        silence = SILENCE_SECONDS
        if deadline is not None:
            silence = min(silence, max(0.01, deadline - time.monotonic()))
        with self.answer(
            "GET",
            path,
            repeatable=True,
            headers=headers,
            streamed=True,
            silence=silence,
            **query,
        ) as answer:
            yield answer


def _problem(answer: httpx.Response) -> Problem:
    try:
        document = json.loads(answer.content)
    except ValueError:
        document = {"detail": f"HTTP {answer.status_code} from something other than the service"}
    problem = problem_of(answer.status_code, document)
    problem.retry_after = seconds_asked(answer.headers)
    return problem


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _in_time(deadline: float | None) -> None:
    if deadline is not None and time.monotonic() >= deadline:
        raise WaitTimeout("it did not finish in time")
