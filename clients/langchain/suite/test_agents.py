"""What agents are told, and the example of the README with a model that is scripted."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage

from controlplane_client import NotFound, Workspace
from controlplane_langchain import ControlPlaneSandbox

README = Path(__file__).resolve().parents[1] / "README.md"


class Scripted(FakeMessagesListChatModel):
    """A model that says what it is told to say."""

    def bind_tools(self, *_tools: Any, **_choices: Any) -> Scripted:
        """Return itself: what it calls is known already."""
        return self


def calls(tool: str, **arguments: str) -> AIMessage:
    """Return the answer of a model that calls a tool."""
    return AIMessage("", tool_calls=[{"name": tool, "args": arguments, "id": f"call-{tool}"}])


def test_the_error_output_stands_behind_the_output_on_a_line_of_its_own(
    made_sandbox: ControlPlaneSandbox,
) -> None:
    told = made_sandbox.execute("echo error >&2; printf output; exit 3")
    assert (told.output, told.exit_code, told.truncated) == ("output\nerror\n", 3, False)


def test_a_command_that_is_ended_has_the_exit_code_that_a_shell_gives_it(
    workspace: Workspace,
) -> None:
    sandbox = ControlPlaneSandbox(workspace, timeout=0.5)
    assert sandbox.execute("kill -TERM $$").exit_code == 128 + 15
    told = sandbox.execute("echo begun; sleep 600")
    assert (told.output, told.exit_code) == ("begun\nThe time limit of the run was reached.", 124)
    assert sandbox.execute("sleep 1; echo done", timeout=0).output == "done\n"


def test_output_beyond_a_mebibyte_is_said_to_be_cut(made_sandbox: ControlPlaneSandbox) -> None:
    told = made_sandbox.execute("head -c 1048577 /dev/zero | tr '\\0' x")
    assert (len(told.output), told.truncated) == (1048576, True)


def test_a_path_that_no_file_can_have_fails_alone(made_sandbox: ControlPlaneSandbox) -> None:
    long, sound = "/tmp/" + "x" * 300, "/tmp/sound"
    written = made_sandbox.upload_files([(long, b"1"), ("/etc/hosts/x", b"2"), (sound, b"3")])
    assert [each.error for each in written] == ["invalid_path", "file_not_found", None]
    read = made_sandbox.download_files(["/tmp/a\0b", sound])
    assert [(each.content, each.error) for each in read] == [(None, "invalid_path"), (b"3", None)]


def test_a_workspace_that_is_gone_is_no_fault_of_a_file(workspace: Workspace) -> None:
    gone = Workspace(workspace._connection, "00000000-0000-0000-0000-000000000000")
    with pytest.raises(NotFound) as caught:
        ControlPlaneSandbox(gone).download_files(["/etc/hosts"])
    assert caught.value.code == "workspace-not-found"


def test_the_agent_of_the_readme_works_in_a_workspace_and_leaves_its_record(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    for written, here in (
        ("http://localhost:4000", os.environ["SVC_BASE_URL"]),
        ("usr_local", os.environ["SVC_OWNER_USER_ID"]),
    ):
        assert written in example
        example = example.replace(written, here)
    example, models = re.subn(r'model="[^"]+"', "model=model", example)
    assert models == 1
    script = [
        calls("write_file", file_path="/tmp/sum.py", content="print(6 * 8)\n"),
        calls("edit_file", file_path="/tmp/sum.py", old_string="8", new_string="7"),
        calls("execute", command="python3 /tmp/sum.py"),
        AIMessage("It printed 42."),
    ]
    known: dict[str, Any] = {"model": Scripted(responses=script)}
    exec(example, known)  # noqa: S102
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "It printed 42."
    told = {each.name: each.content for each in known["answer"]["messages"] if each.type == "tool"}
    assert told["execute"].startswith("42\n")
    (executed,) = [line for line in printed[1:] if "python3 /tmp/sum.py" in line]
    assert executed.startswith("completed [")
