"""Files that fight back: links, FIFOs, devices, full disks, clients that leave, many at once."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any
from uuid import uuid4

import pytest
from pytest_django.fixtures import Settings

from tests.conftest import Api
from tests.runs.agent.booted import RECORD
from tests.support.waiting import LONG_WAIT
from tests.workspaces.boxes import Box, sha256
from tests.workspaces.conftest import Launcher
from workspaces.files.services import WorkspaceFiles

pytestmark = [pytest.mark.docker, pytest.mark.django_db]


def files_of(box: Box) -> WorkspaceFiles:
    return WorkspaceFiles(
        adapter=box.launcher.adapter, run_id=box.run_id, by="usr_test", request_id="test"
    )


def eventually(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + LONG_WAIT
    while not condition():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.05)


def test_links_lead_as_far_as_the_user_may_go_and_no_further(box: Box) -> None:
    box.run("echo secret > /etc/secret && chmod 600 /etc/secret", user="root")
    box.run("ln -s /etc/secret secret; ln -s /etc/hostname name; ln -s loop loop; ln -s /etc etc")
    assert box.get("name").content == box.run("cat /etc/hostname").encode()
    for path in ("secret", "/etc/shadow", "../../etc/shadow", "/proc/1/environ"):
        assert box.get(path, expect=403).body["code"] == "file-permission-denied"
    for path in ("secret", "etc/passwd", "/etc/new", "/usr/bin/bash"):
        assert box.put(path, b"x", expect=403).body["code"] == "file-permission-denied"
    assert box.get("loop", expect=400).body["code"] == "file-link-loop"
    box.delete("secret")
    assert box.run("cat /etc/secret", user="root") == "secret\n"
    assert box.left_behind() == ""


def test_what_is_no_file_is_neither_opened_nor_replaced(box: Box) -> None:
    box.run(
        "mkfifo fifo; mkdir folder; python3 -c 'import socket; "
        'socket.socket(socket.AF_UNIX).bind("socket")\''
    )
    for path in ("fifo", "folder", "socket", "/dev/zero", "/dev/tty"):
        assert box.get(path, expect=409).body["code"] == "not-a-file"
        assert box.put(path, b"x", expect=409).body["code"] == "not-a-file"
    assert box.get("/proc/self/maps").content == b""
    box.delete("fifo")
    box.delete("socket")


@pytest.fixture
def small_box(api: Api, make_launcher: Callable[..., Launcher], settings: Settings) -> Box:
    """A workspace whose working directory has room for 4 MiB."""
    launcher = make_launcher()
    settings.SVC_INSTANCE_ID = launcher.instance_id
    run_id = uuid4()
    request = launcher.request(run_id, boot={"workingDirectory": "/dev/shm/small"})
    box = Box.of(api, launcher, run_id, launcher.launch(request))
    box.home = "/dev/shm/small"
    return box


def test_a_full_disk_changes_nothing(small_box: Box) -> None:
    box = small_box
    box.put("kept", b"old")
    free = int(box.run("df --output=avail -B1 /dev/shm | tail -1"))
    box.put("file", b"x" * (free - (1 << 20)))
    full = box.put("kept", b"y" * (2 << 20), expect=507)
    assert full.body["code"] == "workspace-disk-full"
    assert box.get("kept").content == b"old"
    assert box.left_behind("/dev/shm") == ""
    assert [each["action"] for each in box.accesses()] == ["write", "write", "read"]


def test_an_upload_that_breaks_off_changes_nothing(box: Box) -> None:
    box.put("file", b"old")
    for path in (b"file", b"new/folder/file"):
        call = files_of(box).open("write", path)
        call.answer()
        call._send(b"D", b"half of it" * 10_000)
        call.close()
    eventually(lambda: "agent files" not in processes(box))
    assert box.get("file").content == b"old"
    box.stat("new", expect=404)
    assert box.left_behind() == ""


def processes(box: Box) -> str:
    return box.run("cat /proc/[0-9]*/comm 2>/dev/null; true", user="root")  # some end meanwhile


def test_an_upload_whose_process_is_killed_leaves_nothing(box: Box) -> None:
    call = files_of(box).open("write", b"file")
    with contextlib.closing(call):
        call.answer()
        call._send(b"D", b"half of it" * 10_000)
        box.run("kill -9 $(grep -l 'agent files' /proc/[0-9]*/comm | cut -d/ -f3)", user="root")
        eventually(lambda: "agent files" not in processes(box))
    assert box.left_behind() == ""
    box.stat("file", expect=404)


def test_of_racing_conditional_writes_exactly_one_wins(box: Box) -> None:
    def write(number: int, **conditions: Any) -> str | None:
        try:
            content = BytesIO(b"%d" % number)
            stored = files_of(box).store("write", b"file", content, **conditions)
        except Exception as error:
            assert getattr(error, "code", "") == "precondition-failed"
            return None
        return str(stored["sha256"])

    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(lambda each: write(each, ifNoneMatch=["*"]), range(8)))
        (first,) = [sha for sha in created if sha is not None]
        changed = list(pool.map(lambda each: write(10 + each, ifMatch=[first]), range(8)))
    (second,) = [sha for sha in changed if sha is not None]
    assert sha256(box.get("file").content) == second
    assert len([each for each in box.accesses() if each["action"] == "write"]) == 2


def test_fifty_at_once_get_what_is_theirs(
    api: Api, make_launcher: Callable[..., Launcher], settings: Settings
) -> None:
    launcher = make_launcher()
    settings.SVC_INSTANCE_ID = launcher.instance_id
    run_id = uuid4()
    request = launcher.request(run_id, memory_mb=512)
    box = Box.of(api, launcher, run_id, launcher.launch(request))
    contents = {f"file-{number}": os.urandom(10_000 + number) for number in range(50)}

    def there_and_back(name: str) -> bool:
        stored = files_of(box).store("write", name.encode(), BytesIO(contents[name]))
        with contextlib.closing(files_of(box).open("read", name.encode())) as call:
            call.answer()
            read = b"".join(call.content())
        return read == contents[name] and stored["sha256"] == sha256(read)

    with ThreadPoolExecutor(50) as pool:
        assert all(pool.map(there_and_back, contents))
    assert len(box.accesses()) == 100


def test_content_that_changes_while_it_is_sent_has_no_end(box: Box) -> None:
    content = os.urandom(8 << 20)
    box.put("file", content)
    with contextlib.closing(files_of(box).open("read", b"file")) as call:
        call.answer()
        box.run("printf changed | dd of=file conv=notrunc bs=1 seek=1000 2>/dev/null")
        pieces = call.content()
        arrived: list[int] = []
        with pytest.raises(Exception, match="ended the call"):
            arrived.extend(len(piece) for piece in pieces)
    # Who has all of its bytes would take it for whole.
    assert sum(arrived) < len(content)


def test_a_log_that_grows_while_it_is_sent_arrives_as_it_was(box: Box) -> None:
    content = os.urandom(8 << 20)
    box.put("log", content)
    with contextlib.closing(files_of(box).open("read", b"log")) as call:
        call.answer()
        box.run("echo more >> log")
        assert b"".join(call.content()) == content


def test_nothing_is_done_that_cannot_be_recorded(
    api: Api, make_launcher: Callable[..., Launcher], settings: Settings
) -> None:
    launcher = make_launcher()
    settings.SVC_INSTANCE_ID = launcher.instance_id
    run_id = uuid4()
    small = {"record": {**RECORD, "spoolBytes": 65536, "segmentBytes": 16384}}
    box = Box.of(api, launcher, run_id, launcher.launch(launcher.request(run_id, boot=small)))
    path, stored = "x" * 200, 0
    refused = None
    while refused is None:
        answer = api.request(
            "PUT", box.path(path=f"{path}{stored}"), raw=b"x", content_type="text/plain"
        )
        if answer.status == 201:
            stored += 1
            assert stored < 1000, "the spool is never full"
        else:
            refused = answer
    assert (refused.status, refused.body["code"]) == (503, "access-not-recorded")
    assert api.get(box.path(path=f"{path}0"), expect=503).body["code"] == "access-not-recorded"
    assert box.run("ls | wc -l").strip() == str(stored)
    assert len(box.accesses()) == stored


def test_who_may_not_see_a_secret_finds_it_masked_in_the_record(
    api: Api, make_launcher: Callable[..., Launcher], settings: Settings
) -> None:
    launcher = make_launcher()
    settings.SVC_INSTANCE_ID = launcher.instance_id
    run_id = uuid4()
    boot = {"secrets": ["correct-horse-battery"]}
    box = Box.of(api, launcher, run_id, launcher.launch(launcher.request(run_id, boot=boot)))
    box.put("correct-horse-battery", b"x")
    (told,) = box.accesses()
    assert "correct-horse" not in json.dumps(told)
