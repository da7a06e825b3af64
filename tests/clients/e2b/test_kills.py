"""Sandboxes that are killed while nobody is there who could remove them."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import OWNER
from tests.runs.ready import ready_attempt
from tests.stack.api_process import api_process
from tests.stack.e2b_process import E2BProcess
from tests.stack.runs import GATEWAY_TOKEN
from tests.support.waiting import LONG_WAIT
from workspaces.models import Transition

pytestmark = pytest.mark.django_db(transaction=True)

SPEC = {"harness": {"id": "shell"}, "runtime": {"env": {"E2B_TEMPLATE_ID": "base"}}}


def asked(
    facade: E2BProcess, method: str, path: str, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Send one request as the SDK does; return status and document of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", facade.port, timeout=LONG_WAIT)
    try:
        sdk = {"lang": "python", "package_version": "2.28.0", "x-api-key": "anything"}
        connection.request(method, path, headers=sdk | (headers or {}))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


def test_a_kill_is_answered_before_the_sandbox_is_removed_and_it_is_gone_at_once(
    tmp_path: Path, transactional_db: None
) -> None:
    attempt = ready_attempt(spec=SPEC)
    path = f"/sandboxes/{attempt.workspace_id}"
    with api_process(tmp_path / "api.log") as api:
        facade = E2BProcess(
            tmp_path / "e2b.log",
            api=f"http://127.0.0.1:{api.port}",
            WORKSPACE_SSH_GATEWAY_TOKEN=GATEWAY_TOKEN,
            SVC_E2B_OWNER=OWNER,
        )
        try:
            status, sandbox = asked(facade, "GET", path)
            assert status == 200
            inside = {
                "e2b-sandbox-id": sandbox["sandboxID"],
                "x-access-token": sandbox["envdAccessToken"],
            }
            assert asked(facade, "GET", "/health", inside)[0] == 204
            assert asked(facade, "DELETE", path)[0] == 204
            assert Transition.objects.open().filter(kind=Transition.Kind.DELETE).count() == 1
            assert asked(facade, "GET", path)[0] == 404
            assert asked(facade, "GET", "/health", inside)[0] == 502
            assert asked(facade, "DELETE", path)[0] == 404
        finally:
            assert facade.stop() == 0, facade.told
