"""Execs as the API takes and answers them; the record of each is written here, by a thread."""

from __future__ import annotations

import base64
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest
from django.db import connections
from pytest_django.fixtures import Settings

from runs.exec import execs
from runs.exec.execs import answer_of
from runs.exec.serializers import OUTPUT_BYTES
from runs.exec.waiting import Ending, stop_listening
from runs.input import later
from runs.input.later import WAITING_BYTES, forget_left_input, handed_over, waiting_input
from runs.models import Run
from runs.record.retention import prune
from runs.recording.program_start import exec_spec
from runs.recording.run_worker_setup import record_limits
from runs.run_messages import RUN_REQUESTED
from tests.conftest import OWNER, Answer, Api
from tests.runs.executable import make_executable
from tests.runs.ready import ready_attempt
from tests.runs.record_factory import Source, record
from tests.stack.worker_process import eventually
from tests.support import queues
from tests.support.sent_statements import sent_statements
from tests.support.waiting import LONG_WAIT
from workspaces.lifecycle.attempt_states import find_ready
from workspaces.models import Attempt, BuildJob, RuntimeInstance

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def run_queue(settings: Settings, instance_id: str) -> Iterator[None]:
    """Give the test a run queue of its own, and end what its execs have begun."""
    settings.WORKSPACE_RUN_QUEUE = f"runs-{instance_id}-{uuid.uuid4().hex[:8]}"
    topology = RUN_REQUESTED.topology()
    yield
    stop_listening()
    queues.purge_and_delete(settings.RABBITMQ_URL, topology, timeout=LONG_WAIT)


@pytest.fixture
def attempt() -> Attempt:
    return ready_attempt()


@pytest.fixture
def path(attempt: Attempt) -> str:
    return f"/v1/workspaces/{attempt.workspace_id}/exec"


def one_shot() -> list[Run]:
    """The runs of execs, oldest first."""
    return list(Run.objects.filter(mode=Run.Mode.ONE_SHOT).order_by("pk"))


@contextmanager
def asked(path: str, body: Any, **options: Any) -> Iterator[Any]:
    """Ask for an exec on a thread of its own; yields what its answer will be in."""

    def ask() -> Answer:
        try:
            return Api().request("POST", path, body, **options)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(ask)


def answer_to(path: str, body: Any, write: Any) -> Answer:
    """Ask for an exec, have its record written, and return the answer."""
    with asked(path, body) as future:
        eventually(one_shot, what="its run is there")
        write(one_shot()[0])
        answer: Answer = future.result(LONG_WAIT)
    return answer


def test_the_answer_has_the_output_and_the_exit_code(path: str) -> None:
    def write(run: Run) -> None:
        source = Source(run)
        source.open()
        source.started()
        process = source.process()
        source.output(process, b"to be ")
        source.output(process, b"worried\n", stream=3)
        source.output(process, b"read\n")
        source.exited(process, code=3)
        source.sealed(code=3)
        source.append()

    answer = answer_to(path, {"command": ["true"]}, write)

    (run,) = one_shot()
    assert answer.status == 200
    assert answer.body == {
        "runId": str(run.pk),
        "workspaceId": str(run.workspace_id),
        "status": "failed",
        "exitCode": 3,
        "errorCode": "run-exited",
        "errorMessage": "The command exited with 3.",
        "stdout": "to be read\n",
        "stderr": "worried\n",
        "truncated": False,
    }


@pytest.mark.parametrize("written", [0, 6], ids=["without output", "with output"])
def test_nothing_is_asked_of_a_row_whose_end_was_announced(attempt: Attempt, written: int) -> None:
    run = make_executable(attempt=attempt)
    with closing(Ending(run)) as first:
        assert first._told.wait(LONG_WAIT), "from here on announcements are heard"
    ending = Ending(run)
    source = Source(run)
    source.open()
    source.started()
    process = source.process()
    source.output(process, b"x" * written)
    source.exited(process, code=3)
    source.sealed(code=3)
    with closing(ending), ThreadPoolExecutor(1) as pool:
        appended = pool.submit(_append, source)
        with sent_statements() as sent:
            assert ending.wait(LONG_WAIT)
        appended.result(LONG_WAIT)

    assert sent == []
    assert ending.wrote_nothing == (not written)
    stored = Run.objects.get(pk=run.pk)
    shown = answer_of(run, wrote_nothing=ending.wrote_nothing)
    assert shown == answer_of(stored)
    assert (shown["status"], shown["exit_code"]) == ("failed", 3)


def _append(source: Source) -> None:
    try:
        source.append()
    finally:
        connections.close_all()


def test_bytes_that_are_no_text_come_as_bytes_too(path: str) -> None:
    answer = answer_to(path, {"command": ["true"]}, lambda run: record(run, [b"\xff\x00ok"]))
    assert answer.body["stdout"] == "\ufffd\x00ok"
    assert base64.b64decode(answer.body["stdoutBase64"]) == b"\xff\x00ok"
    assert "stderrBase64" not in answer.body


@pytest.mark.parametrize(("more", "truncated"), [(-1, False), (0, False), (1, True)])
def test_an_output_is_cut_at_its_limit_and_that_is_told(
    path: str, more: int, truncated: bool
) -> None:
    size = OUTPUT_BYTES + more
    whole = bytes(number % 251 for number in range(size))
    pieces = [whole[at : at + 32_768] for at in range(0, size, 32_768)]
    answer = answer_to(path, {"command": ["true"]}, lambda run: record(run, pieces))
    assert base64.b64decode(answer.body["stdoutBase64"]) == whole[:OUTPUT_BYTES]
    assert answer.body["truncated"] is truncated


def test_output_that_the_record_lacks_is_told(path: str) -> None:
    def write(run: Run) -> None:
        source = Source(run)
        source.open()
        source.started()
        process = source.process()
        source.output(process, b"a")
        source.output(process, b"c", offset=2)
        source.exited(process)
        source.sealed()
        source.append()

    answer = answer_to(path, {"command": ["true"]}, write)
    assert (answer.body["stdout"], answer.body["truncated"]) == ("ac", True)


def test_text_is_what_bash_executes_and_a_list_is_left_alone(api: Api, path: str) -> None:
    api.post(path, {"command": "echo $HOME", "background": True}, expect=202)
    api.post(path, {"command": ["echo", "$HOME", ""], "background": True}, expect=202)
    commands = [run.command or {} for run in one_shot()]
    assert [[command["executable"], *command["args"]] for command in commands] == [
        ["bash", "-lc", "--", "echo $HOME"],
        ["echo", "$HOME", ""],
    ]


def test_everything_that_is_asked_for_reaches_the_agent(api: Api, path: str) -> None:
    body = {
        "command": ["cat"],
        "cwd": "/tmp",
        "env": {"A": " b "},
        "stdinBase64": base64.b64encode(b"\x00\xff").decode(),
        "timeLimitMs": 1500,
        "background": True,
    }
    answer = api.post(path, body, expect=202)
    (run,) = one_shot()
    spec = exec_spec(run, record_limits())
    assert answer.headers["location"] == f"/v1/runs/{run.pk}"
    assert answer.body["runId"] == str(run.pk)
    assert (spec["argv"], spec["cwd"], spec["env"]) == (["cat"], "/tmp", {"A": " b "})
    assert base64.b64decode(spec["stdin"]) == b"\x00\xff"
    assert spec["timeSeconds"] == 1.5
    assert spec["record"]["files"] is False


def test_changes_are_compared_when_they_are_asked_for(api: Api, path: str) -> None:
    api.post(path, {"command": ["true"], "changes": True, "background": True}, expect=202)
    assert exec_spec(one_shot()[0], record_limits())["record"]["files"] is True


def test_a_command_that_takes_long_has_the_same_answer(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execs, "SOON_SECONDS", 0.01)
    whole = bytes(range(256)) * 2048
    answer = answer_to(path, {"command": ["true"]}, lambda run: record(run, [whole], code=2))
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert (answer.body["status"], answer.body["exitCode"]) == ("failed", 2)
    assert base64.b64decode(answer.body["stdoutBase64"]) == whole


def test_an_exec_can_be_followed_from_its_beginning(path: str) -> None:
    accept = {"accept": "text/event-stream"}
    with asked(path, {"command": ["true"]}, headers=accept) as future:
        eventually(one_shot, what="its run is there")
        run = one_shot()[0]
        record(run, [b"seen"])
        answer = future.result(LONG_WAIT)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["location"] == f"/v1/runs/{run.pk}"
    assert b"recordStarted" in answer.content
    assert base64.b64encode(b"seen") in answer.content
    assert b"event: end" in answer.content


def test_a_key_executes_once_and_its_repetition_has_the_same_answer(path: str) -> None:
    options = {"headers": {"idempotency-key": "k"}}
    body = {"command": ["true"]}
    with asked(path, body, **options) as first, asked(path, body, **options) as second:
        eventually(one_shot, what="its run is there")
        record(one_shot()[0])
        answers = [first.result(LONG_WAIT), second.result(LONG_WAIT)]
    late = Api().post(path, body, **options, expect=200)

    assert len(one_shot()) == 1
    assert answers[0].body == answers[1].body == late.body
    assert late.headers["idempotency-replayed"] == "true"
    assert sum("idempotency-replayed" in answer.headers for answer in answers) == 1


def test_a_repetition_says_that_the_record_was_removed_and_claims_no_empty_output(
    api: Api, path: str
) -> None:
    options = {"headers": {"idempotency-key": "k"}}
    body = {"command": ["true"]}
    with asked(path, body, **options) as first:
        eventually(one_shot, what="its run is there")
        run = one_shot()[0]
        record(run)
        assert first.result(LONG_WAIT).body["stdout"] == "hello\n"
    assert prune([run.number]).runs == 1
    answer = api.post(path, body, **options, expect=410)
    assert (answer.body["code"], "removedAt" in answer.body) == ("record-removed", True)
    assert one_shot() == [run]


def test_a_key_of_another_request_is_refused(api: Api, path: str) -> None:
    options = {"headers": {"idempotency-key": "k"}}
    api.post(path, {"command": ["true"], "background": True}, **options, expect=202)
    answer = api.post(path, {"command": ["false"], "background": True}, **options, expect=409)
    assert answer.body["code"] == "idempotency-key-reused"
    assert len(one_shot()) == 1


def test_an_exec_is_answered_when_no_thread_may_wait_for_it(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = threading.BoundedSemaphore(1)
    nobody.acquire()
    monkeypatch.setattr(execs, "_places", nobody)
    answer = answer_to(path, {"command": ["true"]}, record)
    assert (answer.status, answer.body["stdout"]) == (200, "hello\n")


def test_a_workspace_that_is_not_there_or_foreign_is_not_found(
    api: Api, path: str, attempt: Attempt
) -> None:
    body = {"command": ["true"], "background": True}
    unknown = f"/v1/workspaces/{uuid.uuid4()}/exec"
    foreign = {**body, "ownerUserId": "usr_other"}
    assert api.post(unknown, body, expect=404).body["code"] == "workspace-not-found"
    assert api.post(path, foreign, expect=404).body["code"] == "workspace-not-found"
    api.post(path, {**body, "ownerUserId": OWNER}, expect=202)


def test_an_owner_has_to_be_named_where_that_is_required(
    api: Api, path: str, settings: Settings
) -> None:
    settings.SVC_REQUIRE_OWNER = True
    answer = api.post(path, {"command": ["true"]}, expect=400)
    assert answer.codes == {"/ownerUserId": "required"}


@pytest.mark.parametrize("missing", ["job", "runtime", "row"])
def test_an_exec_needs_all_of_a_ready_workspace(
    api: Api, attempt: Attempt, path: str, missing: str
) -> None:
    assert find_ready(attempt.workspace_id, owner_user_id=OWNER) == attempt
    runtimes = RuntimeInstance.objects.filter(attempt=attempt)
    if missing == "job":
        BuildJob.objects.filter(attempt=attempt).update(
            status=BuildJob.Status.QUEUED, finished_at=None
        )
    elif missing == "runtime":
        runtimes.update(status=RuntimeInstance.Status.STOPPING)
    else:
        runtimes.delete()
    assert find_ready(attempt.workspace_id, owner_user_id=OWNER) is None
    answer = api.post(path, {"command": ["true"]}, expect=409)
    assert answer.body["code"] == "workspace-not-ready"
    assert not one_shot()


def test_only_the_latest_attempt_of_an_owner_s_workspace_can_be_entered(attempt: Attempt) -> None:
    assert find_ready(attempt.workspace_id, owner_user_id="usr_another") is None
    assert find_ready(uuid.uuid4(), owner_user_id=None) is None
    Attempt.objects.create(
        sandbox_id=attempt.sandbox_id, workspace_id=attempt.workspace_id, spec=attempt.spec
    )
    assert find_ready(attempt.workspace_id, owner_user_id=OWNER) is None


def test_a_workspace_that_is_not_ready_says_why(api: Api) -> None:
    stopped = ready_attempt()
    stopped.runtime.status = "stopped"
    stopped.runtime.save()
    path = f"/v1/workspaces/{stopped.workspace_id}/exec"
    answer = api.post(path, {"command": ["true"]}, expect=409)
    assert answer.body["code"] == "workspace-not-ready"
    assert answer.body["reason"]["code"]
    assert one_shot() == []


@pytest.mark.parametrize(
    ("body", "codes"),
    [
        ({}, {"/command": "required"}),
        ({"command": ""}, {"/command": "blank"}),
        ({"command": []}, {"/command": "empty"}),
        ({"command": [""]}, {"/command/0": "blank"}),
        ({"command": ["a", 1]}, {"/command/1": "wrong-type"}),
        ({"command": 5}, {"/command": "wrong-type"}),
        ({"command": "a\x00b"}, {"/command": "invalid-character"}),
        ({"command": "a", "stdinBase64": "?"}, {"/stdinBase64": "not-base64"}),
        ({"command": "a", "stdin": "a", "stdinBase64": ""}, {"/stdinBase64": "conflicting"}),
        ({"command": "a", "timeLimitMs": 0}, {"/timeLimitMs": "min-value"}),
        ({"command": "a", "env": {"1": "x"}}, None),
        ({"command": "a", "detach": True}, {"/detach": "unknown-member"}),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_place(
    api: Api, path: str, body: Any, codes: dict[str, str] | None
) -> None:
    answer = api.post(path, body, expect=400)
    if codes is not None:
        assert answer.codes == codes
    assert one_shot() == []


# ---------------------------------------------------------------- input


def opened(api: Api, path: str, **members: Any) -> Run:
    """Ask for a command whose input stays open; return its run."""
    body = {"command": ["cat"], "background": True, "openStdin": True, **members}
    return Run.objects.get(pk=api.post(path, body, expect=202).body["runId"])


def waiting(run: Run) -> list[tuple[str, bytes]]:
    """What waits for the program of a run: kinds, and bytes."""
    items = waiting_input(run).items
    return [(item["kind"], base64.b64decode(item.get("data", ""))) for item in items]


def test_input_is_kept_in_its_order_and_bytes_are_taken_once(api: Api, path: str) -> None:
    run = opened(api, path, stdin="ab")
    give = f"/v1/runs/{run.pk}/input"
    first = api.post(give, {"stdin": "cd", "offset": 2, "ownerUserId": OWNER})
    assert first.body == {"offset": 4, "ended": False}
    assert first.headers["Location"] == f"/v1/runs/{run.pk}"
    assert api.post(give, {"stdin": "bcde", "offset": 1}).body == {"offset": 5, "ended": False}
    assert api.post(give, {"stdin": "f"}).body == {"offset": 6, "ended": False}
    assert api.post(give, {"stdin": "ef", "offset": 4, "end": True}).body["ended"]
    assert api.post(give, {"stdin": "ef", "offset": 4, "end": True}).body["ended"]
    kept = [("bytes", b"cd"), ("bytes", b"e"), ("bytes", b"f"), ("end", b"")]
    assert waiting(run) == kept
    handed_over(run, 2)
    assert waiting(run) == kept[2:]


def test_two_clients_at_once_double_nothing_and_lose_nothing(api: Api, path: str) -> None:
    run = opened(api, path)
    content = bytes(range(256)) * 8

    def send(_: int) -> None:
        try:
            for at in range(0, len(content), 256):
                piece = base64.b64encode(content[at : at + 300]).decode()
                body = {"stdinBase64": piece, "offset": at}
                Api().post(f"/v1/runs/{run.pk}/input", body, expect=202)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(send, range(4)))
    assert b"".join(data for _, data in waiting(run)) == content


def test_signals_and_the_size_overtake_bytes_that_are_too_much_at_once(api: Api, path: str) -> None:
    run = opened(api, path, terminal={"columns": 80, "rows": 24})
    give = f"/v1/runs/{run.pk}/input"
    piece = "x" * 700_000
    for _ in range(3):
        api.post(give, {"stdin": piece}, expect=202)
    api.post(give, {"resize": {"columns": 100, "rows": 30}, "signal": "INT"}, expect=202)

    next_ones = waiting_input(run)
    assert [item["kind"] for item in next_ones.items] == ["bytes", "resize", "signal"]
    assert next_ones.through == 1
    handed_over(run, next_ones.through)
    assert [kind for kind, _ in waiting(run)] == ["bytes", "resize", "signal"]
    handed_over(run, 3)
    assert waiting(run) == [("resize", b""), ("signal", b"")]


def test_of_sizes_and_of_each_signal_the_last_one_waits(api: Api, path: str) -> None:
    run = opened(api, path, terminal={"columns": 80, "rows": 24})
    give = f"/v1/runs/{run.pk}/input"
    for columns in range(1, 6):
        for signal in ("STOP", "CONT"):
            size = {"columns": columns, "rows": 1}
            api.post(give, {"resize": size, "signal": signal}, expect=202)
    api.post(give, {"signal": "STOP"}, expect=202)

    items = waiting_input(run).items
    kept = [(item["kind"], item.get("signal"), item.get("columns")) for item in items]
    assert kept == [("resize", None, 5), ("signal", "CONT", None), ("signal", "STOP", None)]


def test_input_in_too_many_pieces_waits_no_more_and_a_signal_still_does(
    api: Api, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(later, "WAITING_PIECES", 3)
    run = opened(api, path)
    give = f"/v1/runs/{run.pk}/input"
    for _ in range(3):
        api.post(give, {"stdin": "a"}, expect=202)
    answer = api.post(give, {"stdin": "b"}, expect=503)
    assert (answer.body["code"], answer.headers["retry-after"]) == ("input-full", "1")
    api.post(give, {"signal": "KILL"}, expect=202)
    assert waiting(run) == [("bytes", b"a")] * 3 + [("signal", b"")]


@pytest.mark.parametrize(
    ("members", "body", "code"),
    [
        ({"openStdin": False}, {"stdin": "a"}, "input-not-open"),
        ({}, {"stdin": "a", "offset": 1}, "input-gap"),
        ({}, {"resize": {"columns": 1, "rows": 1}}, "not-a-terminal"),
    ],
)
def test_input_that_has_no_place_is_refused(
    api: Api, path: str, members: Any, body: Any, code: str
) -> None:
    run = opened(api, path, **members)
    answer = api.post(f"/v1/runs/{run.pk}/input", body, expect=409)
    assert answer.body["code"] == code
    assert waiting(run) == []


def test_input_behind_the_end_is_refused(api: Api, path: str) -> None:
    run = opened(api, path)
    api.post(f"/v1/runs/{run.pk}/input", {"stdin": "a", "end": True}, expect=202)
    answer = api.post(f"/v1/runs/{run.pk}/input", {"stdin": "b"}, expect=409)
    assert answer.body["code"] == "input-ended"
    assert waiting(run) == [("bytes", b"a"), ("end", b"")]


def test_a_run_that_has_ended_or_is_foreign_takes_no_input(api: Api, path: str) -> None:
    run = opened(api, path)
    give = f"/v1/runs/{run.pk}/input"
    foreign = api.post(f"{give}?ownerUserId=usr_other", {"signal": "INT"}, expect=404)
    assert foreign.body["code"] == "run-not-found"
    record(run)
    assert api.post(give, {"signal": "INT"}, expect=409).body["code"] == "run-ended"
    assert waiting(run) == []


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"signal": "SIGSEGV"}, "/signal"),
        ({"offset": -1}, "/offset"),
        ({"stdin": "a", "stdinBase64": ""}, "/stdinBase64"),
        ({"resize": {"columns": 0, "rows": 1}}, "/resize/columns"),
    ],
)
def test_input_that_makes_no_sense_is_refused_by_its_place(
    api: Api, path: str, body: Any, place: str
) -> None:
    run = opened(api, path)
    assert list(api.post(f"/v1/runs/{run.pk}/input", body, expect=400).codes) == [place]


@pytest.mark.parametrize(
    "given",
    [
        {"stdin": "a" * (WAITING_BYTES + 1)},
        {"stdinBase64": base64.b64encode(bytes(WAITING_BYTES + 1)).decode()},
    ],
    ids=["text", "bytes"],
)
def test_input_that_could_never_wait_is_refused_for_good(
    api: Api, path: str, settings: Settings, given: dict[str, str]
) -> None:
    settings.SVC_MAX_BODY_BYTES = 2 * WAITING_BYTES
    run = opened(api, path)
    answer = api.post(f"/v1/runs/{run.pk}/input", given, expect=400)
    assert answer.codes == {f"/{name}": "too-long" for name in given}
    assert waiting(run) == []


@pytest.mark.parametrize(
    ("members", "place"),
    [
        ({"openStdin": True}, "/openStdin"),
        ({"terminal": {"columns": 80, "rows": 24}}, "/terminal"),
    ],
)
def test_input_that_nobody_could_give_is_refused(
    api: Api, path: str, members: Any, place: str
) -> None:
    answer = api.post(path, {"command": ["cat"], **members}, expect=400)
    assert answer.codes == {place: "requires-another"}


def test_what_is_left_of_ended_runs_is_forgotten_and_nothing_else(api: Api, path: str) -> None:
    ended, going_on = opened(api, path), opened(api, path)
    for run in (ended, going_on):
        api.post(f"/v1/runs/{run.pk}/input", {"stdin": "a"}, expect=202)
    record(ended)
    assert forget_left_input() == 1
    assert (waiting(ended), waiting(going_on)) == ([], [("bytes", b"a")])
