"""Agents with a scripted model: what they do, and what is recorded of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_work import RUN_TESTS, executes, patches
from agents.testing import ScriptedModel, assistant_message

from controlplane_client import AsyncClient

HERE = Path(__file__).resolve().parent
README = HERE.parent / "README.md"


def half(name: str, state: Path) -> Any:
    """Have one half of the work done by a process of its own."""
    command = [sys.executable, str(HERE / "agent_work.py"), name, str(state)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


async def test_an_agent_edits_tests_and_serves_a_repository_and_goes_on_in_another_process(
    service: AsyncClient, tmp_path: Path
) -> None:
    state = tmp_path / "state.json"
    first = half("begin", state)
    assert first["said"] == "It is done."
    failed, mended, passed, serving = first["told"]
    assert "FAILED (failures=1)" in failed
    assert "exited with code 1" in failed
    assert mended == "Updated sums.py"
    assert "OK" in passed
    assert "exited with code 0" in passed
    assert "Process running with session ID" in serving
    assert first["served"] == "def add(a, b):\n    return a + b\n"

    second = half("go-on", state)
    assert second["workspace"] == first["workspace"]
    seen, described = second["told"]
    assert "Mend the sum\nBegin\n" in seen
    assert "OK" in seen
    assert described == "Created README.md"

    workspace = service.workspace(first["workspace"])
    assert await workspace.files.read_text("README.md") == "Adds numbers."
    await workspace.delete()
    await told_by_the_record(service, workspace.id)


async def told_by_the_record(service: AsyncClient, workspace_id: str) -> None:
    """Runs and timeline of the workspace say what the agent did, and in which order."""
    workspace = service.workspace(workspace_id)
    commands = [(run, run.command or [""]) async for run in workspace.runs()][::-1]
    # The SDK itself gives files of the manifest their permissions.
    assert {command[0] for _, command in commands} == {"chmod", "sh"}
    runs = [run for run, command in commands if command[0] == "sh"]
    story = [command[-1] for _, command in commands if command[0] == "sh"]
    assert story == [
        "git init -q && git add . && git commit -qm Begin",
        RUN_TESTS,
        f"{RUN_TESTS} && git commit -qam 'Mend the sum'",
        "python3 -m http.server 8000",
        f"git log --format=%s; {RUN_TESTS}",
    ]
    assert [run.exit_code for run in runs] == [0, 1, 0, None, 0]
    assert runs[3].status == "cancelled"
    failed = await service.run(runs[1].id)
    assert b"FAILED (failures=1)" in await failed.scrollback("stderr")
    assert (await failed.verify()).ok

    (boot,) = [run async for run in workspace.runs(mode="boot")]
    record = await service.run(boot.id)
    events = [event async for event in record.timeline(kinds=["fileAccessed", "forwardOpened"])]
    changes = [each["summary"] for each in events if "stat" not in each["summary"]]
    written = [each.split()[2].rstrip(",") for each in changes if each.startswith("files: write")]
    assert written[2:] == ["/workspace/repo/sums.py", "/workspace/repo/README.md"]
    assert sorted(written[:2]) == ["/workspace/repo/sums.py", "/workspace/repo/test_sums.py"]
    assert any(each.startswith("forward opened: localhost port 8000") for each in changes)
    assert (await record.loss())["complete"]


async def test_the_example_of_the_readme_works(capfd: pytest.CaptureFixture[str]) -> None:
    example = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[0]
    patch = "*** Begin Patch\n*** Add File: sum.py\n+print(6 * 7)\n*** End Patch"
    steps = [patches(patch), executes("python3 sum.py"), [assistant_message("It printed 42.")]]
    for written, here in (
        ("http://localhost:4000", os.environ["SVC_BASE_URL"]),
        ("usr_local", os.environ["SVC_OWNER_USER_ID"]),
    ):
        assert written in example
        example = example.replace(written, here)
    example, models = re.subn(r'model="[^"]+"', "model=model", example)
    assert models == 1
    known = {"model": ScriptedModel(steps), "__name__": "example"}
    example = example.replace("asyncio.run(main())", "")
    exec(example, known)  # noqa: S102
    await known["main"]()  # type: ignore[operator]
    printed = capfd.readouterr().out.splitlines()
    assert printed == ["It printed 42.", "completed ['sh', '-lc', 'python3 sum.py']"]
