"""The Python client against the whole service: what it is told to do happens, once."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import os
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings as django_settings

from controlplane_client import (
    AsyncClient,
    Client,
    CommandFailed,
    Conflict,
    InvalidRequest,
    NotFound,
    NotReady,
    PreconditionFailed,
    Unreachable,
    WaitTimeout,
    Workspace,
    check_export,
)
from runs.record import signatures
from tests.clients.cutting_relay import CuttingRelay, cutting_relay_to
from tests.conftest import OWNER
from tests.stack.gateway_process import ApiProcess
from tests.stack.service import HARNESS
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def relay(api_process: ApiProcess) -> Iterator[CuttingRelay]:
    """A bad network before the service."""
    with cutting_relay_to(api_process.port) as made:
        yield made


# ---------------------------------------------------------------- commands


def test_a_command_answers_with_exit_code_and_both_outputs(workspace: Workspace) -> None:
    result = workspace.exec("cat; echo no >&2; exit 4", stdin=b"\xff\x00in")
    assert (result.status, result.exit_code, result.ok) == ("failed", 4, False)
    assert result.stdout_bytes == b"\xff\x00in"
    assert result.stderr == "no\n"


def test_a_list_is_executed_without_a_shell_where_and_with_what_it_is_told(
    workspace: Workspace,
) -> None:
    program = "import os, sys; print(os.getcwd(), os.environ['COLOUR'], sys.argv[1])"
    command = ["python3", "-c", program, "$HOME *"]
    result = workspace.exec(command, cwd="/tmp", env={"COLOUR": "green"})
    assert result.stdout == "/tmp green $HOME *\n"


def test_text_is_told_as_it_comes_and_only_in_whole_characters(workspace: Workspace) -> None:
    script = "printf '\\303'; sleep 0.3; printf '\\244'; echo; echo no >&2"
    outs: list[str] = []
    errs: list[str] = []
    result = workspace.exec(script, on_stdout=outs.append, on_stderr=errs.append)
    assert ("".join(outs), "".join(errs)) == ("ä\n", "no\n")
    assert "�" not in result.stdout
    assert result.exit_code == 0


def test_more_input_than_a_request_takes_arrives_whole(workspace: Workspace) -> None:
    content = os.urandom(1_500_000)
    result = workspace.exec("sha256sum", stdin=content)
    assert result.stdout.split()[0] == hashlib.sha256(content).hexdigest()


def test_a_long_output_is_truncated_with_and_without_callbacks(workspace: Workspace) -> None:
    script = "head -c 1500000 /dev/zero | tr '\\0' x"
    at_once = workspace.exec(script)
    told: list[str] = []
    followed = workspace.exec(script, on_stdout=told.append)
    assert at_once.truncated
    assert followed.truncated
    assert at_once.stdout == followed.stdout == "x" * 1024**2
    assert len("".join(told)) == 1_500_000


def test_a_command_that_takes_too_long_is_ended(workspace: Workspace) -> None:
    result = workspace.exec(["sleep", "600"], timeout=0.3)
    assert (result.error_code, result.exit_signal) == ("run-timeout", "SIGTERM")


def test_a_failure_that_is_checked_is_an_exception(workspace: Workspace) -> None:
    with pytest.raises(CommandFailed, match="exit code 3\nso it is") as caught:
        workspace.exec("echo so it is >&2; exit 3", check=True)
    assert caught.value.result.exit_code == 3


def test_a_program_in_the_background_reads_what_it_is_given(workspace: Workspace) -> None:
    run = workspace.spawn(["cat"], stdin=True)
    run.write("one, ")
    run.write("two\n", end=True)
    told: list[str] = []
    info = run.wait(on_stdout=told.append)
    assert ("".join(told), info.exit_code) == ("one, two\n", 0)


def test_a_program_in_the_background_gets_signals(workspace: Workspace) -> None:
    trap = "trap 'echo caught; exit 7' USR1; echo begun"
    run = workspace.spawn(f"{trap}; while :; do sleep 0.1; done")
    told: list[str] = []

    def heard(text: str) -> None:
        if not told:
            run.signal("USR1")
        told.append(text)

    assert run.wait(on_stdout=heard).exit_code == 7
    assert "".join(told) == "begun\ncaught\n"


def test_a_program_may_have_a_terminal_that_changes_its_size(workspace: Workspace) -> None:
    run = workspace.spawn("read; stty size", terminal=(80, 24))
    run.resize(132, 43)
    run.write("\n")
    told: list[str] = []
    run.wait(on_stdout=told.append)
    assert "43 132" in "".join(told)


def test_a_wait_ends_in_time_and_a_run_can_be_cancelled(workspace: Workspace) -> None:
    run = workspace.spawn(["sleep", "600"])
    with pytest.raises(WaitTimeout):
        run.wait(timeout=0.2)
    run.cancel()
    assert run.wait().status == "cancelled"


# ---------------------------------------------------------------- a bad network


def test_a_command_whose_answer_is_lost_is_executed_once(
    relay: CuttingRelay, workspace: Workspace
) -> None:
    mark = f"once-{uuid.uuid4().hex}"
    before = relay.cut
    relay.cuts = [30, 30]
    with Client(relay.url, OWNER) as client:
        result = client.connect(workspace.id).exec(f"sleep 0.2; echo x >>{mark}; cat {mark}")
    assert relay.cut == before + 2
    assert result.stdout == "x\n"


def test_a_stream_that_is_cut_again_and_again_misses_nothing_and_repeats_nothing(
    relay: CuttingRelay, workspace: Workspace
) -> None:
    # More than all cuts let pass, in however few events it comes.
    run = workspace.spawn("for i in $(seq 40); do printf '%0500d\\n' $i; sleep 0.02; done")
    before = relay.cut
    relay.cuts = [3000, 2500, 4000, 1500, 3500]
    with Client(relay.url, OWNER) as client:
        numbers = [int(event.data["sequence"]) for event in client.run(run.id).follow()
                   if event.type in {"event", "output"}]  # fmt: skip
    assert relay.cut - before == 5
    assert numbers == [int(item["sequence"]) for item in run.timeline()]


def test_a_download_goes_on_where_it_was_cut(
    relay: CuttingRelay, workspace: Workspace, tmp_path: Path
) -> None:
    content = os.urandom(3_000_000)
    workspace.files.write("big.bin", content)
    before = relay.cut
    relay.cuts = [500_000, 1_000_000]
    with Client(relay.url, OWNER) as client:
        client.connect(workspace.id).files.download("big.bin", tmp_path / "here")
    assert relay.cut == before + 2
    assert (tmp_path / "here").read_bytes() == content
    assert [each.name for each in tmp_path.iterdir()] == ["here"]


def test_what_must_not_happen_twice_is_not_asked_twice(
    relay: CuttingRelay, workspace: Workspace
) -> None:
    workspace.files.write("from", b"1")
    relay.cuts = [20]
    with Client(relay.url, OWNER) as client, pytest.raises(Unreachable):
        client.workspace(workspace.id).files.move("from", "to")
    assert workspace.files.read("to") == b"1"


def test_nobody_at_the_address_is_said_so() -> None:
    with Client("http://127.0.0.1:1", retries=1) as client, pytest.raises(Unreachable, match=":1 "):
        client.setup()


# ---------------------------------------------------------------- files


def test_files_are_written_read_listed_moved_and_removed(workspace: Workspace) -> None:
    files = workspace.files
    written = files.write("made/a.txt", "ä\n", mode=0o600)
    assert (written.size, written.created) == (3, True)
    assert files.read_text("made/a.txt") == "ä\n"
    assert b"".join(files.stream("made/a.txt", start=1, end=3)) == b"\xa4\n"
    files.mkdir("made/deep/er")
    files.move("made/a.txt", "made/b.txt")
    assert [(each.name, each.type) for each in files.list("made")] == [
        ("b.txt", "file"),
        ("deep", "directory"),
    ]
    found = files.stat("made/b.txt", hash=True)
    assert (found.size, found.mode, found.sha256) == (3, 0o600, written.sha256)
    with pytest.raises(Conflict, match="directory-not-empty"):
        files.remove("made")
    files.remove("made", recursive=True)
    with pytest.raises(NotFound) as caught:
        files.stat("made")
    assert (caught.value.code, caught.value.status) == ("file-not-found", 404)


def test_of_two_who_write_one_is_told(workspace: Workspace) -> None:
    first = workspace.files.write("shared", b"1")
    workspace.files.write("shared", b"2", if_match=first.sha256)
    with pytest.raises(PreconditionFailed):
        workspace.files.write("shared", b"3", if_match=first.sha256)
    with pytest.raises(PreconditionFailed):
        workspace.files.write("shared", b"4", only_new=True)
    assert workspace.files.read("shared") == b"2"


def test_a_name_that_is_no_utf8_is_a_name(workspace: Workspace) -> None:
    name = os.fsdecode(b"odd/\xff.txt")
    workspace.files.write(name, b"odd")
    assert [each.name for each in workspace.files.list("odd")] == [os.fsdecode(b"\xff.txt")]
    assert workspace.files.read(name) == b"odd"


def test_files_and_folders_come_and_go_with_their_permissions(
    workspace: Workspace, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    (source / "bin").mkdir(parents=True)
    (source / "bin" / "tool").write_text("#!/bin/sh\necho made\n")
    (source / "bin" / "tool").chmod(0o755)
    (source / "link").symlink_to("bin/tool")
    workspace.files.upload(source, "up")
    workspace.files.upload(source / "bin" / "tool", "up/second")
    assert workspace.exec("up/link && up/second", check=True).stdout == "made\nmade\n"
    workspace.exec("ln -s /etc/passwd up/outside", check=True)
    assert workspace.files.download("up", tmp_path / "down") == ["outside"]
    assert os.access(tmp_path / "down" / "bin" / "tool", os.X_OK)
    assert (tmp_path / "down" / "link").read_text() == "#!/bin/sh\necho made\n"


def test_a_folder_is_downloaded_into_the_one_where_the_program_is(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.files.write("downloaded/a", b"one")
    monkeypatch.chdir(tmp_path)
    assert workspace.files.download("downloaded", ".") == []
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"a": b"one"}


def test_archives_are_tars_both_ways(workspace: Workspace) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        entry = tarfile.TarInfo("in/a")
        entry.size = 3
        archive.addfile(entry, io.BytesIO(b"abc"))
    assert workspace.files.unpack(content.getvalue(), "tar") == 1
    with tarfile.open(fileobj=io.BytesIO(b"".join(workspace.files.pack("tar")))) as archive:
        names = [entry.name for entry in archive if entry.isfile()]
    assert [name.removeprefix("./") for name in names] == ["in/a"]


def test_ports_say_what_listens(workspace: Workspace) -> None:
    listen = "s = socket.create_server(('127.0.0.1', 4321)); print('up', flush=True)"
    run = workspace.spawn(["python3", "-c", f"import socket, time; {listen}; time.sleep(600)"])
    for event in run.follow():
        if event.stream == "stdout":
            break
    assert [(each.port, each.process) for each in workspace.ports()] == [(4321, "python3")]
    run.cancel()
    run.wait()


# ---------------------------------------------------------------- records


def test_a_record_is_read_replayed_and_verified(workspace: Workspace, client: Client) -> None:
    result = workspace.exec("echo one; echo new >made-here", changes=True)
    run = client.run(result.run_id)
    assert run.scrollback() == b"one\n"
    assert run.text().strip() == "one"
    assert run.loss()["complete"]
    assert [each["path"] for each in run.changes()["files"]] == ["made-here"]
    kinds = [item["kind"] for item in run.timeline()]
    assert (kinds[0], kinds[-1]) == ("recordStarted", "recordSealed")
    assert [item["kind"] for item in run.timeline(kinds=["ioChunk"])] == ["ioChunk"]
    header, *shown = run.asciicast().splitlines()
    assert json.loads(header)["version"] == 3
    assert "".join(json.loads(line)[2] for line in shown if json.loads(line)[1] == "o") == "one\r\n"
    assert run.id in [each.id for each in workspace.runs()]


def test_output_is_read_in_parts(workspace: Workspace, client: Client) -> None:
    run = client.run(workspace.exec("printf 123456789").run_id)
    part = run.output(start=2, limit=3)
    assert (part.content, part.start, part.next, part.more) == (b"345", 2, 5, True)
    rest = run.output(start=part.next)
    assert (rest.content, rest.next, rest.more, rest.complete) == (b"6789", 9, False, True)
    assert run.output("stderr").content == b""


def test_a_record_is_taken_away_in_the_forms_of_other_programs(
    workspace: Workspace, client: Client
) -> None:
    run = client.run(workspace.exec("echo one").run_id)
    statement = json.loads(base64.b64decode(run.in_toto()["payload"]))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    spans = run.otlp()["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert {each["traceId"] for each in spans} == {run.id.replace("-", "")}
    assert {each["metadata"]["version"] for each in run.ocsf()} == {"1.8.0"}


def test_a_link_shows_a_port_of_a_workspace(workspace: Workspace) -> None:
    link = workspace.link(8080, "/a?b=c")
    assert link.url.startswith(f"http://8080-{workspace.id}.")
    assert link.token in link.url
    assert link.token not in repr(link)
    assert link.expires_at is not None


def test_a_folder_is_listed_in_pages(workspace: Workspace) -> None:
    workspace.exec("mkdir -p /tmp/pages && cd /tmp/pages && touch a b c")
    first, cursor = workspace.files.page("/tmp/pages", limit=2)
    rest, end = workspace.files.page("/tmp/pages", limit=2, cursor=cursor)
    assert ([each.name for each in first + rest], end) == (["a", "b", "c"], None)
    assert [each.name for each in workspace.files.list("/tmp/pages")] == ["a", "b", "c"]


def test_a_record_is_verified_without_the_service_and_every_change_of_it_shows(
    workspace: Workspace, client: Client
) -> None:
    run = client.run(workspace.exec("echo secret; echo more").run_id)
    private = signatures.decode_key(django_settings.SVC_RECORD_SIGNING_KEY)
    public = base64.b64encode(signatures.public_key_of(private)).decode()
    good = run.verify(public)
    assert (good.ok, good.key_was_known) == (True, True), good.message
    assert not run.verify().key_was_known
    other = base64.b64encode(bytes(32)).decode()
    assert "another key" in run.verify(other).message
    lines = list(run.export())
    assert good.events == len(lines) - 2
    for place in range(len(lines)):
        assert not check_export(lines[:place] + lines[place + 1 :], public).ok
        middle = len(lines[place]) // 2
        for byte in (10, middle, len(lines[place]) - 10):
            changed = bytearray(lines[place])
            changed[byte] ^= 1
            tampered = [*lines[:place], bytes(changed), *lines[place + 1 :]]
            assert not check_export(tampered, public).ok, (place, byte)


# ---------------------------------------------------------------- life


def test_a_workspace_is_made_found_stopped_started_and_deleted(client: Client) -> None:
    seen: list[str] = []
    output: list[str] = []
    setup = [{"id": "greet", "run": "echo built; touch kept"}]
    workspace = client.create(
        {**HARNESS, "lifecycle": {"setup": setup}, "runtime": {"persistence": "persistent"}},
        repository="tests/life",
        name="Life",
        on_status=lambda info: seen.append(info.status),
        on_output=output.append,
        timeout=LONG_WAIT,
    )
    assert seen[-1] == "ready"
    assert set(seen[:-1]) <= {"queued", "running"}
    printed = b""
    for event in workspace.follow():
        printed += event.content
        if b"built\n" in printed:
            break
    assert "".join(output) in printed.decode()
    assert client.connect(workspace.id).info == workspace.info
    workspace.rename("Long life")
    assert "Long life" in [each.name for each in client.workspaces("ready")]
    assert workspace.set_ttl(7200).expires_at is not None
    assert workspace.stop().status == "stopped"
    with pytest.raises(Conflict) as caught:
        workspace.exec("true")
    assert caught.value.code == "workspace-not-ready"
    assert workspace.start(timeout=LONG_WAIT).status == "ready"
    assert workspace.exec(["ls"]).stdout == "kept\n"
    assert workspace.delete().status == "deleted"
    assert workspace.id in [each.id for each in client.workspaces("deleted")]
    assert workspace.events()[0]["type"] == "workspace.deleted"


def test_a_workspace_that_fails_says_why(client: Client) -> None:
    blueprint = {**HARNESS, "lifecycle": {"setup": [{"id": "fail", "run": "exit 9"}]}}
    with pytest.raises(NotReady) as caught:
        client.create(blueprint, repository="tests/fails", timeout=LONG_WAIT)
    assert caught.value.code == caught.value.workspace.raw["error"]["code"]
    assert caught.value.workspace.status == "failed"


def test_a_wrong_blueprint_names_every_fault(client: Client) -> None:
    with pytest.raises(InvalidRequest) as caught:
        client.create({"harness": {"id": "shell", "no": 1}, "neither": 2}, repository="tests/no")
    assert caught.value.code == "validation-failed"
    assert {each["pointer"] for each in caught.value.errors} == {
        "/spec/harness/no",
        "/spec/neither",
    }
    assert "/spec/neither" in str(caught.value)


def test_another_owners_workspace_is_not_there(
    api_process: ApiProcess, workspace: Workspace
) -> None:
    with Client(api_process.url, "usr_other") as other, pytest.raises(NotFound):
        other.connect(workspace.id)


def test_owner_and_registry_are_those_of_the_environment_unless_given(
    api_process: ApiProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SVC_OWNER_USER_ID", raising=False)
    monkeypatch.delenv("SVC_OWNER", raising=False)
    assert Client().owner == "usr_local"
    monkeypatch.setenv("SVC_OWNER", "usr_older")
    assert Client().owner == "usr_older"
    monkeypatch.setenv("SVC_OWNER_USER_ID", OWNER)
    monkeypatch.setenv("SVC_REGISTRY_ID", "elsewhere")
    assert Client(owner="").owner == ""
    with Client(api_process.url) as client:
        assert client.owner == OWNER
        with pytest.raises(NotFound) as caught:
            client.create(HARNESS)
        assert caught.value.code == "registry-not-found"
        with pytest.raises(InvalidRequest):  # of the blueprint: this registry is there
            client.create({"neither": 2}, registry=django_settings.REGISTRY_NAME)


# ---------------------------------------------------------------- asyncio


def test_the_client_for_asyncio_does_the_same(
    api_process: ApiProcess, workspace: Workspace, tmp_path: Path
) -> None:
    async def work() -> None:
        async with AsyncClient(api_process.url, OWNER) as client:
            there = await client.connect(workspace.id)
            told: list[str] = []

            async def heard(text: str) -> None:
                told.append(text)

            several = (there.exec(["echo", str(number)]) for number in range(5))
            assert [each.stdout for each in await asyncio.gather(*several)] == [
                f"{number}\n" for number in range(5)
            ]
            await there.exec("echo one; echo two", on_stdout=heard)
            assert "".join(told) == "one\ntwo\n"
            with io.BytesIO(b"x" * 600_000) as file:
                await there.files.write("async.bin", file)
            await there.files.download("async.bin", tmp_path / "async.bin")
            assert (tmp_path / "async.bin").stat().st_size == 600_000
            run = await there.spawn(["cat"], stdin=True)
            await run.write("in", end=True)
            await run.wait()
            assert await run.scrollback() == b"in"
            assert (await run.verify()).ok

    asyncio.run(work())
