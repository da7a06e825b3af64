"""What comes out of a workspace is read with care, and told in one bounded, readable message."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

import pytest

from workspaces.runtimes import boot


def status(**members: Any) -> boot.BootStatus:
    document = {"version": 1, "phase": "failed", "step": None, "message": "", "tail": ""} | members
    parsed = boot.parse_status(json.dumps(document).encode())
    assert parsed is not None
    return parsed


def failed_step(**members: Any) -> dict[str, Any]:
    step = {"name": "install", "kind": "setup", "index": 0}
    return step | {"exitCode": None, "signal": None, "timedOut": False} | members


@pytest.mark.parametrize(
    ("document", "code", "message"),
    [
        (
            {"step": failed_step(exitCode=2), "tail": "full disk"},
            "step-failed",
            "The setup step “install” failed with exit code 2.\nThe end of its output:\nfull disk",
        ),
        (
            {"step": failed_step(kind="startup", exitCode=137, signal="SIGKILL")},
            "step-failed",
            "The startup step “install” failed by signal SIGKILL.",
        ),
        (
            {"step": failed_step(timedOut=True, signal="SIGTERM")},
            "step-failed",
            "The setup step “install” failed because its time was over.",
        ),
        (
            {"step": failed_step(), "message": "bash is not installed"},
            "step-failed",
            "The setup step “install” failed before it ran: bash is not installed.",
        ),
        (
            {"message": "the user workspace does not exist in this image"},
            "step-failed",
            "The workspace's boot failed: the user workspace does not exist in this image.",
        ),
        (
            {"step": failed_step(kind="foreground"), "message": "opencode is not on the PATH"},
            "step-failed",
            "The workspace's foreground process did not start: opencode is not on the PATH.",
        ),
        (
            {"phase": "stopped", "step": failed_step(kind="foreground", exitCode=0)},
            "container-exited",
            "The workspace's foreground process ended with exit code 0, before it was ready.",
        ),
    ],
)
def test_a_failed_boot_is_told_in_one_sentence_and_its_output(
    document: dict[str, Any], code: str, message: str
) -> None:
    error = boot.failure_of(status(**document))
    assert (error.code, error.message) == (code, message)


def test_a_forged_status_cannot_make_the_message_long_many_lined_or_harmful() -> None:
    name = "a\nb\x1b]0;title\x07\x1b[31m" + "c" * 10_000
    error = boot.failure_of(
        status(step=failed_step(name=name, kind="x" * 999, exitCode=1), tail="t" * 100_000)
    )
    first, heading, output = error.message.split("\n", 2)
    assert len(first) < 250
    assert heading == "The end of its output:"
    assert len(output.encode()) <= boot.TAIL_BYTES
    assert "\x1b" not in error.message
    assert "\x07" not in error.message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        b"[]",
        b"null",
        b'{"phase": 3}',
        b'{"step": null}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"phase": "ready", "tail": "' + b"x" * boot.MAX_STATUS_BYTES + b'"}',
    ],
)
def test_what_is_not_a_status_is_no_answer(data: bytes) -> None:
    assert boot.parse_status(data) is None


def test_members_of_the_wrong_type_are_left_out() -> None:
    parsed = status(step={"name": 3, "kind": None, "exitCode": True, "signal": 9}, message=["x"])
    assert parsed.step == boot.BootStep("?", "boot", None, None, False)
    assert parsed.message == ""
    assert status(step="x").step is None


def archive(name: str, content: bytes = b"", *, link: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo(name)
        if link:
            member.type, member.linkname = tarfile.SYMTYPE, link
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_only_a_regular_file_of_bounded_size_is_read_out_of_a_container() -> None:
    assert boot.read_archived_file([archive("status.json", b"{}")]) == b"{}"
    large = archive("status.json", b"x" * boot.MAX_STATUS_BYTES)
    halves = [large[:5000], large[5000:]]
    assert boot.read_archived_file(halves) == b"x" * boot.MAX_STATUS_BYTES
    assert boot.read_archived_file([archive("status.json", link="/etc/shadow")]) is None
    assert boot.read_archived_file([archive("s", b"x" * (boot.MAX_STATUS_BYTES + 1))]) is None
    assert boot.read_archived_file([b"no tar at all"]) is None
    assert boot.read_archived_file([]) is None


def test_an_endless_file_is_not_read_to_its_end() -> None:
    taken = 0

    def endless() -> Any:
        nonlocal taken
        yield archive("status.json", b"x" * boot.MAX_STATUS_BYTES)
        while True:
            taken += 1
            yield b"x" * 65536

    assert boot.read_archived_file(endless()) is None
    assert boot.archived_names(endless()) == []
    assert taken < 10


def test_the_configuration_is_archived_for_root_only() -> None:
    with tarfile.open(fileobj=io.BytesIO(boot.config_archive({"word": "ü"}))) as tar:
        members = {member.name: (member.mode, member.uid, member.isdir()) for member in tar}
        stream = tar.extractfile("etc/svc/boot.json")
        assert stream is not None
        assert json.load(stream) == {"word": "ü"}
    assert members == {"etc/svc": (0o700, 0, True), "etc/svc/boot.json": (0o600, 0, False)}
