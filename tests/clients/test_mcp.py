"""``svc mcp`` with the official client: workspaces as tools of a model."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client as McpClient
from mcp import StdioServerParameters, stdio_client

from controlplane_cli.mcp_server.command_tools import CommandTools
from controlplane_client import AsyncClient, AsyncRun, Client, Workspace
from tests.clients.places import SVC
from tests.conftest import OWNER
from tests.stack.gateway_process import ApiProcess
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.docker

Call = Callable[..., Awaitable[dict[str, Any]]]

TOOLS = {
    *("create_workspace", "list_workspaces", "describe_workspace", "change_workspace"),
    *("execute", "read_output", "send_input"),
    *("read_file", "write_file", "list_files"),
    *("preview_port", "show_record"),
}
GOES_ON = {"queued", "running"}
PAGE_HEADERS = {
    "accept": "application/json, text/event-stream",
    "content-type": "application/json",
}
PING = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}


@pytest.fixture(scope="module")
def address(svc_environ: dict[str, str]) -> Iterator[str]:
    """Where ``svc mcp --http`` serves."""
    process = subprocess.Popen(
        [*SVC, "mcp", "--http", "127.0.0.1:0", "--allow-origin", "https://inspector.example"],
        env=svc_environ,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("serving http://127.0.0.1:"), line
        yield line.split()[-1]
        process.terminate()
        assert process.wait(LONG_WAIT) in {0, -15}
    finally:
        process.kill()
        process.communicate()


@asynccontextmanager
async def connected(transport: Any) -> AsyncIterator[tuple[McpClient, Call]]:
    """Give the client of a server, and how to call one of its tools."""
    async with McpClient(transport) as client:

        async def call(name: str, /, **arguments: Any) -> dict[str, Any]:
            answer = await client.call_tool(name, arguments)
            text = "".join(getattr(each, "text", "") for each in answer.content)
            assert not answer.is_error, text
            return dict(answer.structured_content or {})

        yield client, call


def over_stdio(svc_environ: dict[str, str]) -> Any:
    """Return a server that is a child of its client."""
    told = StdioServerParameters(command=SVC[0], args=[*SVC[1:], "mcp"], env=svc_environ)
    return stdio_client(told)


@pytest.fixture(params=["stdio", "http"])
def transport(request: pytest.FixtureRequest, svc_environ: dict[str, str]) -> Any:
    """Each way to reach the tools."""
    if request.param == "stdio":
        return over_stdio(svc_environ)
    return request.getfixturevalue("address")


def test_a_model_is_told_what_each_of_twelve_tools_is_for(transport: Any) -> None:
    async def look() -> None:
        async with connected(transport) as (client, _):
            assert "list_workspaces" in (client.instructions or "")
            tools = (await client.list_tools()).tools
            assert {each.name for each in tools} == TOOLS
            for tool in tools:
                assert tool.description, tool.name
                assert len(tool.description) > 40, tool.name
                assert tool.annotations is not None
                described = tool.input_schema.get("properties", {})
                for name, each in described.items():
                    plain = {"limit", "port"}
                    assert each.get("description") or name in plain, (tool.name, name)

    asyncio.run(look())


def test_a_command_runs_and_its_files_and_record_are_read(
    transport: Any, workspace: Workspace
) -> None:
    async def work() -> None:
        async with connected(transport) as (_, call):
            wanted = {"workspace": workspace.id}
            written = await call("write_file", **wanted, path="/tmp/a b/x.py", content="print(6*7)")
            assert written["size"] == 10
            done = await call("execute", **wanted, command=["python3", "/tmp/a b/x.py"])
            assert (done["exit_code"], done["stdout"]["text"]) == (0, "42\n")
            failed = await call("execute", **wanted, command="echo no >&2; exit 3")
            assert (failed["exit_code"], failed["stderr"]["text"]) == (3, "no\n")
            listed = await call("list_files", **wanted, path="/tmp/a b")
            assert listed == {"entries": [{"name": "x.py", "type": "file", "size": 10}]}
            read = await call("read_file", **wanted, path="/tmp/a b/x.py")
            assert read == {"content": "print(6*7)", "size": 10}
            record = await call("show_record", run_id=done["run_id"])
            assert record["record_complete"] is True

    asyncio.run(work())


@pytest.fixture
def tools(svc_environ: dict[str, str]) -> Callable[[Callable[..., Awaitable[None]]], None]:
    """Run what works with the tools over standard input and output."""

    def run(work: Callable[..., Awaitable[None]]) -> None:
        async def inside() -> None:
            async with connected(over_stdio(svc_environ)) as (client, call):
                await work(client, call)

        asyncio.run(inside())

    return run


def test_a_long_output_comes_in_pieces_without_losing_a_character(
    tools: Any, workspace: Workspace
) -> None:
    async def work(_: McpClient, call: Call) -> None:
        script = 'for i in $(seq 400); do echo "$i äöü€😀"; done'
        done = await call("execute", workspace=workspace.id, command=script, max_bytes=1000)
        part, text = done["stdout"], done["stdout"]["text"]
        while part["more"]:
            told = await call(
                "read_output", run_id=done["run_id"], offset=part["next_offset"], max_bytes=1001
            )
            part = told["stdout"]
            text += part["text"]
            assert len(part["text"].encode()) <= 1001
        assert text == "".join(f"{number} äöü€😀\n" for number in range(1, 401))
        last = await call("read_output", run_id=done["run_id"], offset=-10)
        assert last["stdout"]["text"].endswith("€😀\n")

    tools(work)


def test_a_program_in_the_background_is_fed_read_and_ended(
    tools: Any, workspace: Workspace
) -> None:
    async def work(_: McpClient, call: Call) -> None:
        run = await call(
            "execute", workspace=workspace.id, command=["cat"], background=True, open_input=True
        )
        given = {"run_id": run["run_id"]}
        await call("send_input", **given, text="one\n")
        told = await call("read_output", **given, wait_seconds=60)
        assert (told["stdout"]["text"], told["status"]) == ("one\n", "running")
        waiting = asyncio.ensure_future(
            call("read_output", **given, offset=told["stdout"]["next_offset"], wait_seconds=60)
        )
        await call("send_input", **given, text="two\n")
        assert (await waiting)["stdout"]["text"] == "two\n"
        await call("send_input", **given, end=True)
        while (told := await call("read_output", **given))["status"] in GOES_ON:
            await asyncio.sleep(0.1)
        assert (told["exit_code"], told["stdout"]["text"]) == (0, "one\ntwo\n")

    tools(work)


def test_output_that_comes_between_a_look_and_the_wait_is_not_missed(
    api_process: ApiProcess, workspace: Workspace
) -> None:
    class Unlucky(CommandTools):
        """The command writes right after the first look."""

        looks = 0

        async def _part(self, run: AsyncRun, *args: Any) -> dict[str, Any]:
            part = await super()._part(run, *args)
            self.looks += 1
            if self.looks == 1:
                await run.write("late\n")
                while not (await run.output("stdout")).content:
                    await asyncio.sleep(0.05)
            return part

    async def work() -> None:
        run = workspace.spawn(["cat"], stdin=True)
        async with AsyncClient(api_process.url, OWNER) as client:
            told = await Unlucky(client).read_output(run.id, wait_seconds=600)
            assert told["stdout"]["text"] == "late\n"
        run.close_stdin()

    asyncio.run(asyncio.wait_for(work(), 120))


def test_a_link_is_read_in_pieces_and_its_own_size_is_not_told_for_the_file(
    tools: Any, workspace: Workspace
) -> None:
    async def work(_: McpClient, call: Call) -> None:
        script = "head -c 2000 /dev/zero | tr '\\0' x >/tmp/linked; ln -s linked /tmp/link"
        await call("execute", workspace=workspace.id, command=script)
        link = {"workspace": workspace.id, "path": "/tmp/link"}
        first = await call("read_file", **link, max_bytes=1000)
        assert first == {"content": "x" * 1000, "next_offset": 1000}
        second = await call("read_file", **link, offset=1000, max_bytes=1000)
        assert second == {"content": "x" * 1000, "next_offset": 2000}
        assert await call("read_file", **link, offset=2000, max_bytes=1000) == {"content": ""}
        assert (await call("read_file", **link, offset=1500))["size"] == 2000

    tools(work)


def test_a_command_that_takes_long_goes_on_and_can_be_signalled(
    tools: Any, workspace: Workspace
) -> None:
    async def work(_: McpClient, call: Call) -> None:
        script = "trap 'echo caught; exit 9' TERM; echo begun; while :; do sleep 0.1; done"
        told = await call("execute", workspace=workspace.id, command=script, wait_seconds=2)
        assert told["status"] in GOES_ON
        await call("read_output", run_id=told["run_id"], wait_seconds=60)
        await call("send_input", run_id=told["run_id"], signal="TERM")
        while (told := await call("read_output", run_id=told["run_id"]))["status"] in GOES_ON:
            await asyncio.sleep(0.1)
        assert (told["exit_code"], told["stdout"]["text"]) == (9, "begun\ncaught\n")

    tools(work)


def test_files_are_read_in_pieces_and_bytes_stay_bytes(tools: Any, workspace: Workspace) -> None:
    async def work(_: McpClient, call: Call) -> None:
        place = {"workspace": workspace.id, "path": "/tmp/mcp.bin"}
        content = os.urandom(3000) + b"\xff"
        coded = base64.b64encode(content).decode()
        await call("write_file", **place, content_base64=coded, executable=True)
        read, offset = b"", 0
        while True:
            part = await call("read_file", **place, offset=offset, max_bytes=1000)
            read += base64.b64decode(part["content_base64"])
            if "next_offset" not in part:
                break
            offset = part["next_offset"]
        assert read == content
        await call("write_file", **place, content="äö" * 1000)
        text, offset = "", 0
        while True:
            part = await call("read_file", **place, offset=offset, max_bytes=999)
            text += part["content"]
            if "next_offset" not in part:
                break
            offset = part["next_offset"]
        assert text == "äö" * 1000
        assert (await call("read_file", **place, offset=10**6))["content"] == ""

    tools(work)


def test_a_folder_with_many_names_comes_in_pages(tools: Any, workspace: Workspace) -> None:
    async def work(_: McpClient, call: Call) -> None:
        await call(
            "execute",
            workspace=workspace.id,
            command="mkdir /tmp/many; cd /tmp/many; touch {1..250}",
        )
        first = await call("list_files", workspace=workspace.id, path="/tmp/many")
        rest = await call(
            "list_files", workspace=workspace.id, path="/tmp/many", cursor=first["next_cursor"]
        )
        assert len(first["entries"] + rest["entries"]) == 250
        assert "next_cursor" not in rest

    tools(work)


def test_what_a_command_changed_is_shown_in_pieces(tools: Any, workspace: Workspace) -> None:
    async def work(_: McpClient, call: Call) -> None:
        script = "seq 1000 >numbers.txt"
        done = await call("execute", workspace=workspace.id, command=script, record_changes=True)
        told = await call("show_record", run_id=done["run_id"], max_bytes=1000)
        assert {"path": "numbers.txt", "change": "added"} in told["changed_files"]
        diff = told["diff"]["text"]
        while "next_offset" in told["diff"]:
            offset = told["diff"]["next_offset"]
            told = await call("show_record", run_id=done["run_id"], offset=offset)
            diff += told["diff"]["text"]
        assert "+1000\n" in diff

    tools(work)


def test_a_refusal_is_a_sentence_that_a_model_can_act_on(tools: Any, workspace: Workspace) -> None:
    async def work(client: McpClient, _: Call) -> None:
        for name, arguments, told in (
            ("execute", {"workspace": "nowhere", "command": "true"}, "no workspace nowhere"),
            ("read_file", {"workspace": workspace.id, "path": "/none"}, "file-not-found"),
            ("write_file", {"workspace": workspace.id, "path": "/tmp/x"}, "give either content"),
            (
                "write_file",
                {"workspace": workspace.id, "path": "/tmp/x", "content_base64": "?"},
                "is no base64",
            ),
            ("read_output", {"run_id": "../workspaces"}, "is no run_id"),
            (
                "create_workspace",
                {"name": "x", "blueprint": {"harness": {"id": "none"}}},
                "/spec/harness",
            ),
            ("read_file", {"workspace": workspace.id, "path": "/x", "max_bytes": 10**9}, "262144"),
        ):
            answer = await client.call_tool(name, arguments)
            text = "".join(getattr(each, "text", "") for each in answer.content)
            assert answer.is_error, (name, text)
            assert told in text, (name, text)
            assert "Traceback" not in text

    tools(work)


def test_a_workspace_is_made_described_stopped_and_deleted(tools: Any, client: Client) -> None:
    async def work(_: McpClient, call: Call) -> None:
        made = await call("create_workspace", name="by a model", ttl_seconds=3600)
        assert (made["status"], made["name"]) == ("ready", "by a model")
        listed = await call("list_workspaces", status="ready")
        assert made["workspace_id"] in [each["workspace_id"] for each in listed["workspaces"]]
        server = "python3 -m http.server 8123 --bind 127.0.0.1"
        await call("execute", workspace="by a model", command=server, background=True)
        told = await call("describe_workspace", workspace="by a model")
        while not told["ports"]:
            await asyncio.sleep(0.2)
            told = await call("describe_workspace", workspace="by a model")
        assert told["ports"][0]["port"] == 8123
        assert told["latest_runs"][0]["status"] == "running"
        link = await call("preview_port", workspace="by a model", port=8123)
        assert link["url"].startswith(f"http://8123-{made['workspace_id']}.")
        stopped = await call("change_workspace", workspace="by a model", action="stop")
        assert stopped["status"] == "stopped"
        gone = await call("change_workspace", workspace="by a model", action="delete")
        assert gone["status"] == "deleted"

    tools(work)


# ---------------------------------------------------------------- HTTP


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "https://inspector.example"}, 200),
        ({"origin": "https://elsewhere.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:3000"}, 403),
        ({"host": "rebound.example"}, 421),
        ({"content-type": "text/plain"}, 400),
    ],
    ids=str,
)
def test_pages_of_others_cannot_use_the_tools(
    address: str, headers: dict[str, str], status: int
) -> None:
    answer = httpx.post(address, json=PING, headers=PAGE_HEADERS | headers, timeout=LONG_WAIT)
    assert answer.status_code == status, answer.text


def test_only_this_machine_reaches_it_unless_told_how_others_call_it(
    svc_environ: dict[str, str],
) -> None:
    for words, told in (
        (["--http", "0.0.0.0:0"], "--allow-host"),
        (["--http", "8000"], "HOST:PORT"),
        (["--http", "127.0.0.1:99999"], "HOST:PORT"),
    ):
        done = subprocess.run(
            [*SVC, "mcp", *words], env=svc_environ, capture_output=True, text=True, check=False
        )
        assert (done.returncode, told in done.stderr) == (2, True), done.stderr


def test_a_port_that_is_taken_is_said(svc_environ: dict[str, str], address: str) -> None:
    taken = address.removeprefix("http://").removesuffix("/mcp")
    done = subprocess.run(
        [*SVC, "mcp", "--http", taken], env=svc_environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "cannot be served" in done.stderr) == (1, True), done.stderr


def test_without_the_package_of_the_protocol_it_is_said_what_to_install(
    svc_environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "mcp.py").write_text("raise ImportError('no mcp here')\n")
    path = os.pathsep.join([str(tmp_path), svc_environ["PYTHONPATH"]])
    done = subprocess.run(
        [*SVC, "mcp"],
        env=svc_environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "pip install 'controlplane-cli[mcp]'" in done.stderr
