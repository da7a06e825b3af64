"""What the SDK and its tools rely on, in a workspace."""

from __future__ import annotations

import asyncio
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from agents.sandbox import LocalSnapshotSpec, Manifest
from agents.sandbox.entries import File
from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    InvalidManifestPathError,
    PtySessionNotFoundError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
)
from agents.sandbox.session.sandbox_session import SandboxSession

from controlplane_client import AsyncClient, NotFound, Unreachable
from controlplane_openai_agents import (
    ControlPlaneSandboxClient,
    ControlPlaneSandboxClientOptions,
    ControlPlaneSandboxSessionState,
)

NOWHERE = "00000000-0000-0000-0000-000000000000"


async def text(session: SandboxSession, path: str) -> str:
    """Read a file."""
    return bytes((await session.read(Path(path))).read()).decode()


async def test_commands_begin_in_the_root_and_end_as_a_shell_says(session: SandboxSession) -> None:
    told: Any = await session.exec("pwd; echo $GREETING; echo no >&2; exit 3")
    assert (told.stdout, told.stderr) == (b"/workspace/repo\nhello\n", b"no\n")
    assert (told.exit_code, told.truncated) == (3, False)
    assert (await session.exec("kill -TERM $$")).exit_code == 128 + 15
    missing = await session.exec("no-such-program", shell=False)
    assert (missing.exit_code, missing.stdout) == (127, b"")
    assert (await session.exec("whoami", user="root")).stdout == b"root\n"
    with pytest.raises(ExecTimeoutError) as caught:
        await session.exec("sleep 600", timeout=0.3)
    assert caught.value.context["run_id"]


async def test_output_is_whole_beyond_what_the_service_answers_at_once(
    session: SandboxSession,
) -> None:
    told: Any = await session.exec("head -c 3000000 /dev/zero | tr '\\0' x; echo end")
    assert (len(told.stdout), told.stdout[-5:], told.truncated) == (3000004, b"xend\n", False)


async def test_files_are_written_read_listed_and_removed(session: SandboxSession) -> None:
    await session.write(Path("a b/x.txt"), io.BytesIO("grüße".encode()))
    assert await text(session, "a b/x.txt") == "grüße"
    assert await text(session, "/workspace/repo/a b/x.txt") == "grüße"
    (entry,) = await session.ls("a b")
    assert (entry.path, entry.size, entry.kind) == ("/workspace/repo/a b/x.txt", 7, "file")
    await session.mkdir("a b/c/d", parents=True)
    with pytest.raises(WorkspaceArchiveWriteError, match="not empty"):
        await session.rm("a b")
    await session.rm("a b", recursive=True)
    await session.rm("a b", recursive=True)
    with pytest.raises(WorkspaceReadNotFoundError):
        await session.read(Path("a b/x.txt"))
    with pytest.raises(WorkspaceArchiveReadError, match="This is a folder"):
        await session.read(Path())


async def test_links_that_lead_out_of_the_root_are_no_way_out(session: SandboxSession) -> None:
    await session.write(Path("real/x"), io.BytesIO(b"inside"))
    links = "ln -s /etc out; ln -s ../../etc/passwd up; ln -s real in; ln -s loop loop"
    await session.exec(f"mkdir -p l; cd l; {links}; ln -s /workspace/repo/real absolute")
    for path in ("l/out/passwd", "l/up", "../x", "/etc/passwd"):
        with pytest.raises(InvalidManifestPathError):
            await session.read(Path(path))
        with pytest.raises(InvalidManifestPathError):
            await session.write(Path(path), io.BytesIO(b"outside"))
    await session.exec("ln -sfn ../real l/in")
    assert await text(session, "l/in/x") == await text(session, "l/absolute/x") == "inside"
    with pytest.raises(WorkspaceArchiveReadError):
        await session.read(Path("l/loop"))
    await session.rm("l", recursive=True)
    assert await text(session, "real/x") == "inside"


async def test_a_terminal_is_typed_into_until_its_program_ends(session: SandboxSession) -> None:
    begun = await session.pty_exec_start("python3 -q", tty=True, yield_time_s=0.3)
    number = begun.process_id
    assert number is not None
    typed = await session.pty_write_stdin(session_id=number, chars="print(6 * 7)\n")
    shown = typed.output
    while b"42" not in shown:
        shown += (await session.pty_write_stdin(session_id=number, chars="\n")).output
    ended = await session.pty_write_stdin(session_id=number, chars="exit(5)\n", yield_time_s=30)
    assert (ended.exit_code, ended.process_id) == (5, None)
    with pytest.raises(PtySessionNotFoundError):
        await session.pty_write_stdin(session_id=number, chars="")


async def test_a_command_without_a_terminal_goes_on_and_takes_no_input(
    session: SandboxSession,
) -> None:
    command = "echo begun; while [ ! -e go ]; do sleep 0.05; done; rm go; echo ended; exit 4"
    begun = await session.pty_exec_start(command, yield_time_s=0.3)
    assert begun.process_id is not None
    with pytest.raises(RuntimeError, match="stdin is not available"):
        await session.pty_write_stdin(session_id=begun.process_id, chars="x")
    await session.write(Path("go"), io.BytesIO(b""))
    ended = await session.pty_write_stdin(session_id=begun.process_id, chars="", yield_time_s=20)
    assert (begun.output + ended.output, ended.exit_code) == (b"begun\nended\n", 4)


async def test_a_model_that_does_not_look_is_told_how_much_it_has_missed(
    session: SandboxSession,
) -> None:
    command = (
        "while [ ! -e go ]; do sleep 0.05; done; rm go; head -c 3000000 /dev/zero | tr '\\0' x"
    )
    begun = await session.pty_exec_start(f"{command}; sleep 600", yield_time_s=0.3)
    number = begun.process_id
    assert number is not None
    await session.write(Path("go"), io.BytesIO(b""))
    inner: Any = session._inner
    known = inner._commands._known[number]
    while known.omitted + sum(map(len, known.chunks)) < 3000000:
        await asyncio.sleep(0.05)
    told, _ = await known.taken(0)
    note, _, rest = told.partition("\n")
    omitted = 3000000 - len(rest)
    assert 3000000 - 1024 * 1024 <= omitted < 2100000
    assert note.startswith(f"[{omitted} bytes left out here; they are in run ")
    await session.pty_terminate_all()
    assert not inner._commands._known


async def test_a_port_that_was_not_named_is_not_opened(session: SandboxSession) -> None:
    with pytest.raises(ExposedPortUnavailableError, match="9999 is not configured"):
        await session.resolve_exposed_port(9999)


async def test_what_the_manifest_says_is_not_kept_is_not_in_the_tar(
    session: SandboxSession,
) -> None:
    for name in ("kept.txt", "cache/x", "cache/deep/y", "cached"):
        await session.write(Path("tree") / name, io.BytesIO(b"content"))
    session.register_persist_workspace_skip_path("tree/cache")
    packed: Any = await session.persist_workspace()
    with tarfile.open(fileobj=packed) as tar:
        names = {member.name.removeprefix("./") for member in tar}
    assert {"tree/kept.txt", "tree/cached"} <= names
    assert not [name for name in names if name.startswith("tree/cache/") or name == "tree/cache"]


async def test_users_of_a_manifest_are_made_and_a_workspace_that_was_there_is_kept(
    sandboxes: ControlPlaneSandboxClient, session: SandboxSession
) -> None:
    options = ControlPlaneSandboxClientOptions(workspace_id=inner_state(session).workspace_id)
    users: Any = [{"name": "helper"}]
    manifest = Manifest(
        root="/workspace/other", users=users, entries={"x": File(content=b"of the manifest")}
    )
    async with await sandboxes.create(options=options, manifest=manifest) as other:
        assert (
            await other.exec("whoami; pwd", user="helper")
        ).stdout == b"helper\n/workspace/other\n"
        assert await text(other, "x") == "of the manifest"
    await sandboxes.delete(other)
    assert await session.running()


def inner_state(session: SandboxSession) -> ControlPlaneSandboxSessionState:
    """Return the state that is ours."""
    state = session.state
    assert isinstance(state, ControlPlaneSandboxSessionState)
    return state


async def test_a_workspace_that_is_gone_is_made_anew_with_the_files_of_its_snapshot(
    sandboxes: ControlPlaneSandboxClient, tmp_path: Path
) -> None:
    options = ControlPlaneSandboxClientOptions(repository="tests/openai-agents")
    kept = LocalSnapshotSpec(base_path=tmp_path)
    async with await sandboxes.create(options=options, snapshot=kept) as session:
        await session.exec("mkdir d; printf of-before >d/file; ln -s d/file link")
    await sandboxes.delete(session)
    gone = inner_state(session).workspace_id
    state = sandboxes.deserialize_session_state(sandboxes.serialize_session_state(session.state))
    async with await sandboxes.resume(state) as again:
        assert inner_state(again).workspace_id != gone
        assert await text(again, "link") == "of-before"
    await sandboxes.delete(again)


async def test_a_workspace_that_is_gone_is_said_to_be_and_not_replaced_by_an_empty_one(
    sandboxes: ControlPlaneSandboxClient, session: SandboxSession
) -> None:
    state = inner_state(session).model_copy(update={"workspace_id": NOWHERE})
    with pytest.raises(WorkspaceStartError, match=f"{NOWHERE} does not exist, and no snapshot"):
        await sandboxes.resume(state)
    inner: Any = type(session._inner)(sandboxes.client, state)
    with pytest.raises(ExecTransportError, match="no such workspace") as caught:
        await inner.exec("true")
    assert isinstance(caught.value.cause, NotFound)
    assert (caught.value.context["code"], caught.value.retryable) == ("workspace-not-found", False)
    with pytest.raises(WorkspaceArchiveReadError, match="no such workspace"):
        await inner.read(Path("x"))
    with pytest.raises(WorkspaceArchiveWriteError, match="no such workspace"):
        await inner.write(Path("x"), io.BytesIO(b""))
    assert not await inner.running()


async def test_a_service_that_does_not_answer_is_named_in_the_error() -> None:
    async with AsyncClient("http://127.0.0.1:9", retries=0) as nobody:
        with pytest.raises(WorkspaceStartError, match=r"http://127\.0\.0\.1:9 does not") as caught:
            await ControlPlaneSandboxClient(nobody).create()
    assert isinstance(caught.value.cause, Unreachable)
    assert caught.value.retryable


async def test_a_blueprint_that_is_wrong_is_refused_with_its_faults(
    sandboxes: ControlPlaneSandboxClient,
) -> None:
    options = ControlPlaneSandboxClientOptions(blueprint={"harness": {"id": "none"}})
    with pytest.raises(WorkspaceStartError, match="/spec/harness"):
        await sandboxes.create(options=options)
