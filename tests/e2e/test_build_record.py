"""The boot run of a sandbox holds what its build printed, as clients see it."""

from __future__ import annotations

import base64
import uuid

import pytest

from runs.models import Run, RunProcess
from tests.conftest import OWNER
from tests.stack.service import GitServer, Stack, install

pytestmark = pytest.mark.docker


def test_a_ready_sandbox_has_the_programs_of_its_build_in_its_boot_run(
    stack: Stack, git_server: GitServer
) -> None:
    app = git_server.publish("recorded", {"README": f"{uuid.uuid4()}\n"})
    started = stack.ready({"sources": {"workspace": {"url": app}}})
    run = Run.objects.get(pk=started.answer["runId"])
    leaders = RunProcess.objects.filter(run_number=run.number, leader=True)
    names = list(leaders.order_by("process_number").values_list("name", "exit_code"))
    assert [name.split()[0] for name, _ in names[:3]] == ["source", "docker", "docker"]
    assert [code for _, code in names[:3]] == [0, 0, 0]
    assert run.status == "running"


def test_a_failed_build_is_read_as_the_output_of_its_run(stack: Stack) -> None:
    word = uuid.uuid4().hex
    started = stack.failed({"harness": install(f"echo {word}; exit 9")})
    path = f"/v1/runs/{started.answer['runId']}"
    run = stack.api.get(f"{path}?ownerUserId={OWNER}").body
    assert run["status"] == "failed"
    said = ""
    for stream in ("stdout", "stderr"):
        query = f"ownerUserId={OWNER}&processId=1&stream={stream}"
        body = stack.api.get(f"{path}/scrollback?{query}").body
        said += str(body)
        for value in _texts(body):
            said += value
    assert word in said


def _texts(value: object) -> list[str]:
    """Every base64 text in a document, decoded."""
    if isinstance(value, dict):
        return [text for member in value.values() for text in _texts(member)]
    if isinstance(value, list):
        return [text for member in value for text in _texts(member)]
    try:
        return [base64.b64decode(str(value), validate=True).decode("utf-8", "replace")]
    except ValueError:
        return []
