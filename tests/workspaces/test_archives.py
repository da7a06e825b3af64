"""Folders as tar streams, both ways, and archives that are meant to do harm."""

from __future__ import annotations

import base64
import io
import json
import os
import tarfile
from collections.abc import Callable
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from tests.conftest import Api
from tests.support.removal import remove_container
from tests.workspaces.boxes import Box, sha256
from tests.workspaces.conftest import Launcher
from workspaces.runtimes.base import Volume

pytestmark = [pytest.mark.docker, pytest.mark.django_db]


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, **values: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.mode, made.mtime = kind, 0o644, 1_700_000_000
    for each, value in values.items():
        setattr(made, each, value)
    return made


SUMMED = (
    "(find . -mindepth 1 -printf '%P %y %m %l\\n' | sort; "
    "find . -type f -exec sha256sum {} + | sort) | base64"
)


def test_a_folder_is_packed_and_unpacked_as_it_was(box: Box) -> None:
    content = os.urandom(3 << 20)
    box.put("from/large", content)
    box.run(
        r"cd from && mkdir -p a/b empty && printf x > a/b/$'\xff' && printf y > "
        + "n" * 200
        + " && ln -s /etc/hostname out && ln -s a in && mkfifo fifo && chmod 711 a"
        " && chmod 500 empty && touch zero && chmod 755 large"
    )
    packed = box.pack("from")
    assert packed.headers["Content-Type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(packed.content)) as archive:
        found = archive.extractfile("large")
        assert found is not None
        assert found.read() == content
        assert "fifo" not in archive.getnames()
    told = box.unpack("to/here", packed.content)
    assert told.body == {"files": 6, "size": len(packed.content)}
    box.run("rm from/fifo")
    before, after = (box.run(f"cd {folder} && {SUMMED}") for folder in ("from", "to/here"))
    assert after == before
    assert box.left_behind() == ""
    actions = [each["action"] for each in box.accesses()]
    assert actions == ["write", "pack", "unpack"]
    assert box.accesses()[-1]["sha256"] == sha256(packed.content)


def test_what_comes_in_is_put_among_what_is_there(box: Box) -> None:
    box.run("mkdir -p into/a && echo old > into/a/one && echo kept > into/a/two")
    box.unpack("into", tar((member("a/one"), b"new\n"), (member("b/three"), b"3\n")))
    assert box.run("cat into/a/one into/a/two into/b/three").split() == ["new", "kept", "3"]
    file = box.pack("into/a/two")
    with tarfile.open(fileobj=io.BytesIO(file.content)) as archive:
        assert archive.getnames() == ["two"]


HARMFUL: dict[str, Callable[[], bytes]] = {
    "a name above": lambda: tar((member("ok"), b"1"), (member("../above"), b"2")),
    "an absolute name": lambda: tar((member("ok"), b"1"), (member("/tmp/absolute"), b"2")),
    "through its own link": lambda: tar(
        (member("link", tarfile.SYMTYPE, linkname="/tmp"), b""), (member("link/through"), b"2")
    ),
    "a hard link out": lambda: tar((member("h", tarfile.LNKTYPE, linkname="../../x"), b"")),
    "a hard link to nothing": lambda: tar((member("h", tarfile.LNKTYPE, linkname="none"), b"")),
    "a device": lambda: tar((member("ok"), b"1"), (member("null", tarfile.CHRTYPE), b"")),
    "a FIFO": lambda: tar((member("ok"), b"1"), (member("fifo", tarfile.FIFOTYPE), b"")),
    "the end missing": lambda: tar((member("ok"), b"1"), (member("x"), b"2" * 9000))[:6000],
    "no tar": lambda: b"this is no tar" * 100,
    "a file and a folder": lambda: tar((member("a/b"), b"1"), (member("a"), b"2")),
}


def test_an_archive_that_does_harm_changes_nothing(box: Box) -> None:
    box.run("mkdir into && echo kept > into/ok")
    for what, make in HARMFUL.items():
        answer = box.unpack("into", make(), expect=400)
        assert answer.body["code"] == "bad-archive", what
    assert box.unpack("into", tar((member("x" * 256), b"1")), expect=400).body["code"] == (
        "file-name-too-long"
    )
    in_the_way = box.unpack("into", tar((member("new"), b"1"), (member("ok/x"), b"2")), expect=409)
    assert in_the_way.body["code"] == "file-exists"
    assert box.run("ls -A into; cat into/ok").split() == ["ok", "kept"]
    box.unpack("new/folder", HARMFUL["a device"](), expect=400)
    assert box.run("ls").split() == ["into"]
    assert box.left_behind() == ""
    assert not [each for each in box.accesses() if each["action"] == "unpack"]


MOUNTED = {
    "a disk of its own": ["/workspace/repo/into/disk"],
    "a second mount of the same disk": ["/workspace/repo", "/workspace/repo/into/disk"],
}


@pytest.mark.parametrize("places", MOUNTED.values(), ids=MOUNTED)
def test_an_archive_that_goes_to_two_mounts_changes_neither(
    api: Api, launcher: Launcher, settings: Settings, places: list[str]
) -> None:
    settings.SVC_INSTANCE_ID = launcher.instance_id
    mounted = tuple(Volume(f"v{number}", place) for number, place in enumerate(places))
    request = launcher.request(volumes=mounted)
    try:
        box = Box.of(api, launcher, request.run_id, launcher.launch(request))
        box.run("chown workspace . into into/disk", user="root")
        box.run("echo old > into/kept")
        many = [(member(f"{number}"), b"new") for number in range(20)]
        content = tar(*many, (member("kept"), b"new"), (member("disk/x"), b"new"))
        refused = box.unpack("into", content, expect=409)
        assert refused.body["code"] == "file-other-disk"
        assert "into/disk" in refused.body["detail"]
        assert box.run("find into -type f; cat into/kept").split() == ["into/kept", "old"]
        assert box.left_behind("/workspace/repo /workspace/repo/into/disk") == ""
        assert not [each for each in box.accesses() if each["action"] == "unpack"]
        box.unpack("into/disk", tar((member("x"), b"new")))
        box.unpack("into", tar((member("kept"), b"new"), (member("disk", tarfile.DIRTYPE), b"")))
    finally:
        for container in launcher.containers():
            remove_container(container)
        launcher.adapter.remove_volumes(request.workspace_id)


def test_an_archive_that_goes_where_the_user_may_not_write_changes_nothing(box: Box) -> None:
    box.run("mkdir -p into/theirs && echo old > into/kept")
    box.run("chown root into/theirs && chmod 755 into/theirs", user="root")
    many = [(member(f"{number}"), b"new") for number in range(20)]
    content = tar(*many, (member("kept"), b"new"), (member("theirs/x"), b"new"))
    refused = box.unpack("into", content, expect=403)
    assert refused.body["code"] == "file-permission-denied"
    assert "into/theirs" in refused.body["detail"]
    assert box.run("find into -type f; cat into/kept").split() == ["into/kept", "old"]
    assert box.left_behind() == ""


def test_an_archive_that_is_refused_half_way_is_taken_back(box: Box) -> None:
    box.run("mkdir into && cd into && for n in $(seq 0 19); do echo old > $n; done; mkdir sub")
    # Nobody but its owner may replace a file in such a folder.
    box.run("echo theirs > into/theirs; chown root into; chmod 1777 into", user="root")
    before = box.run("find into | sort; cat into/*[0-9] into/theirs")
    members = [(member(f"{number}"), b"new") for number in range(40)]
    content = tar(*members, (member("theirs"), b"new"), (member("sub/x"), b"new"))
    refused = box.unpack("into", content, expect=403)
    assert refused.body["code"] == "file-permission-denied"
    assert box.run("find into | sort; cat into/*[0-9] into/theirs") == before
    assert box.left_behind() == ""


def test_the_end_of_the_workspace_takes_an_archive_back_that_was_coming(box: Box) -> None:
    path = base64.b64encode(f"{box.home}/to".encode()).decode()
    spec = json.dumps({"action": "unpack", "path": path}).encode()
    begun = tar((member("large"), bytes(100_000)))[:50_000]
    sent = b"".join(
        kind + len(content).to_bytes(4, "big") + content
        for kind, content in ((b"S", spec), (b"D", begun))
    )
    # PID 1 sends both to everything there is, the one behind the other.
    box.run(
        "mkfifo /tmp/frames; /usr/lib/svc/agent files </tmp/frames >/tmp/told & "
        "exec 3>/tmp/frames; "
        f"echo {base64.b64encode(sent).decode()} | base64 -d >&3; "
        "until ls to/.svc-upload-*/large; do sleep 0.01; done; "
        "kill -TERM $!; kill -HUP $!; wait $! || true; ! ls -d to",
        user="root",
    )
    assert box.left_behind() == ""


def test_an_archive_may_name_a_folder_that_is_somebody_elses(box: Box) -> None:
    box.run("mkdir -p into/shared")
    box.run("chown root into/shared; chmod 777 into/shared", user="root")
    shared = member("shared", tarfile.DIRTYPE)
    box.unpack("into", tar((shared, b""), (member("shared/x"), b"new")))
    assert box.run("cat into/shared/x; stat -c %U:%a into/shared").split() == ["newroot:777"]


def test_what_no_archive_may_hold_is_refused_when_asked_for_alone(box: Box) -> None:
    box.run(
        "mkfifo fifo; ln -s fifo link; python3 -c 'import socket; "
        'socket.socket(socket.AF_UNIX).bind("socket")\''
    )
    for path, kind in {"fifo": "fifo", "link": "fifo", "socket": "socket"}.items():
        refused = box.pack(path, expect=409)
        assert refused.body["code"] == "not-a-file"
        assert kind in refused.body["detail"]
    assert box.accesses() == []


def test_what_the_user_may_not_read_is_told_before_anything_is_sent(box: Box) -> None:
    box.run("mkdir from && cd from && echo 1 > mine && ln -s /root link")
    box.run("echo 2 > from/theirs && chmod 600 from/theirs", user="root")
    answer = box.pack("from", expect=403)
    assert answer.body["code"] == "file-permission-denied"
    assert "theirs" in answer.body["detail"]
    assert box.pack("none", expect=404).body["code"] == "file-not-found"


def test_a_damaged_archive_is_not_taken_for_one_that_ends_there(box: Box) -> None:
    whole = tar((member("first"), b"1"), (member("second"), b"2"), (member("third"), b"3"))
    header = whole.index(b"second")
    damaged = whole[:header] + b"\xff" * 300 + whole[header + 300 :]
    assert box.unpack("to", damaged, expect=400).body["code"] == "bad-archive"
    assert box.unpack("to", whole[: header + 100], expect=400).body["code"] == "bad-archive"
    box.stat("to", expect=404)
    assert box.left_behind() == ""


def test_an_archive_that_is_cut_off_between_two_members_changes_nothing(box: Box) -> None:
    whole = tar((member("first"), b"1"), (member("second"), b"2"))
    box.run("mkdir to && echo kept > to/first")
    for cut in (whole[:1024], whole[:2048], b""):
        assert box.unpack("to", cut, expect=400).body["code"] == "bad-archive"
    assert box.run("ls -A to; cat to/first").split() == ["first", "kept"]
    assert box.left_behind() == ""
    # One block of zeros is an end, and so is an archive of nothing else.
    assert box.unpack("to", whole[: 2048 + 512]).body["files"] == 2
    assert box.unpack("to", bytes(512)).body["files"] == 0


@pytest.mark.parametrize("mtime", [float("nan"), float("inf"), -1.0, 2.0**70])
def test_a_time_that_cannot_be_is_left_out(box: Box, mtime: float) -> None:
    folder = member("folder", tarfile.DIRTYPE, mode=0o755)
    folder.pax_headers = {"mtime": str(mtime)}
    file = member("folder/file")
    file.pax_headers = {"mtime": str(mtime)}
    assert box.unpack("to", tar((folder, b""), (file, b"x"))).body["files"] == 1
    assert box.get("to/folder/file").content == b"x"


def test_folders_that_the_archive_does_not_list_can_be_entered_by_others(box: Box) -> None:
    box.unpack("to", tar((member("a/b/c"), b"x")))
    assert box.run("stat -c %a to/a to/a/b") == "755\n755\n"


def test_a_hard_link_to_the_folder_itself_is_refused(box: Box) -> None:
    link = member("link", tarfile.LNKTYPE, linkname=".")
    assert box.unpack("to", tar((link, b"")), expect=400).body["code"] == "bad-archive"
