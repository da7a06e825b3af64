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
    words = [name.split()[0] for name, _ in names]
    pushed = words.index("docker")
    assert words[0] == "source"
    assert set(words[1:pushed]) == {"step"}
    assert {code for _, code in names[: pushed + 1]} == {0}
    assert run.status == "running"


def test_a_failed_build_is_read_as_the_output_of_its_run(stack: Stack) -> None:
    word = uuid.uuid4().hex
    started = stack.failed({"harness": install(f"echo {word}; exit 9")})
    path = f"/v1/runs/{started.answer['runId']}"
    run = stack.api.get(f"{path}?ownerUserId={OWNER}").body
    assert run["status"] == "failed"
    step = RunProcess.objects.filter(run_number=Run.objects.get(pk=run["runId"]).number).get(
        exit_code=9
    )
    assert step.name.startswith("step ")
    query = f"ownerUserId={OWNER}&processId={step.process_number}&stream=stdout"
    printed = stack.api.get(f"{path}/scrollback?{query}").body["contentBase64"]
    assert base64.b64decode(printed) == f"{word}\n".encode()
