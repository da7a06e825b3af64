"""Two hundred secrets go through the whole service, and none of them is anywhere in clear."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import requests
from django.test import override_settings

from accounts.models import ConnectedAccount
from runs.agent.session.channel import FromClient, ToClient
from tests.accounts.connected import KEY
from tests.conftest import OWNER
from tests.e2e.canaries import (
    MARKER,
    ProcessList,
    found_in,
    found_in_stream,
    registry_blobs,
    secret,
    values_in_database,
)
from tests.stack.gateway_process import ApiProcess
from tests.stack.run_worker_process import RunWorkerProcess
from tests.stack.runs import GATEWAY_TOKEN, RAW, Place
from tests.stack.service import Stack, Started
from tests.support.waiting import LONG_WAIT

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]

PROVIDERS = ["claude"] * 10 + ["github"] * 10 + ["codex"] * 10 + ["generic"] * 170
GIVEN = 85
"""Variables that each of two workspaces is given, beside one account of each provider."""

PRINT = """
import base64, json, os, sys
from urllib.parse import quote, quote_plus
file = os.path.expanduser("~/.codex/auth.json")
names = ["CLAUDE_CODE_OAUTH_TOKEN", "GH_TOKEN", "GITHUB_TOKEN"]
names += sorted(name for name in os.environ if name.startswith("CANARY_"))
document = open(file).read()
values = [os.environ[name] for name in names] + [document]
values += [*json.loads(document)["tokens"].values(), json.loads(document)["OPENAI_API_KEY"]]
values = [value for value in values if not value.startswith("account-")]
b64 = lambda text: base64.b64encode(text.encode()).decode()
forms = [
    str, b64, lambda text: b64("x" + text + "x"), lambda text: b64("xx" + text),
    lambda text: base64.urlsafe_b64encode(text.encode()).decode(), quote, quote_plus,
    lambda text: quote(text, safe=""), lambda text: quote(text, safe="!'()*"),
    lambda text: quote(text, safe=";,/?:@&=+$#!'()*"), json.dumps,
    lambda text: json.dumps(text, ensure_ascii=False),
    lambda text: json.dumps({"nested": [text]}), lambda text: json.dumps(text).replace("/", "\\/"),
    lambda text: base64.encodebytes(text.encode()).decode(), lambda text: text.encode().hex(),
]
for stream in (sys.stdout, sys.stderr):
    for form in forms:
        for value in values:
            print("[", form(value), "]", sep="", file=stream)
    stream.flush()
print("printed", len(values) * len(forms))
"""
SHOW = f"python3 - <<'PROGRAM'\n{PRINT}PROGRAM"
SPEC: dict[str, Any] = {
    "lifecycle": {
        "setup": [
            {"id": "print", "run": f"cat > ~/print.py <<'PROGRAM'\n{PRINT}PROGRAM"},
            {"id": "show", "run": "python3 ~/print.py"},
            {
                "id": "sum",
                "run": "env | grep ^CANARY_0030= | cut -d= -f2- | tr -d '\\n' | sha256sum > ~/sum",
            },
        ]
    },
}


@dataclass
class Service:
    """The service with its processes, and the ids of the canaries."""

    stack: Stack
    api: ApiProcess
    runs: RunWorkerProcess
    folder: Path
    accounts: list[str]
    processes: ProcessList

    def credentials(self, first: int) -> dict[str, Any]:
        """Accounts of every provider, with variables from this one on."""
        ids = self.accounts
        number = 0 if first == 30 else 1
        return {
            "claude": ids[number], "github": ids[10 + number], "codex": ids[20 + number],
            "generic": ids[first : first + GIVEN],
        }  # fmt: skip


def connect(url: str, number: int) -> str:
    """Connect the canary of a number over HTTP; return the account's id."""
    provider = PROVIDERS[number]
    name = f"CANARY_{number:04}" if provider == "generic" else f"number {number}"
    body = {"ownerUserId": OWNER, "provider": provider, "name": name}
    answer = requests.post(
        f"{url}/v1/connected-accounts",
        json={**body, "secret": secret(provider, number)},
        timeout=LONG_WAIT,
    )
    assert answer.status_code == 201, answer.text
    assert found_in(answer.content) is None
    return str(answer.json()["connectedAccountId"])


@pytest.fixture(scope="module", autouse=True)
def _configured() -> Iterator[None]:
    """A key that every process shares, and logs that leave nothing out."""
    changes = {
        "SVC_CREDENTIALS_KEY": KEY,
        "SVC_LOG_LEVEL": "DEBUG",
        "WORKER_CREDENTIALS_INTERVAL_MS": "500",
    }
    ours = override_settings(SVC_CREDENTIALS_KEY=KEY, WORKSPACE_SSH_GATEWAY_TOKEN=GATEWAY_TOKEN)
    with mock.patch.dict(os.environ, changes), ours:
        yield


@pytest.fixture(scope="module")
def service(
    _configured: None, stack: Stack, run_queue: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """Everything real, with two hundred accounts."""
    folder = tmp_path_factory.mktemp("canaries")
    with override_settings(WORKSPACE_RUN_QUEUE=run_queue), ProcessList() as processes:
        api = ApiProcess(folder / "api.log")
        runs = RunWorkerProcess(folder / "run-worker.log", RUN_STOP_GRACE_MS="1000")
        try:
            accounts = [connect(api.url, number) for number in range(len(PROVIDERS))]
            yield Service(stack, api, runs, folder, accounts, processes)
        finally:
            runs.stop()
            api.stop()


@pytest.fixture(scope="module")
def places(service: Service) -> list[Place]:
    """Two workspaces that print all that they are given: in a setup step, and in a run of each."""
    made = []
    for first in (30, 30 + GIVEN):
        started = service.stack.ready(SPEC, credentials=service.credentials(first))
        made.append(Place(service.stack, started, service.runs))
    return made


@pytest.fixture(scope="module")
def runs(places: list[Place]) -> list[tuple[Place, str]]:
    """Every run that has printed canaries, with its workspace."""
    found = [(place, str(place.started.answer["runId"])) for place in places]
    for place in places:
        printed = place.python(PRINT)
        place.completed(printed)
        failing = place.shell("echo $GH_TOKEN; printenv CANARY_0031 >&2; env; exit 3")
        assert place.ended(failing)["exitCode"] == 3
        found += [(place, printed), (place, failing)]
    return [*found, (places[0], at_a_terminal(places[0]))]


def at_a_terminal(place: Place) -> str:
    """Print them in a session, and type one; return its run."""
    terminal = {"columns": 80, "rows": 24, "term": "xterm"}
    env = {"PS1": "ready> ", "HISTFILE": "/dev/null"}
    session = place.session("bash", "--norc", pty=terminal, env=env)
    session.until_said(b"ready> ")
    session.send(FromClient.DATA, b"echo $GH_TOKEN; echo $CANARY_0030; cat ~/.codex/auth.json\n")
    session.until_said(secret("github", 10).encode())
    session.send(FromClient.DATA, f": {secret('generic', 30)}\n".encode())
    session.send(FromClient.DATA, b"python3 ~/print.py 2>&1; echo over $((40 + 2))\n")
    session.until_said(b"over 42")
    session.send(FromClient.DATA, b"exit 0\n")
    session.until(ToClient.EXIT)
    session.close()
    place.ended(session.run)
    return session.run


def assert_clean(where: str, content: bytes) -> None:
    """Fail when a canary is there."""
    found = found_in(content)
    assert found is None, f"{where}: {found!r}"


def test_two_hundred_canaries_are_connected_and_reach_the_workspaces(
    service: Service, places: list[Place], runs: list[tuple[Place, str]]
) -> None:
    assert len(service.accounts) == ConnectedAccount.objects.count() == 200
    expected = hashlib.sha256(secret("generic", 30).encode()).hexdigest()
    assert expected in places[0].inside("cat ~/sum")
    lines = (GIVEN + 3 + 1 + 4) * 16
    for place, run in (runs[2], runs[4]):
        output = place.output(run)
        assert b"printed %d\n" % lines in output
        assert output.count(b"****************") >= lines
        assert place.output(run, "stderr").count(b"****************") >= lines
    # What looks for canaries finds one where it is.
    assert found_in(f"a{MARKER}".encode())
    assert any(found_in(secret(provider, n).encode()) for n, provider in enumerate(PROVIDERS))


def test_no_record_holds_a_canary(service: Service, runs: list[tuple[Place, str]]) -> None:
    for place, run in runs:
        for stream in ("stdout", "stderr", "pty", "ptyInput"):
            path = f"/v1/runs/{run}/scrollback?stream={stream}"
            answer = requests.get(f"{service.api.url}{path}", headers=RAW, timeout=LONG_WAIT)
            assert_clean(f"{stream} of {run}", answer.content)
        for form in ("ndjson", "text", "asciicast"):
            path = f"/v1/runs/{run}/export?format={form}"
            answer = requests.get(f"{service.api.url}{path}", timeout=LONG_WAIT)
            assert_clean(f"{form} of {run}", answer.content)
        assert_clean(f"timeline of {run}", json.dumps(place.timeline(run)).encode())
        for path in (f"/v1/runs/{run}", f"/v1/runs/{run}/changes", f"/v1/runs/{run}/loss"):
            assert_clean(path, requests.get(f"{service.api.url}{path}", timeout=LONG_WAIT).content)


def test_no_answer_of_a_failing_request_or_sandbox_repeats_a_canary(service: Service) -> None:
    canary = secret("generic", 0)
    account = {"ownerUserId": OWNER, "provider": "claude", "secret": canary}
    sandbox = {"ownerUserId": OWNER, "registryId": canary, "repository": canary, "tag": "latest"}
    url = service.api.url
    for path, body in [
        ("connected-accounts", account),
        ("connected-accounts", {**account, "provider": "github"}),
        ("connected-accounts", {**account, "provider": "codex"}),
        ("connected-accounts", {**account, "secret": [canary]}),
        ("connected-accounts", {**account, "secret": canary * 2000}),
        ("connected-accounts", {**account, "secret": f"{canary}\0"}),
        ("connected-accounts", {**account, "provider": "generic", "name": "-"}),
    ]:
        answer = requests.post(f"{url}/v1/{path}", json=body, timeout=LONG_WAIT)
        assert answer.status_code == 400, answer.text
        assert_clean(path, answer.content)
    cut = json.dumps(account)[:-1].encode()
    answer = requests.post(
        f"{url}/v1/connected-accounts",
        data=cut,
        headers={"content-type": "application/json"},
        timeout=LONG_WAIT,
    )
    assert answer.status_code == 400
    assert_clean("a body that is cut", answer.content)
    assert requests.post(f"{url}/v1/sandboxes", json=sandbox, timeout=LONG_WAIT).status_code == 400

    failing = {"lifecycle": {"setup": [{"id": "fail", "run": f"{SHOW}\nexit 7"}]}}
    failed = service.stack.failed(failing, credentials=service.credentials(30))
    assert failed.body["error"]["code"] == "step-failed"
    assert "****************" in failed.body["error"]["message"]
    for path in (
        f"sandboxes/{failed.answer['sandboxId']}",
        f"workspaces/{failed.answer['workspaceId']}",
        f"workspaces/{failed.answer['workspaceId']}/attempts",
        f"workspaces/{failed.answer['workspaceId']}/events",
        f"runs/{failed.answer['runId']}",
        f"connected-accounts?ownerUserId={OWNER}&limit=200",
        f"profiles?ownerUserId={OWNER}",
    ):
        assert_clean(path, requests.get(f"{url}/v1/{path}", timeout=LONG_WAIT).content)


def test_no_image_and_no_container_holds_a_canary(service: Service, places: list[Place]) -> None:
    engine = service.stack.engine
    seen: set[str] = set()
    for place in places:
        container = service.stack.container(place.started)
        assert_clean("docker inspect", json.dumps(container.attrs).encode())
        assert_clean("docker logs", container.logs())
        image = engine.images.get(container.attrs["Image"])
        assert_clean("docker inspect", json.dumps(image.attrs).encode())
        assert_clean("docker history", json.dumps(image.history()).encode())
        if str(image.id) not in seen:
            assert found_in_stream(image.save()) is None
        seen.add(str(image.id))
        _assert_blobs_clean(place.started)


def _assert_blobs_clean(started: Started) -> None:
    for name, chunks in registry_blobs(started.answer["repository"], started.answer["tag"]):
        found = found_in_stream(chunks)
        assert found is None, f"{name}: {found!r}"


def test_no_table_holds_a_canary_in_clear(service: Service, runs: list[tuple[Place, str]]) -> None:
    places: dict[str, int] = {}
    for place, value in values_in_database():
        assert_clean(place, value)
        places[place] = places.get(place, 0) + 1
    assert places["accounts_connectedaccount.sealed"] == 200
    assert places["run_event.body"] > 20, places


def test_no_log_and_no_process_list_held_a_canary(
    service: Service, places: list[Place], runs: list[tuple[Place, str]]
) -> None:
    for log in (service.stack.worker.log, service.api.log, service.runs.log):
        content = log.read_bytes()
        assert len(content) > 1000
        assert_clean(log.name, content)
    assert service.processes.looks > 20
    assert service.processes.found == set()


def test_no_file_of_the_service_holds_a_canary(
    service: Service, places: list[Place], runs: list[tuple[Place, str]]
) -> None:
    for path in service.stack.worker.log.parent.rglob("*"):
        if path.is_file():
            assert_clean(str(path), path.read_bytes())


def test_nothing_is_left_of_them_in_a_container_that_has_stopped(
    service: Service, places: list[Place], runs: list[tuple[Place, str]]
) -> None:
    """The last one here: it ends the workspaces."""
    for place in places:
        container = service.stack.container(place.started)
        container.stop(timeout=int(LONG_WAIT))
        found = found_in_stream(container.export())
        assert found is None, found
