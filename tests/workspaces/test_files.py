"""The files of a workspace over the API: read, written, listed, moved and removed."""

from __future__ import annotations

import base64
import os
from typing import Any
from uuid import uuid4

import pytest

from tests.conftest import OWNER, Api
from tests.workspaces.boxes import HOME, Box, sha256
from workspaces.models import Workspace

pytestmark = [pytest.mark.docker, pytest.mark.django_db]

SIZES = [0, 1, 4095, 4096, 4097, 65535, 65536, 65537, 3 * 1024 * 1024 + 1]


def test_what_is_written_is_read_back_byte_for_byte(box: Box) -> None:
    for size in SIZES:
        content = os.urandom(size)
        stored = box.put(f"file-{size}", content)
        assert stored.body == {"size": size, "sha256": sha256(content), "created": True}
        assert stored.headers["ETag"] == f'"{sha256(content)}"'
        read = box.get(f"{HOME}/file-{size}")
        assert (read.content, read.headers["ETag"]) == (content, stored.headers["ETag"])
        assert read.headers["Content-Length"] == str(size)
        assert box.run(f"sha256sum < file-{size}").split()[0] == sha256(content)
    assert box.run("stat -c %U:%G:%a file-1").strip() == "workspace:workspace:644"
    assert box.left_behind() == ""


def test_the_location_of_a_new_file_is_where_it_is_read(box: Box) -> None:
    for path in ("file", f"{HOME}/a/b", "käse & wein?.txt", "100%", "two\nlines"):
        made = box.put(path, path.encode())
        assert made.headers["Location"].startswith(f"/v1/workspaces/{box.workspace_id}/files?path=")
        assert box.api.get(made.headers["Location"]).content == path.encode()
        assert "Location" not in box.put(path, b"", expect=200).headers
    # A proxy would refuse an answer with a longer header, though the file is stored.
    assert "Location" not in box.put("/".join(["名" * 80] * 12), b"").headers


@pytest.mark.slow
def test_a_hundred_mebibytes_arrive_as_they_were(box: Box) -> None:
    content = os.urandom(1 << 20) * 100
    assert box.put("large", content).body["sha256"] == sha256(content)
    assert box.run("sha256sum < large").split()[0] == sha256(content)
    assert sha256(box.get("large").content) == sha256(content)


def test_a_file_is_replaced_with_its_permissions_kept_or_changed(box: Box) -> None:
    box.run("echo old > script && chmod 750 script && ln script other && ln -s script link")
    assert box.put("script", b"new", expect=200).body["created"] is False
    assert box.run("stat -c %a script; cat script; echo; cat other").split() == [
        "750",
        "new",
        "old",
    ]
    box.put("link", b"through", expect=200)
    assert box.run("cat script; readlink link").split() == ["throughscript"]
    box.put("script", b"#!", expect=200, mode="700")
    assert box.run("stat -c %a script").strip() == "700"
    refused = box.put("script", b"#!", expect=400, mode="4755")
    assert refused.codes == {"mode": "invalid"}
    assert "755" in refused.body["errors"][0]["detail"]


def test_missing_folders_are_made_and_taken_back_when_nothing_is_stored(box: Box) -> None:
    box.put("a/b/c", b"x")
    assert box.run("stat -c %U:%a a/b").strip() == "workspace:755"
    refused = box.put("d/e/f", b"x", headers={"If-Match": '"0"'}, expect=412)
    assert refused.body["code"] == "precondition-failed"
    box.stat("d", expect=404)
    assert box.put("a/b/c/d", b"x", expect=404).body["code"] == "file-not-found"
    assert box.put("a/b", b"x", expect=409).body["code"] == "not-a-file"


RANGES = {
    "bytes=0-0": (0, 1),
    "bytes=2-4": (2, 5),
    "bytes=5-": (5, 10),
    "bytes=-3": (7, 10),
    "bytes=-100": (0, 10),
    "bytes=8-100": (8, 10),
    "bytes=0-9": (0, 10),
}


def test_a_range_of_a_file_is_sent_alone(box: Box) -> None:
    content = b"0123456789"
    box.put("digits", content)
    for asked, (start, end) in RANGES.items():
        part = box.get("digits", headers={"Range": asked}, expect=206)
        assert part.content == content[start:end]
        assert part.headers["Content-Range"] == f"bytes {start}-{end - 1}/10"
        assert part.headers["ETag"] == f'"{sha256(content)}"'
    for senseless in ("bytes=4-2", "bytes=-", "items=0-1", "bytes=0-1,3-4", "bytes=x-y"):
        assert box.get("digits", headers={"Range": senseless}).content == content
    for asked in ("bytes=10-", "bytes=-0"):
        late = box.get("digits", headers={"Range": asked}, expect=416)
        assert late.body["code"] == "range-not-satisfiable"
        assert late.headers["Content-Range"] == "bytes */10"


def test_a_range_belongs_to_the_content_that_was_named(box: Box) -> None:
    box.put("digits", b"0123456789")
    tag = f'"{sha256(b"0123456789")}"'
    same = {"Range": "bytes=0-1", "If-Range": tag}
    assert box.get("digits", headers=same, expect=206).content == b"01"
    for other in ('"0"', f"W/{tag}", "Mon, 23 Nov 2026 12:00:00 GMT"):
        given = {"Range": "bytes=0-1", "If-Range": other}
        assert box.get("digits", headers=given).content == b"0123456789"


def test_conditions_on_the_hash_decide_reads_writes_and_removals(box: Box) -> None:
    old, new = f'"{sha256(b"old")}"', f'"{sha256(b"new")}"'
    box.put("file", b"old", headers={"If-None-Match": "*"})
    box.put("file", b"new", headers={"If-None-Match": "*"}, expect=412)
    box.put("file", b"new", headers={"If-Match": new}, expect=412)
    box.put("none", b"new", headers={"If-Match": "*"}, expect=412)
    assert box.get("file", headers={"If-None-Match": old}, expect=304).content == b""
    assert box.get("file", headers={"If-None-Match": new}).content == b"old"
    box.get("file", headers={"If-Match": new}, expect=412)
    box.put("file", b"new", headers={"If-Match": f'"0", {old}'}, expect=200)
    box.run("chmod 444 file")
    box.put("file", b"newer", headers={"If-Match": new}, expect=403)
    box.delete("file", headers={"If-Match": old}, expect=412)
    box.delete("file", headers={"If-Match": new})
    senseless = box.get("file", headers={"If-Match": "sha256"}, expect=400)
    assert (senseless.body["code"], senseless.codes) == (
        "bad-condition",
        {"If-Match": "bad-condition"},
    )


def test_a_condition_on_content_does_not_hold_for_a_folder_in_the_files_place(box: Box) -> None:
    tag = f'"{sha256(b"old")}"'
    box.run("mkdir -p file && echo kept > file/kept")
    for given in ({"If-Match": tag}, {"If-None-Match": "*"}):
        refused = box.delete("file", recursive="true", headers=given, expect=412)
        assert refused.body["code"] == "precondition-failed"
    assert box.run("cat file/kept") == "kept\n"
    box.delete("file", recursive="true", headers={"If-Match": "*"})


def test_a_slash_behind_a_link_never_removes_what_it_leads_to(box: Box) -> None:
    box.run("mkdir folder && echo kept > folder/kept && ln -s folder link && echo 1 > file")
    for path in ("link/", "link//", "file/"):
        refused = box.delete(path, recursive="true", expect=409)
        assert refused.body["code"] == "not-a-directory"
    assert box.run("cat folder/kept; readlink link; cat file").split() == ["kept", "folder", "1"]
    box.delete("link")
    box.delete("folder/./", recursive="true")
    assert box.run("ls").split() == ["file"]


def test_a_head_request_tells_all_but_the_content(box: Box) -> None:
    box.put("file", b"content")
    answer = box.api.request("HEAD", box.path(path="file"), expect=200)
    assert answer.content == b""
    assert answer.headers["ETag"] == f'"{sha256(b"content")}"'
    assert answer.headers["Content-Length"] == "7"
    box.api.request("HEAD", box.path(path="none"), expect=404)


def test_a_folder_is_listed_page_by_page(box: Box) -> None:
    box.run("mkdir many && cd many && touch $(seq -w 0 24) && mkdir folder && ln -s folder link")
    names, pages = [], 0
    cursor: str | None = ""
    while cursor is not None:
        more: dict[str, Any] = {"cursor": cursor} if cursor else {}
        page = box.list_folder("many", limit=10, **more)
        names += [(item["name"], item["type"]) for item in page["items"]]
        cursor, pages = page.get("nextCursor"), pages + 1
    assert pages == 3
    files = [(f"{number:02}", "file") for number in range(25)]
    assert names == [*files, ("folder", "directory"), ("link", "symlink")]
    assert box.list_folder("many/folder") == {"items": []}
    (link,) = [each for each in box.list_folder("many")["items"] if each["name"] == "link"]
    assert link["target"] == "folder"
    assert box.list_folder("many/00", expect=409)["code"] == "not-a-directory"
    assert box.list_folder("none", expect=404)["code"] == "file-not-found"


def test_what_lies_at_a_path_is_told(box: Box) -> None:
    box.put("file", b"content", mode="640")
    box.run("mkfifo fifo; ln -s nowhere link")
    told = box.stat("file", hash="true")
    assert (told["name"], told["type"], told["size"], told["mode"]) == ("file", "file", 7, "0640")
    assert (told["sha256"], told["uid"]) == (sha256(b"content"), 1000)
    assert box.stat("fifo")["type"] == "fifo"
    assert "sha256" not in box.stat("fifo", hash="true")
    assert (box.stat("link")["type"], box.stat("link")["target"]) == ("symlink", "nowhere")
    assert (box.stat("/")["type"], box.stat("/")["name"]) == ("directory", "/")


def test_files_and_folders_are_moved_made_and_removed(box: Box) -> None:
    box.post("mkdir", path="a")
    assert box.post("mkdir", path="a", expect=409).body["code"] == "file-exists"
    box.post("mkdir", path="a", parents=True)
    assert box.post("mkdir", path="x/y", expect=404).body["code"] == "file-not-found"
    box.post("mkdir", path="x/y", parents=True)
    box.put("a/one", b"1")
    box.put("two", b"2")
    taken = box.post("move", fromPath="a/one", toPath="two", expect=409)
    assert taken.body["code"] == "file-exists"
    box.post("move", fromPath="a/one", toPath="two", overwrite=True)
    assert box.get("two").content == b"1"
    box.post("move", fromPath="x", toPath="a/x")
    inside = box.post("move", fromPath="a", toPath="a/x/a", expect=400)
    assert inside.body["code"] == "bad-path"
    assert box.delete("a", expect=409).body["code"] == "directory-not-empty"
    box.delete("a/x/y")
    box.delete("a", recursive="true")
    box.stat("a", expect=404)
    assert box.delete("/", recursive="true", expect=403).body["code"] == "file-permission-denied"
    other = box.post("move", fromPath="two", toPath="/dev/shm/two", expect=409)
    assert other.body["code"] == "file-other-disk"


def test_names_that_are_no_utf_8_are_told_and_reached_as_bytes(box: Box) -> None:
    box.run(r"printf odd > $'\xff\xfe'; printf even > $'k\xc3\xa4se \n'; ln -s $'\xff\xfe' link")
    found = {each["name"]: each for each in box.list_folder(".")["items"]}
    odd = found["\ufffd\ufffd"]
    assert base64.b64decode(odd["nameBase64"]) == b"\xff\xfe"
    assert "nameBase64" not in found["käse \n"]
    assert base64.b64decode(found["link"]["targetBase64"]) == b"\xff\xfe"
    assert box.get("käse \n").content == b"even"
    put = box.path(pathBase64=base64.b64encode(b"\xff\xfd").decode())
    made = box.api.request(
        "PUT", put, raw=b"other", content_type="application/octet-stream", expect=201
    )
    assert box.api.get(made.headers["Location"]).content == b"other"
    encoded = base64.urlsafe_b64encode(b"\xff\xfe").decode()
    assert box.get("", pathBase64=encoded).content == b"odd"
    (event,) = [each for each in box.accesses() if each["action"] == "read" and each["size"] == 3]
    assert base64.b64decode(event["path"]["base64"]) == f"{HOME}/".encode() + b"\xff\xfe"


def test_every_access_is_in_the_record_before_it_is_answered(box: Box) -> None:
    box.put("file", b"content")
    headers = {"Range": "bytes=2-3", "x-request-id": "the-read"}
    box.get("file", headers=headers, expect=206)
    box.post("move", fromPath="file", toPath="there")
    box.delete("there")
    box.list_folder(".")
    box.get("there", expect=404)
    told = box.accesses()
    assert [each["action"] for each in told] == ["write", "read", "move", "remove", "list"]
    write, read = told[0], told[1]
    assert write["path"] == f"{HOME}/file"
    assert (write["size"], write["sha256"], write["by"]) == (7, sha256(b"content"), OWNER)
    assert (read["from"], read["to"], read["request"]) == (2, 4, "the-read")
    assert told[2]["to"] == f"{HOME}/there"


def test_a_path_is_given_once_and_can_be_one(box: Box) -> None:
    def codes(**query: Any) -> dict[str, str]:
        return box.api.get(box.path(**query), expect=400).codes

    assert codes() == {"path": "required"}
    assert codes(path="") == {"path": "blank"}
    assert codes(path="a", pathBase64="YQ") == {"pathBase64": "ambiguous-path"}
    assert codes(pathBase64="AA==") == {"pathBase64": "invalid-base64"}
    assert codes(path="ä" * 2049) == {"path": "max-bytes"}
    faults = box.api.get(box.path(path="a\0b"), expect=400).body["errors"]
    assert "invalid-character" in {fault["code"] for fault in faults}
    assert codes(path="a", depth="2") == {"depth": "unknown-parameter"}
    long = box.get("x" * 256, expect=400)
    assert long.body["code"] == "file-name-too-long"


def test_the_files_of_others_are_as_absent_as_unknown_ones(box: Box) -> None:
    box.put("file", b"content")
    for known in (box.workspace_id, uuid4()):
        for path in ("files", "files/list", "files/stat", "archive", "ports"):
            query = "ownerUserId=usr_other" + ("" if path == "ports" else "&path=.")
            answer = box.api.get(f"/v1/workspaces/{known}/{path}?{query}", expect=404)
            assert answer.body["code"] == "workspace-not-found"
    assert [each["action"] for each in box.accesses()] == ["write"]


def test_a_workspace_that_does_not_run_has_no_files(api: Api, request_body: dict[str, Any]) -> None:
    workspace = api.post("/v1/workspaces", request_body).body["workspaceId"]
    query = f"?ownerUserId={OWNER}&path=file"
    answer = api.get(f"/v1/workspaces/{workspace}/files{query}", expect=409)
    assert answer.body["code"] == "workspace-not-ready"
    assert Workspace.objects.filter(pk=workspace).exists()


def test_a_container_that_is_gone_is_told_as_such(box: Box) -> None:
    box.launcher.container(box.runtime).remove(force=True, v=True)
    assert box.get("file", expect=502).body["code"] == "workspace-unreachable"
    answer = box.api.get(box.path("ports"), expect=502)
    assert answer.body["code"] == "workspace-unreachable"


def test_what_listens_is_told_with_its_process(box: Box) -> None:
    serve = (
        "import socket,time\n"
        "a=socket.create_server(('127.0.0.1',8001))\n"
        "b=socket.create_server(('::',8002),family=socket.AF_INET6)\n"
        "open('ready','w').close(); time.sleep(600)"
    )
    box.put("serve.py", serve.encode())
    box.run("setsid python3 serve.py </dev/null >log 2>&1 & disown")
    box.run("until [ -e ready ]; do sleep 0.05; done")
    ports = box.api.get(box.path("ports")).body["items"]
    assert [(each["port"], each["address"]) for each in ports] == [
        (8001, "127.0.0.1"),
        (8002, "::"),
    ]
    assert {each["process"] for each in ports} == {"python3"}
    pid = ports[0]["pid"]
    assert "serve.py" in box.run(f"tr '\\0' ' ' < /proc/{pid}/cmdline")
