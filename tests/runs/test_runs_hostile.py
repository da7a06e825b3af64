"""Hostile parameters and bodies get a 4xx in the common shape, and never a 5xx."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runs.models import Run
from tests.conftest import OWNER, Api
from tests.runs.record_factory import make_run, record
from tests.workspaces.attacks import INJECTIONS

READS = {
    "timeline": ["fromSequence", "toSequence", "limit", "kinds", "ownerUserId"],
    "scrollback": ["processId", "stream", "atSequence", "fromOffset", "limitBytes", "userId"],
    "export": ["format", "processId", "input"],
    "loss": ["x"],
    "changes": ["ownerUserId"],
}
NUMBERS = [
    "0", "1", "-1", "+1", "007", "1.0", "1e3", "0x10", "٣", "1_000", " 1", "1 ", "NaN", "Infinity",
    "2147483648", "4294967296", str(2**63 - 1), str(2**63), str(2**64), str(-(2**63)), "9" * 400,
]  # fmt: skip
TEXTS = [*NUMBERS, *INJECTIONS, "stdout", "ioChunk", "text", "asciicast", "ndjson", "true", OWNER,
         "", ",", "\x00", "\ud7ff", "\U0010ffff", "a" * 3000, "%00", "%", "&", "null"]  # fmt: skip

values = st.sampled_from(TEXTS) | st.text(max_size=40) | st.integers().map(str)
hostile = settings(
    max_examples=500,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def run(db: None) -> Run:
    run = make_run()
    record(run, [b"some", b"output"])
    return run


def assert_sound(api: Api, method: str, path: str, **kwargs: Any) -> None:
    answer = api.request(method, path, **kwargs)
    assert answer.status < 500, answer.content[:500]


@hostile
@given(data=st.data())
def test_any_parameters_of_a_read_are_taken_or_refused(
    api: Api, run: Run, data: st.DataObject
) -> None:
    read = data.draw(st.sampled_from(sorted(READS)))
    names = st.sampled_from([*READS[read], "stream", "format", "limit"])
    pairs = data.draw(st.lists(st.tuples(names, values), max_size=4))
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in pairs)
    headers = data.draw(
        st.sampled_from([{}, {"accept": "application/octet-stream"}, {"accept": "\x7f;q=,"}])
    )
    assert_sound(api, "GET", f"/v1/runs/{run.pk}/{read}?{query}", headers=headers)


@settings(hostile, max_examples=150)
@given(sequence=values)
def test_any_sequence_is_an_event_or_refused(api: Api, run: Run, sequence: str) -> None:
    assert_sound(api, "GET", f"/v1/runs/{run.pk}/events/{quote(sequence or 'x', safe='')}")


@settings(hostile, max_examples=150)
@given(pairs=st.lists(st.tuples(
    st.sampled_from(["ownerUserId", "userId", "workspaceId", "status", "limit", "cursor", "x"]),
    values,
), max_size=4))  # fmt: skip
def test_any_parameters_of_the_list_are_taken_or_refused(
    api: Api, run: Run, pairs: list[tuple[str, str]]
) -> None:
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in pairs)
    assert_sound(api, "GET", f"/v1/runs?{query}")


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(TEXTS) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner,
                                                                max_size=3),
    max_leaves=8,
)  # fmt: skip
CREATE = ["workspaceId", "harnessId", "mode", "prompt", "attemptId", "command", "stdin", "env",
          "timeLimitMs", "userId", "extra"]  # fmt: skip
UPDATE = ["status", "exitCode", "errorMessage", "diff", "changedFiles", "extra"]


@settings(hostile, max_examples=200)
@given(members=st.dictionaries(st.sampled_from(CREATE), anything, max_size=4), data=st.data())
def test_any_body_that_creates_is_taken_or_refused(
    api: Api, run: Run, members: dict[str, Any], data: st.DataObject
) -> None:
    sound = {"ownerUserId": OWNER, "workspaceId": str(run.workspace_id), "harnessId": "shell"}
    body = {**data.draw(st.sampled_from([sound, {}])), **members}
    assert_sound(api, "POST", "/v1/runs", raw=json.dumps(body).encode())


@settings(hostile, max_examples=200)
@given(
    status=st.sampled_from(["running", "completed", "failed", "cancelled", "queued"]),
    members=st.dictionaries(st.sampled_from(UPDATE), anything, max_size=3),
    recorded=st.booleans(),
)
def test_any_body_that_updates_is_taken_or_refused(
    api: Api, run: Run, status: str, members: dict[str, Any], recorded: bool
) -> None:
    other = make_run(status=Run.Status.QUEUED)
    Run.objects.filter(pk=other.pk).update(recorded=recorded)
    body = json.dumps({"status": status, **members}).encode()
    assert_sound(api, "PATCH", f"/v1/runs/{other.pk}", raw=body)
