"""Files where the agent's socket cannot be reached: each call is an exec of the engine."""

from __future__ import annotations

import contextlib
import os
import tarfile
from collections.abc import Callable
from io import BytesIO
from uuid import uuid4

import pytest
from pytest_django.fixtures import Settings

from controlplane.errors import ControlPlaneError
from tests.conftest import Api
from tests.runs.agent.booted import eventually
from tests.workspaces.boxes import Box, sha256
from tests.workspaces.conftest import Launcher
from workspaces.files.services import WorkspaceFiles
from workspaces.runtimes.docker.agent_socket import SocketChannel

pytestmark = [pytest.mark.docker, pytest.mark.django_db]

SIZES = [0, 1, 4096, 65537, (3 << 20) + 1]


@pytest.fixture
def box(api: Api, make_launcher: Callable[..., Launcher], settings: Settings) -> Box:
    """A workspace that is reached by the engine alone."""
    launcher = make_launcher(agent_socket=False)
    settings.SVC_INSTANCE_ID = launcher.instance_id
    run_id = uuid4()
    return Box.of(api, launcher, run_id, launcher.launch(launcher.request(run_id)))


@pytest.fixture
def files(box: Box) -> WorkspaceFiles:
    return WorkspaceFiles(
        adapter=box.launcher.adapter, run_id=box.run_id, by="usr_test", request_id="test"
    )


def content_of(files: WorkspaceFiles, action: str, path: bytes) -> bytes:
    with contextlib.closing(files.open(action, path)) as call:
        assert not isinstance(call._channel, SocketChannel)
        call.answer()
        return b"".join(call.content())


def test_what_is_written_is_read_back_and_recorded(box: Box, files: WorkspaceFiles) -> None:
    for size in SIZES:
        content, name = os.urandom(size), f"file-{size}"
        stored = files.write(name.encode(), BytesIO(content))
        assert stored == {"size": size, "sha256": sha256(content), "created": True}
        assert box.run(f"sha256sum < {name}").split()[0] == sha256(content)
        assert content_of(files, "read", name.encode()) == content
    assert box.run("stat -c %U:%a file-1").strip() == "workspace:644"
    actions = [each["action"] for each in box.accesses()]
    assert actions == ["write", "read"] * len(SIZES)


def test_folders_are_listed_packed_unpacked_and_removed(box: Box, files: WorkspaceFiles) -> None:
    files.ask("mkdir", b"from/a", parents=True)
    files.write(b"from/a/file", BytesIO(b"content"))
    packed = content_of(files, "pack", b"from")
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        assert archive.getnames() == [".", "a", "a/file"]
    assert files.unpack(b"to", BytesIO(packed)) == {"files": 1, "size": len(packed)}
    listed = files.list_folder(b"to/a", limit=10, after=None)
    assert [each["name"] for each in listed["items"]] == ["file"]
    files.move(b"to/a/file", b"to/b", overwrite=False)
    assert files.stat(b"to/b", with_hash=True)["sha256"] == sha256(b"content")
    files.ask("remove", b"from", recursive=True)
    assert box.run("find . | sort").split() == [".", "./to", "./to/a", "./to/b"]
    assert files.ports() == []


def test_refusals_have_the_codes_that_they_have_otherwise(box: Box, files: WorkspaceFiles) -> None:
    with pytest.raises(ControlPlaneError) as absent:
        content_of(files, "read", b"none")
    with pytest.raises(ControlPlaneError) as denied:
        files.write(b"/etc/new", BytesIO(b"x" * (1 << 20)))
    with pytest.raises(ControlPlaneError) as changed:
        files.write(b"file", BytesIO(b"x"), ifMatch=["0"])
    found = [each.value.code for each in (absent, denied, changed)]
    assert found == ["file-not-found", "file-permission-denied", "precondition-failed"]


def test_an_upload_that_breaks_off_changes_nothing(box: Box, files: WorkspaceFiles) -> None:
    files.write(b"file", BytesIO(b"old"))
    for path in (b"file", b"new/folder/file"):
        call = files.open("write", path)
        call.answer()
        call._send(b"D", b"half of it" * 10_000)
        call.close()
    running = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"
    eventually(lambda: "agent files" not in box.run(running, user="root"))
    assert content_of(files, "read", b"file") == b"old"
    assert box.run("ls").split() == ["file"]
    assert box.left_behind() == ""


def test_a_workspace_that_is_gone_is_told_as_such(box: Box, files: WorkspaceFiles) -> None:
    box.launcher.container(box.runtime).remove(force=True, v=True)
    for attempt in (lambda: files.stat(b".", with_hash=False), files.ports):
        with pytest.raises(ControlPlaneError) as raised:
            attempt()
        assert raised.value.code == "workspace-unreachable"
