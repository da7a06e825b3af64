"""A build context holds the plan and nothing of the machine or the moment it was written in."""

from __future__ import annotations

import os
import resource
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from builds.images.context import BuildError, write_context
from builds.planner import ImagePlan, PlanFile, PlannedSource

PLAN = ImagePlan(  # noqa: S604 - a login shell, not a command
    os_family="debian",
    base_image="svc-base/debian:bookworm",
    dockerfile="FROM scratch\n",
    files=(PlanFile("install/run.sh", b"#!/bin/sh\n", 0o755), PlanFile("install/list", b"a\nb\n")),
    sources=(
        PlannedSource("workspace", "workspace", "https://host/a", None, "/workspace/project"),
        PlannedSource("dots", "dotfiles", "https://host/b", None, "/usr/share/svc/dotfiles"),
    ),
    working_directory="/workspace/project",
    harness_command=(),
    user="workspace",
    uid=1000,
    gid=1000,
    home="/home/workspace",
    shell="/bin/bash",
)
NO_SOURCES = replace(PLAN, sources=())


@contextmanager
def umask(value: int) -> Iterator[None]:
    before = os.umask(value)
    yield
    os.umask(before)


def make_checkout(path: Path) -> Path:
    """Write a folder with one of everything that git can check out."""
    (path / ".git").mkdir(parents=True)
    (path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (path / "sub" / "empty").mkdir(parents=True)
    (path / "run").write_text("#!/bin/sh\n")
    (path / "run").chmod(0o700)
    (path / "sub" / "plain").write_text("x")
    (path / "inside").symlink_to("sub/plain")
    (path / "outside").symlink_to("/etc/passwd")
    Path(os.fsdecode(os.fsencode(path) + b"/not-\xff-utf8")).write_text("bytes")
    (path / ("long" * 40)).write_text("long")
    os.utime(path, (1_700_000_000, 1_700_000_000))
    return path


def write(plan: ImagePlan, into: Path, checkouts: dict[str, Path] | None = None) -> Path:
    write_context(plan, into, checkouts=checkouts or {}, agent=b"#!agent", extra_ca=b"CA")
    return into


def members(context: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(context / "sources.tar") as tar:
        names = tar.getnames()
        assert len(names) == len(set(names))
        return {member.name: member for member in tar.getmembers()}


def test_the_context_holds_what_the_dockerfile_wants_with_modes_that_no_umask_changes(
    tmp_path: Path,
) -> None:
    with umask(0o077):
        context = write(NO_SOURCES, tmp_path / "context")
    found = {
        str(path.relative_to(context)): (path.stat().st_mode & 0o777, path.read_bytes())
        for path in context.rglob("*")
        if path.is_file() and path.name != "sources.tar"
    }
    assert found == {
        "Dockerfile": (0o644, b"FROM scratch\n"),
        "install/run.sh": (0o755, b"#!/bin/sh\n"),
        "install/list": (0o644, b"a\nb\n"),
        "extra-ca.crt": (0o644, b"CA"),
        "svc-agent": (0o755, b"#!agent"),
    }


def test_sources_are_owned_by_the_user_at_the_time_of_the_commit(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "checkout")
    found = members(write(PLAN, tmp_path / "context", {"workspace": checkout, "dots": checkout}))
    for name, member in found.items():
        assert not name.startswith("/")
        assert (member.uid, member.gid, member.uname, member.mtime) == (1000, 1000, "", 1.7e9)
    assert found["workspace/project/run"].mode == 0o755
    assert found["workspace/project/sub/plain"].mode == 0o644
    assert found["workspace/project/inside"].linkname == "sub/plain"
    assert found["workspace/project/outside"].issym()
    assert found["workspace/project/sub/empty"].isdir()
    assert "workspace/project/not-\udcff-utf8" in found
    assert found["workspace/project/.git/HEAD"].isfile()


def test_root_owns_the_sources_of_a_root_workspace(tmp_path: Path) -> None:
    plan = replace(PLAN, user="root", uid=0, gid=0, home="/root")
    checkout = make_checkout(tmp_path / "checkout")
    found = members(write(plan, tmp_path / "context", {"workspace": checkout, "dots": checkout}))
    assert {(member.uid, member.gid) for member in found.values()} == {(0, 0)}


def test_folders_above_a_source_are_made_but_never_those_of_the_system(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "checkout")
    names = members(write(PLAN, tmp_path / "one", {"workspace": checkout, "dots": checkout}))
    assert {"workspace", "workspace/project", "usr/share/svc/dotfiles"} <= set(names)
    assert not {"usr", "usr/share", "usr/share/svc"} & set(names)
    at_home = replace(PLAN, sources=(), working_directory="/home/workspace/src/app")
    assert list(members(write(at_home, tmp_path / "two"))) == [
        "home/workspace/src",
        "home/workspace/src/app",
    ]


def test_a_plan_without_sources_still_has_its_working_directory(tmp_path: Path) -> None:
    found = members(write(NO_SOURCES, tmp_path / "context"))
    assert list(found) == ["workspace", "workspace/project"]
    assert found["workspace/project"].uid == 1000


def test_equal_checkouts_give_equal_bytes_whenever_and_however_they_were_made(
    tmp_path: Path,
) -> None:
    one = make_checkout(tmp_path / "one")
    with umask(0o077):
        two = make_checkout(tmp_path / "two")
    os.utime(two / "run", (1, 1))
    first = write(PLAN, tmp_path / "first", {"workspace": one, "dots": one})
    second = write(PLAN, tmp_path / "second", {"workspace": two, "dots": two})
    assert (first / "sources.tar").read_bytes() == (second / "sources.tar").read_bytes()


def test_a_checkout_may_be_nested_deeply(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    here = os.getcwd()  # noqa: PTH109
    try:
        os.chdir(checkout)
        for _ in range(1500):
            os.mkdir("d")  # noqa: PTH102
            os.chdir("d")
    finally:
        os.chdir(here)
    plan = replace(PLAN, sources=PLAN.sources[:1])
    found = members(write(plan, tmp_path / "context", {"workspace": checkout}))
    assert len(found) == 1502
    # pytest's own clean-up would end in a RecursionError.
    subprocess.run(["rm", "-rf", checkout], check=True)


@pytest.mark.parametrize("destination", ["relative", "/a/../../etc", "/..", "/", ""])
def test_a_destination_cannot_lead_out_of_the_image(tmp_path: Path, destination: str) -> None:
    source = PlannedSource("workspace", "workspace", "https://host/a", None, destination)
    checkout = make_checkout(tmp_path / "checkout")
    with pytest.raises(BuildError) as caught:
        write(replace(PLAN, sources=(source,)), tmp_path / "context", {"workspace": checkout})
    assert caught.value.code == "build-write-context-failed"


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", ""])
def test_a_file_of_the_plan_cannot_lead_out_of_the_context(tmp_path: Path, path: str) -> None:
    plan = replace(NO_SOURCES, files=(PlanFile(path, b"x"),))
    with pytest.raises(BuildError) as caught:
        write(plan, tmp_path / "context")
    assert caught.value.code == "build-write-context-failed"
    assert not (tmp_path / "x").exists()


def test_a_special_file_in_a_checkout_is_refused(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "checkout")
    os.mkfifo(checkout / "pipe")
    with pytest.raises(BuildError, match="special file"):
        write(PLAN, tmp_path / "context", {"workspace": checkout, "dots": checkout})


def test_a_disk_that_takes_no_more_fails_the_context_with_its_own_code(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "checkout")
    (checkout / "big").write_bytes(bytes(3_000_000))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        with pytest.raises(BuildError) as caught:
            write(PLAN, tmp_path / "context", {"workspace": checkout, "dots": checkout})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.code == "build-write-context-failed"
    assert "File too large" in caught.value.message
    assert str(tmp_path) not in caught.value.message


def test_a_missing_checkout_fails_the_context(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        write(PLAN, tmp_path / "context", {"workspace": tmp_path / "no", "dots": tmp_path / "no"})
    assert caught.value.code == "build-write-context-failed"
    assert str(tmp_path) not in caught.value.message
