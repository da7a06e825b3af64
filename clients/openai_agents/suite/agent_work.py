"""An agent whose model is scripted works on a repository, in two processes.

``python agent_work.py begin|go-on STATE_FILE`` does one half and prints what came of it as JSON.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
from pathlib import Path
from typing import Any

from agents import RunConfig, Runner
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import File
from agents.sandbox.session.sandbox_session import SandboxSession
from agents.testing import ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseCustomToolCall

from controlplane_client import AsyncClient
from controlplane_openai_agents import (
    ControlPlaneSandboxClient,
    ControlPlaneSandboxClientOptions,
)

ROOT = "/workspace/repo"
SUM = b"def add(a, b):\n    return a - b\n"
TEST = b"""import unittest
from sums import add

class Sums(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(20, 22), 42)
"""
AUTHOR = {
    "GIT_AUTHOR_NAME": "Coder",
    "GIT_AUTHOR_EMAIL": "coder@example.com",
    "GIT_COMMITTER_NAME": "Coder",
    "GIT_COMMITTER_EMAIL": "coder@example.com",
}
RUN_TESTS = "python3 -B -m unittest"
FIX = """*** Begin Patch
*** Update File: sums.py
@@
 def add(a, b):
-    return a - b
+    return a + b
*** End Patch"""
DESCRIBE = """*** Begin Patch
*** Add File: README.md
+Adds numbers.
*** End Patch"""


def executes(command: str, wait_ms: int = 20_000) -> Any:
    """Return the answer of a model that calls the shell."""
    arguments = {"cmd": command, "yield_time_ms": wait_ms}
    return [function_call("exec_command", arguments, call_id=f"call-{abs(hash(command))}")]


def patches(patch: str) -> Any:
    """Return the answer of a model that edits files."""
    return [
        ResponseCustomToolCall(
            type="custom_tool_call",
            name="apply_patch",
            call_id=f"call-{abs(hash(patch))}",
            input=patch,
        )
    ]


async def worked(script: list[Any], sandbox: SandboxRunConfig) -> tuple[str, list[str]]:
    """Have an agent follow a script; return what it says, and what its tools told it."""
    model = ScriptedModel([*script, [assistant_message("It is done.")]])
    agent = SandboxAgent("Coder", model=model)
    result = await Runner.run(agent, "Mend it.", run_config=RunConfig(sandbox=sandbox))
    model.assert_complete()
    told = [str(item.output) for item in result.new_items if item.type == "tool_call_output_item"]
    return str(result.final_output), told


async def fetched(session: SandboxSession, port: int, path: str) -> str:
    """Read what a server in the workspace serves, at the address that the SDK gives for it."""
    endpoint = await session.resolve_exposed_port(port)

    def ask() -> str:
        # Names below localhost are this machine, which not every resolver knows.
        connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=60)
        place, headers = f"/?{endpoint.query}", {"Host": f"{endpoint.host}:{endpoint.port}"}
        connection.request("GET", place, headers=headers)
        answer = connection.getresponse()
        answer.read()
        headers["Cookie"] = str(answer.getheader("Set-Cookie")).partition(";")[0]
        connection.request("GET", path, headers=headers)
        return connection.getresponse().read().decode()

    return await asyncio.to_thread(ask)


async def begin(sandboxes: ControlPlaneSandboxClient) -> tuple[dict[str, Any], dict[str, object]]:
    """Mend what is wrong, and serve it."""
    options = ControlPlaneSandboxClientOptions(
        repository="tests/openai-agents",
        env=AUTHOR,
        exposed_ports=(8000,),
        on_exit="keep",
        ttl_seconds=3600,
    )
    files = {"sums.py": File(content=SUM), "test_sums.py": File(content=TEST)}
    manifest = Manifest(root=ROOT, entries={**files})
    session = await sandboxes.create(options=options, manifest=manifest)
    async with session:
        await session.exec("git init -q && git add . && git commit -qm Begin")
        script = [
            executes(RUN_TESTS),
            patches(FIX),
            executes(f"{RUN_TESTS} && git commit -qam 'Mend the sum'"),
            executes("python3 -m http.server 8000", 1000),
        ]
        said, told = await worked(script, SandboxRunConfig(session=session))
        served = await fetched(session, 8000, "/sums.py")
        state = sandboxes.serialize_session_state(session.state)
    return {"said": said, "told": told, "served": served}, state


async def go_on(
    sandboxes: ControlPlaneSandboxClient, payload: dict[str, object]
) -> tuple[dict[str, Any], dict[str, object]]:
    """Look at what was done, and describe it."""
    state = sandboxes.deserialize_session_state(payload)
    script = [executes(f"git log --format=%s; {RUN_TESTS}"), patches(DESCRIBE)]
    sandbox = SandboxRunConfig(client=sandboxes, session_state=state)
    said, told = await worked(script, sandbox)
    return {"said": said, "told": told}, payload


async def main(half: str, place: Path) -> None:
    """Do one half."""
    async with AsyncClient() as service:
        sandboxes = ControlPlaneSandboxClient(service)
        if half == "begin":
            came, state = await begin(sandboxes)
            place.write_text(json.dumps(state))
        else:
            came, state = await go_on(sandboxes, json.loads(place.read_text()))
    sys.stdout.write(json.dumps({**came, "workspace": state["workspace_id"]}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
