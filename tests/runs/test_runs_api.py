"""Creating, listing, reading and updating runs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from django.test import TestCase
from pytest_django.fixtures import Settings

from runs.input.sealed import StartInput, open_input
from runs.models import Run, RunHead, RunQuerySet
from runs.run_messages import RUN_REQUESTED
from tests.conftest import OWNER, Api
from tests.factories import make_job
from tests.runs.ready import ready_attempt
from tests.runs.record_factory import Source, make_run, record
from tests.stack.worker_process import eventually
from tests.support import queues
from tests.support.waiting import LONG_WAIT
from workspaces import services as workspaces
from workspaces.harnesses import CLAUDE_CODE, CODEX, OPENCODE
from workspaces.models import Attempt

pytestmark = pytest.mark.django_db

PATH = "/v1/runs"
COMMAND = {"executable": "npm", "args": ["test", "", "a\nb"], "cwd": "web"}


@pytest.fixture(autouse=True)
def run_queue(settings: Settings, instance_id: str) -> Iterator[None]:
    """Give the test a run queue of its own."""
    url = settings.RABBITMQ_URL
    settings.WORKSPACE_RUN_QUEUE = f"runs-{instance_id}-{uuid.uuid4().hex[:8]}"
    topology = RUN_REQUESTED.topology()
    yield
    queues.purge_and_delete(url, topology, timeout=LONG_WAIT)


@pytest.fixture
def attempt() -> Attempt:
    return ready_attempt()


@pytest.fixture
def body(attempt: Attempt) -> dict[str, Any]:
    return {
        "ownerUserId": OWNER,
        "workspaceId": str(attempt.workspace_id),
        "harnessId": "shell",
    }


def made() -> RunQuerySet:
    """The runs that came over the API; attempts have brought their boot runs."""
    return Run.objects.exclude(mode=Run.Mode.BOOT)


def test_a_command_is_kept_in_the_row_and_queued(
    api: Api, body: dict[str, Any], attempt: Attempt, settings: Settings
) -> None:
    answer = api.post(
        PATH,
        {
            **body,
            "command": COMMAND,
            "stdin": "in\n",
            "env": {"A": " b "},
            "timeLimitMs": 1000,
            "prompt": "why",
        },
        expect=201,
    )
    shown = answer.body
    run = made().get()
    assert answer.headers["location"] == f"/v1/runs/{run.pk}"
    assert run.command == COMMAND
    assert open_input(run.sealed_input, run_id=run.pk) == StartInput({"A": " b "}, b"in\n")
    assert (run.recorded, run.attempt_id, run.time_limit_ms) == (True, attempt.pk, 1000)
    assert shown["command"] == COMMAND
    assert shown["prompt"] == "why"
    assert (shown["status"], shown["mode"], shown["recorded"]) == ("queued", "one-shot", True)
    assert "stdin" not in shown
    assert "env" not in shown
    assert RunHead.objects.get(pk=run.number).last_sequence == 0
    assert api.get(answer.headers["location"]).body == shown
    assert _queued(settings) == [run.pk]


def _queued(settings: Settings) -> list[uuid.UUID]:
    connection = pika.BlockingConnection(pika.URLParameters(settings.RABBITMQ_URL))
    found: list[uuid.UUID] = []
    try:
        channel = connection.channel()
        RUN_REQUESTED.topology().declare(channel)
        while True:
            method, _, content = channel.basic_get(settings.WORKSPACE_RUN_QUEUE, auto_ack=True)
            if method is None or content is None:
                return found
            found.append(RUN_REQUESTED.from_bytes(content))
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("harness", "prompt", "argv"),
    [
        ("claude-code", "Fix it.", [*CLAUDE_CODE.one_shot, "Fix it."]),
        ("codex", "Fix it.", [*CODEX.one_shot, "Fix it."]),
        ("opencode", "Fix\nit.", ["opencode", "run", "--auto", "Fix\nit."]),
        ("shell", "echo $HOME", ["bash", "-lc", "echo $HOME"]),
        ("claude-code", "--help", [*CLAUDE_CODE.one_shot, "--", "--help"]),
        ("shell", "-x", ["bash", "-lc", "--", "-x"]),
    ],
)
def test_a_prompt_becomes_the_command_of_its_harness(
    api: Api, body: dict[str, Any], harness: str, prompt: str, argv: list[str]
) -> None:
    shown = api.post(PATH, {**body, "harnessId": harness, "prompt": prompt}, expect=201).body
    assert [shown["command"]["executable"], *shown["command"]["args"]] == argv
    assert shown["recorded"] is True


@pytest.mark.parametrize(
    ("harness", "command"),
    [
        ("claude-code", CLAUDE_CODE.read_only),
        ("codex", CODEX.read_only),
        ("opencode", OPENCODE.read_only),
        ("shell", ("bash", "-lc")),
    ],
)
def test_a_prompt_may_only_read_where_the_blueprint_says_so(
    api: Api, body: dict[str, Any], harness: str, command: tuple[str, ...]
) -> None:
    spec = {"harness": {"id": "codex", "rights": "read-only"}}
    body["workspaceId"] = str(ready_attempt(spec=spec).workspace_id)
    shown = api.post(PATH, {**body, "harnessId": harness, "prompt": "Why?"}, expect=201).body
    assert [shown["command"]["executable"], *shown["command"]["args"]] == [*command, "Why?"]


def test_a_custom_harness_is_the_blueprints(api: Api, body: dict[str, Any]) -> None:
    spec = {"harness": {"id": "custom", "command": ["agent", "--once"]}}
    body["workspaceId"] = str(ready_attempt(spec=spec).workspace_id)
    shown = api.post(PATH, {**body, "harnessId": "custom", "prompt": "-x"}, expect=201).body
    assert shown["command"] == {"executable": "agent", "args": ["--once", "-x"]}


@pytest.mark.parametrize("harness", ["custom", "claude", "ssh"])
def test_a_prompt_for_a_harness_that_is_not_there_is_refused(
    api: Api, body: dict[str, Any], harness: str
) -> None:
    answer = api.post(PATH, {**body, "harnessId": harness, "prompt": "x"}, expect=400)
    assert answer.codes == {"/harnessId": "not-allowed"}
    if harness != "custom":
        (fault,) = answer.body["errors"]
        for known in ("opencode", "codex", "claude-code", "shell", "custom"):
            assert known in fault["detail"]
    assert not made().exists()


def test_a_name_that_is_not_built_in_means_the_harness_of_the_blueprint(
    api: Api, body: dict[str, Any]
) -> None:
    spec = {"harness": {"id": "custom", "command": ["agent", "--once"]}}
    body["workspaceId"] = str(ready_attempt(spec=spec).workspace_id)
    shown = api.post(PATH, {**body, "harnessId": "aider", "prompt": "x"}, expect=201).body
    assert shown["command"] == {"executable": "agent", "args": ["--once", "x"]}
    assert (shown["harnessId"], shown["prompt"]) == ("aider", "x")


def test_a_command_explains_a_prompt_for_a_harness_of_any_name(
    api: Api, body: dict[str, Any]
) -> None:
    command = {"executable": "aider", "args": ["--message", "x"]}
    told = {**body, "harnessId": "aider", "prompt": "x", "command": command}
    shown = api.post(PATH, told, expect=201).body
    assert (shown["command"], shown["prompt"]) == (command, "x")


def test_a_run_without_anything_to_execute_is_its_clients(
    api: Api, body: dict[str, Any], settings: Settings
) -> None:
    body["workspaceId"] = str(make_job().attempt.workspace_id)  # it need not be ready
    shown = api.post(PATH, {**body, "harnessId": "anything"}, expect=201).body
    assert (shown["recorded"], shown["status"]) == (False, "queued")
    assert not RunHead.objects.filter(run_number=made().get().number).exists()
    answer = api.post(PATH, {**body, "stdin": "", "env": {}, "timeLimitMs": 1}, expect=400)
    assert answer.codes == dict.fromkeys(["/stdin", "/env", "/timeLimitMs"], "not-executed")


def test_a_session_is_recorded_when_the_gateway_opens_it(
    api: Api, body: dict[str, Any], settings: Settings
) -> None:
    settings.WORKSPACE_SSH_GATEWAY_TOKEN = "secret"
    body["mode"] = "interactive"
    assert api.post(PATH, body, expect=201).body["recorded"] is False
    token = {"x-svc-gateway-token": "secret"}
    shown = api.post(PATH, body, expect=201, headers=token).body
    assert shown["recorded"] is True
    assert shown["attemptId"]
    path = f"{PATH}/{shown['runId']}"
    assert api.patch(path, {"status": "running"}, expect=409).body["code"] == "run-transition"
    running = api.patch(path, {"status": "running"}, headers=token).body
    assert running["status"] == "running"
    assert running["startedAt"]
    api.patch(path, {"status": "running"}, headers=token, expect=409)


@pytest.fixture
def begun(api: Api, body: dict[str, Any], settings: Settings) -> Callable[[], dict[str, Any]]:
    """Begin a session as the gateway does, to the end of the transaction; return the run."""
    settings.WORKSPACE_SSH_GATEWAY_TOKEN = "secret"
    token = {"x-svc-gateway-token": "secret"}

    def begin() -> dict[str, Any]:
        shown = api.post(PATH, {**body, "mode": "interactive"}, expect=201, headers=token).body
        with TestCase.captureOnCommitCallbacks(execute=True):
            running = {"ownerUserId": OWNER, "status": "running"}
            changed: dict[str, Any] = api.patch(
                f"{PATH}/{shown['runId']}", running, headers=token
            ).body
        return changed

    return begin


def test_how_a_recorded_session_ended_is_not_for_the_gateway_to_say(
    api: Api, begun: Callable[[], dict[str, Any]]
) -> None:
    path = f"{PATH}/{begun()['runId']}"
    token = {"x-svc-gateway-token": "secret"}
    for status in ("completed", "failed"):
        answer = api.patch(path, {"status": status}, headers=token, expect=409)
        assert answer.body["code"] == "run-transition"


def test_a_session_that_is_not_to_be_recorded_is_what_the_gateway_reports(
    api: Api, body: dict[str, Any]
) -> None:
    session = {**body, "harnessId": "ssh", "mode": "interactive"}
    path = api.post(PATH, session, expect=201).headers["location"]
    owner = {"ownerUserId": OWNER}
    foreign = {"ownerUserId": "usr_other", "status": "running"}
    assert api.patch(path, foreign, expect=404).body["code"] == "run-not-found"
    assert api.patch(path, {**owner, "status": "running"}).body["status"] == "running"
    ended = api.patch(path, {**owner, "status": "completed", "exitCode": 3}).body
    assert (ended["status"], ended["exitCode"], ended["recorded"]) == ("completed", 3, False)


def test_a_session_needs_a_workspace_of_its_owner_that_is_ready(
    api: Api, body: dict[str, Any], settings: Settings
) -> None:
    settings.WORKSPACE_SSH_GATEWAY_TOKEN = "secret"
    token = {"x-svc-gateway-token": "secret"}
    session = {**body, "harnessId": "ssh", "mode": "interactive"}
    foreign = api.post(PATH, {**session, "ownerUserId": "usr_other"}, headers=token, expect=404)
    assert foreign.body["code"] == "workspace-not-found"
    session["workspaceId"] = str(make_job().attempt.workspace_id)
    answer = api.post(PATH, session, headers=token, expect=409)
    assert answer.body["code"] == "workspace-not-ready"
    assert answer.body["detail"].startswith("The workspace is not ready: The build job is waiting")
    assert not made().exists()


def test_the_workers_are_told_of_a_session_that_begins(
    begun: Callable[[], dict[str, Any]], settings: Settings
) -> None:
    assert _queued(settings) == []  # a quorum queue that another one is just making ends readers
    run_id = uuid.UUID(begun()["runId"])
    eventually(lambda: _queued(settings) == [run_id], what="it is told")


@pytest.mark.usefixtures("unreachable_broker")
def test_a_session_begins_without_a_broker(begun: Callable[[], dict[str, Any]]) -> None:
    assert begun()["status"] == "running"


def test_the_gateways_token_is_looked_at_before_the_body(api: Api, settings: Settings) -> None:
    run = make_run()
    for method, path in (("POST", PATH), ("PATCH", f"{PATH}/{run.pk}")):
        headers = {"x-svc-gateway-token": "wrong"}
        settings.WORKSPACE_SSH_GATEWAY_TOKEN = "secret"
        answer = api.request(method, path, [], headers=headers, expect=401)
        assert answer.body["code"] == "gateway-token-invalid"
        settings.WORKSPACE_SSH_GATEWAY_TOKEN = ""
        answer = api.request(method, path, [], headers=headers, expect=503)
        assert answer.body["code"] == "gateway-token-unset"
        answer = api.request(method, path, [], headers={"x-svc-gateway-token": ""}, expect=503)


def test_a_foreign_workspace_is_as_absent_as_an_unknown_one(api: Api, body: dict[str, Any]) -> None:
    for change in ({"ownerUserId": "usr_other"}, {"workspaceId": str(uuid.uuid4())}):
        answer = api.post(PATH, {**body, **change, "command": COMMAND}, expect=404)
        assert answer.body["code"] == "workspace-not-found"


def test_an_attempt_belongs_to_the_workspace(
    api: Api, body: dict[str, Any], attempt: Attempt
) -> None:
    body["attemptId"] = str(make_job().attempt_id)
    assert api.post(PATH, body, expect=404).body["code"] == "attempt-not-found"
    body["attemptId"] = str(attempt.pk)
    assert api.post(PATH, body, expect=201).body["attemptId"] == str(attempt.pk)


def test_a_workspace_that_is_not_ready_executes_nothing_and_says_why(
    api: Api, body: dict[str, Any]
) -> None:
    body["workspaceId"] = str(make_job().attempt.workspace_id)
    answer = api.post(PATH, {**body, "command": COMMAND}, expect=409)
    assert answer.body["code"] == "workspace-not-ready"
    assert answer.body["reason"]["code"] == "no-worker"
    assert answer.body["reason"]["since"].endswith("Z")
    bare = workspaces.create_workspace(owner_user_id=OWNER, name="Bare")
    body["workspaceId"] = str(bare.pk)
    answer = api.post(PATH, {**body, "command": COMMAND}, expect=409)
    assert answer.body["code"] == "workspace-not-ready"
    assert not made().exists()


@pytest.mark.usefixtures("unreachable_broker")
def test_a_run_whose_message_cannot_be_published_has_failed(api: Api, body: dict[str, Any]) -> None:
    answer = api.post(PATH, {**body, "command": COMMAND}, expect=502)
    assert answer.body["code"] == "queue-publish-failed"
    shown = api.get(f"{PATH}/{answer.body['runId']}").body
    assert (shown["status"], shown["errorCode"]) == ("failed", "queue-publish-failed")
    loss = api.get(f"{PATH}/{answer.body['runId']}/loss").body
    assert (loss["complete"], loss["spans"]) == (True, [])


def test_every_fault_of_a_request_is_told_at_once(api: Api) -> None:
    answer = api.post(
        PATH,
        {
            "workspaceId": "x",
            "harnessId": " ",
            "mode": "boot",
            "promt": "x",
            "attemptId": 5,
            "command": {"executable": "", "args": [1, "a"], "cwd": "\u0007", "shell": True},
            "stdin": 5,
            "env": {"SVC_X": "a", "B": 1, "a/b": "c"},
            "timeLimitMs": 1.5,
        },
        expect=400,
    )
    assert answer.codes == {
        "/ownerUserId": "required",
        "/workspaceId": "invalid",
        "/harnessId": "blank",
        "/mode": "invalid-choice",
        "/promt": "unknown-member",
        "/attemptId": "invalid",
        "/command/executable": "blank",
        "/command/args/0": "wrong-type",
        "/command/cwd": "control-character",
        "/command/shell": "unknown-member",
        "/stdin": "wrong-type",
        "/env/SVC_X": "reserved-name",
        "/env/B": "wrong-type",
        "/env/a~1b": "malformed",
        "/timeLimitMs": "wrong-type",
    }


@pytest.mark.parametrize(
    ("change", "pointer", "code"),
    [
        ({"timeLimitMs": 0}, "/timeLimitMs", "min-value"),
        ({"timeLimitMs": 86_400_001}, "/timeLimitMs", "above-ceiling"),
        ({"timeLimitMs": True}, "/timeLimitMs", "wrong-type"),
        ({"timeLimitMs": "5"}, "/timeLimitMs", "wrong-type"),
        ({"prompt": ""}, "/prompt", "blank"),
        ({"prompt": "é" * 65_536}, "/prompt", "too-long"),
        ({"stdin": "x" * 524_289}, "/stdin", "too-long"),
        ({"command": {"executable": "x", "args": ["a"] * 4_097}}, "/command/args", "max-length"),
        ({"command": {"args": []}}, "/command/executable", "required"),
        ({"command": []}, "/command", "wrong-type"),
        ({"env": []}, "/env", "wrong-type"),
        ({"env": {"A": "x" * 4_097}}, "/env/A", "too-long"),
        ({"env": {f"A{n}": "" for n in range(129)}}, "/env", "too-many"),
    ],
)
def test_limits_are_held(
    api: Api, body: dict[str, Any], change: dict[str, Any], pointer: str, code: str
) -> None:
    answer = api.post(PATH, {**body, "command": COMMAND, **change}, expect=400)
    assert answer.codes == {pointer: code}


def test_runs_are_listed_newest_first_in_pages(api: Api) -> None:
    runs = [make_run() for _ in range(5)]
    other = make_run(owner_user_id="usr_other")
    found, query = [], f"?ownerUserId={OWNER}&limit=2"
    while True:
        page = api.get(f"{PATH}{query}").body
        found += [item["runId"] for item in page["items"]]
        if "nextCursor" not in page:
            break
        query = f"?ownerUserId={OWNER}&limit=2&cursor={page['nextCursor']}"
    assert found == [str(run.pk) for run in reversed(runs)]
    (item,) = api.get(f"{PATH}?userId=usr_other").body["items"]
    assert item["runId"] == str(other.pk)


def test_lists_can_be_narrowed(api: Api) -> None:
    done, open_ = make_run(), make_run()
    record(done)
    assert _listed(api, "status=completed") == [str(done.pk)]
    assert _listed(api, f"workspaceId={open_.workspace_id}") == [str(open_.pk)]
    assert _listed(api, f"workspaceId={open_.workspace_id}&status=completed") == []
    assert _listed(api, f"workspaceId={uuid.uuid4()}") == []


def test_boot_runs_are_listed_only_when_their_mode_is_asked_for(api: Api) -> None:
    attempt = make_job().attempt
    one_shot = make_run(workspace=attempt.workspace)
    session = make_run(mode=Run.Mode.INTERACTIVE, workspace=attempt.workspace)
    boot, workspace = str(attempt.run_id), f"&workspaceId={attempt.workspace_id}"
    assert _listed(api, "limit=200") == [str(session.pk), str(one_shot.pk)]
    assert _listed(api, workspace) == [str(session.pk), str(one_shot.pk)]
    for narrowed in ("", workspace, "&status=queued"):
        assert _listed(api, f"mode=boot{narrowed}") == [boot]
    assert _listed(api, "mode=interactive") == [str(session.pk)]
    assert _listed(api, f"mode=one-shot{workspace}") == [str(one_shot.pk)]


def _listed(api: Api, query: str) -> list[str]:
    items = api.get(f"{PATH}?ownerUserId={OWNER}&{query}").body["items"]
    return [item["runId"] for item in items]


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("", "ownerUserId"),
        (f"ownerUserId={OWNER}&limit=0", "limit"),
        (f"ownerUserId={OWNER}&limit=201", "limit"),
        (f"ownerUserId={OWNER}&status=done", "status"),
        (f"ownerUserId={OWNER}&workspaceId=x", "workspaceId"),
        (f"ownerUserId={OWNER}&cursor=!", "cursor"),
        (f"ownerUserId={OWNER}&mode=batch", "mode"),
    ],
)
def test_a_wrong_list_parameter_is_named(api: Api, query: str, parameter: str) -> None:
    assert set(api.get(f"{PATH}?{query}", expect=400).codes) == {parameter}


def test_a_boot_run_can_be_read_and_not_changed(api: Api) -> None:
    attempt = make_job().attempt
    path = f"{PATH}/{attempt.run_id}"
    shown = api.get(path).body
    assert (shown["mode"], shown["harnessId"], shown["recorded"]) == ("boot", "shell", True)
    assert shown["attemptId"] == str(attempt.pk)
    for status in ("running", "cancelled", "completed"):
        answer = api.patch(path, {"status": status}, expect=409)
        assert answer.body["code"] == "run-transition"
    assert api.get(f"{path}/timeline").body == {"items": []}


READS = ["", "/timeline", "/events/1", "/scrollback?stream=stdout", "/loss", "/changes",
         "/export?format=text"]  # fmt: skip


@pytest.mark.parametrize("read", READS)
def test_a_foreign_run_is_as_absent_as_an_unknown_one(api: Api, read: str) -> None:
    run = make_run()
    record(run)
    join = "&" if "?" in read else "?"
    api.get(f"{PATH}/{run.pk}{read}{join}ownerUserId={OWNER}")
    foreign = api.get(f"{PATH}/{run.pk}{read}{join}userId=usr_other", expect=404)
    unknown = api.get(f"{PATH}/{uuid.uuid4()}{read}", expect=404)
    assert foreign.body["code"] == unknown.body["code"] == "run-not-found"
    assert foreign.body["detail"] == unknown.body["detail"]
    api.get(f"{PATH}/nonsense{read}", expect=404)
    api.get(f"{PATH}/{str(run.pk).upper()}{read}", expect=404)


def test_a_client_reports_of_a_run_that_is_not_recorded(api: Api, body: dict[str, Any]) -> None:
    path = api.post(PATH, body, expect=201).headers["location"]
    assert api.patch(path, {"status": "running"}).body["startedAt"]
    done = {
        "status": "failed",
        "exitCode": -(2**31),
        "errorMessage": "two\nlines",
        "diff": "--- a\n+++ b\n",
        "changedFiles": [
            {"path": "b c", "change": "renamed", "oldPath": "a"},
            {"path": "é", "change": "added"},
        ],
    }
    shown = api.patch(path, done).body
    assert (shown["status"], shown["exitCode"]) == ("failed", -(2**31))
    assert shown["errorMessage"] == "two\nlines"
    assert shown["finishedAt"]
    changes = api.get(f"{path}/changes").body
    assert changes["diff"] == done["diff"]
    assert [(f["path"], f["change"], f.get("oldPath")) for f in changes["files"]] == [
        ("b c", "renamed", "a"), ("é", "added", None)
    ]  # fmt: skip
    loss = api.get(f"{path}/loss").body
    assert (loss["complete"], loss["coverage"]) == (False, {})
    assert api.get(f"{path}/timeline").body == {"items": []}
    assert api.get(f"{path}/export?format=ndjson", expect=404).body["code"] == "record-not-found"


GRAPH = {
    "queued": {"running", "failed", "cancelled"},
    "running": {"completed", "failed", "cancelled"},
    "completed": set(),
    "failed": set(),
    "cancelled": set(),
}


@pytest.mark.parametrize("source", GRAPH)
@pytest.mark.parametrize("target", GRAPH)
def test_only_the_graphs_transitions_are_made(
    api: Api, body: dict[str, Any], source: str, target: str
) -> None:
    path = api.post(PATH, body, expect=201).headers["location"]
    for step in {"queued": [], "running": ["running"]}.get(source, ["running", source]):
        before = api.patch(path, {"status": step}).body
    before = api.get(path).body
    if target in GRAPH[source]:
        assert api.patch(path, {"status": target}).body["status"] == target
    else:
        answer = api.patch(path, {"status": target}, expect=409)
        assert answer.body["code"] == "run-transition"
        assert api.get(path).body == before


def test_completed_without_an_exit_code_means_zero(api: Api, body: dict[str, Any]) -> None:
    path = api.post(PATH, body, expect=201).headers["location"]
    api.patch(path, {"status": "running"})
    assert api.patch(path, {"status": "completed"}).body["exitCode"] == 0


@pytest.mark.parametrize(
    ("change", "codes"),
    [
        ({}, {"/status": "required"}),
        ({"status": "done"}, {"/status": "invalid-choice"}),
        ({"status": "failed", "exitCode": 2**31}, {"/exitCode": "max-value"}),
        ({"status": "failed", "exitCode": -(2**31) - 1}, {"/exitCode": "min-value"}),
        ({"status": "failed", "exitCode": 1.5}, {"/exitCode": "wrong-type"}),
        ({"status": "failed", "exitCode": True}, {"/exitCode": "wrong-type"}),
        ({"status": "failed", "errorMessage": "x" * 16_385}, {"/errorMessage": "too-long"}),
        ({"status": "failed", "changedFiles": {}}, {"/changedFiles": "not-a-list"}),
        (
            {"status": "failed", "changedFiles": [{"path": "", "change": "x", "old": 1}]},
            {
                "/changedFiles/0/path": "blank",
                "/changedFiles/0/change": "invalid-choice",
                "/changedFiles/0/old": "unknown-member",
            },
        ),
        ({"status": "running", "exitCode": 1}, {"/exitCode": "not-ended"}),
    ],
)
def test_a_wrong_report_is_refused(
    api: Api, body: dict[str, Any], change: dict[str, Any], codes: dict[str, str]
) -> None:
    path = api.post(PATH, body, expect=201).headers["location"]
    assert api.patch(path, change, expect=400).codes == codes
    assert api.get(path).body["status"] == "queued"


NOTHING_REPORTED = dict.fromkeys(["exitCode", "errorMessage", "diff", "changedFiles"])


def test_a_run_begins_although_its_report_has_members_that_are_null(
    api: Api, body: dict[str, Any]
) -> None:
    path = api.post(PATH, body, expect=201).headers["location"]
    shown = api.patch(path, {"status": "running", **NOTHING_REPORTED}).body
    assert shown["status"] == "running"


def test_a_recorded_run_is_cancelled_although_a_report_has_members_that_are_null(
    api: Api,
) -> None:
    run = make_run(status=Run.Status.QUEUED)
    shown = api.patch(f"{PATH}/{run.pk}", {"status": "cancelled", **NOTHING_REPORTED}).body
    assert shown["status"] == "cancelled"


def test_a_queued_run_is_cancelled_at_once_and_its_record_ends(
    api: Api, body: dict[str, Any]
) -> None:
    path = api.post(PATH, {**body, "command": COMMAND}, expect=201).headers["location"]
    shown = api.patch(path, {"status": "cancelled"}).body
    assert shown["status"] == "cancelled"
    (sealed,) = api.get(f"{path}/timeline").body["items"]
    assert sealed["kind"] == "recordSealed"
    assert api.get(f"{path}/loss").body["complete"] is True
    api.patch(path, {"status": "cancelled"}, expect=409)


def test_a_running_run_is_asked_to_end_and_its_record_decides(api: Api) -> None:
    run = make_run()
    path = f"{PATH}/{run.pk}"
    shown = api.patch(path, {"status": "cancelled"}).body
    assert shown["status"] == "running"
    assert shown["cancelRequestedAt"]
    again = api.patch(path, {"status": "cancelled"}).body
    assert again["cancelRequestedAt"] == shown["cancelRequestedAt"]
    source = Source(run)
    source.open()
    source.sealed(code=None, signal="SIGTERM", reason="cancelled")
    source.append()
    shown = api.get(path).body
    assert (shown["status"], shown["exitSignal"]) == ("cancelled", "SIGTERM")
    api.patch(path, {"status": "cancelled"}, expect=409)


@pytest.mark.parametrize("status", ["queued", "running", "completed", "failed"])
def test_of_a_recorded_run_only_the_record_tells(api: Api, status: str) -> None:
    run = make_run(status=Run.Status.QUEUED)
    path = f"{PATH}/{run.pk}"
    assert api.patch(path, {"status": status}, expect=409).body["code"] == "run-transition"
    answer = api.patch(path, {"status": status, "exitCode": 0, "diff": ""}, expect=400)
    assert answer.codes == dict.fromkeys(["/exitCode", "/diff"], "decided-by-record")
    run.refresh_from_db()
    assert run.status == Run.Status.QUEUED


def test_a_foreign_run_cannot_be_changed(api: Api) -> None:
    run = make_run()
    body = {"status": "cancelled", "ownerUserId": "usr_other"}
    assert api.patch(f"{PATH}/{run.pk}", body, expect=404).body["code"] == "run-not-found"
    run.refresh_from_db()
    assert run.cancel_requested_at is None
