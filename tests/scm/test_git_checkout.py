"""Sources are checked out with real git over every transport, and nothing leaks in."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from scm.git import ResolvedSource, SourcePolicy, checkout, resolve
from tests.scm.conftest import (
    COMMITTED_AT,
    NEVER,
    ODD_BRANCH,
    HttpServer,
    HttpsServer,
    Origin,
    failure,
    fetch_failure,
    git,
)

# Transports


def test_smart_http_is_resolved_and_checked_out(
    http_server: HttpServer, origin: Origin, policy: SourcePolicy, tmp_path: Path
) -> None:
    source = resolve(f"{http_server.url}/git/odd%20name.git", ODD_BRANCH, policy)
    checkout(source, tmp_path / "into", policy, NEVER)
    assert git(tmp_path / "into", "rev-parse", "HEAD") == origin.topic
    assert (tmp_path / "into" / "README").read_text() == "three\n"


def test_the_git_protocol_is_resolved_and_checked_out(
    git_daemon: str, origin: Origin, policy: SourcePolicy, tmp_path: Path
) -> None:
    url = git_daemon.replace("127.0.0.1", "localhost") + "/odd%20name.git"
    source = resolve(url, "v1", policy)
    assert source == ResolvedSource(url, "refs/tags/v1", origin.first)
    checkout(source, tmp_path / "into", policy, NEVER)
    assert git(tmp_path / "into", "rev-parse", "HEAD") == origin.first
    assert git(tmp_path / "into", "config", "remote.origin.url") == url


def test_a_server_that_refuses_bare_commits_still_gives_them(
    http_server: HttpServer, origin: Origin, policy: SourcePolicy, tmp_path: Path
) -> None:
    url = f"{http_server.url}/old/odd%20name.git"
    for number, source in enumerate(
        [
            ResolvedSource(url, origin.first, origin.first),
            ResolvedSource(url, "refs/heads/trunk", origin.trunk),
            ResolvedSource(url, "refs/heads/trunk", origin.first),
        ]
    ):
        into = tmp_path / f"into{number}"
        checkout(source, into, policy, NEVER)
        assert git(into, "rev-parse", "HEAD") == source.commit
    missing = ResolvedSource(url, "0" * 39 + "1", "0" * 39 + "1")
    assert fetch_failure(missing, tmp_path / "into", policy).code == "source-ref-not-found"


def test_https_needs_a_trusted_certificate_and_the_operator_can_add_an_authority(
    https_server: HttpsServer, origin: Origin, policy: SourcePolicy, tmp_path: Path
) -> None:
    url = f"{https_server.url}/git/odd%20name.git"
    error = failure(url, None, policy)
    assert error.code == "source-unreachable"
    assert "not trusted" in error.message
    trusting = replace(policy, extra_ca_file=str(https_server.certificate))
    source = resolve(url, None, trusting)
    assert source.commit == origin.trunk
    checkout(source, tmp_path / "into", trusting, NEVER)
    assert "ssl" not in (tmp_path / "into" / ".git" / "config").read_text().lower()


# Checkouts


def test_a_branch_is_checked_out_as_a_branch_with_a_clean_origin(
    origin: Origin, policy: SourcePolicy, tmp_path: Path
) -> None:
    into = tmp_path / "into"
    checkout(resolve(origin.url, None, policy), into, policy, NEVER)
    assert git(into, "symbolic-ref", "HEAD") == "refs/heads/trunk"
    assert git(into, "config", "remote.origin.url") == origin.url
    assert git(into, "rev-parse", "--abbrev-ref", "trunk@{upstream}") == "origin/trunk"
    assert git(into, "rev-list", "--count", "HEAD") == "1"
    assert git(into, "status", "--porcelain") == ""
    assert (into / "link").is_symlink()
    assert (into / "run.sh").stat().st_mode & 0o111
    assert (into / "with space and ü").read_text() == "x\n"
    git(into, "fetch", "-q", "--unshallow")
    assert git(into, "rev-list", "--count", "HEAD") == "2"


@pytest.mark.parametrize("ref", ["v1", "light", "pull/7/head"])
def test_what_is_no_branch_is_checked_out_detached(
    ref: str, origin: Origin, policy: SourcePolicy, tmp_path: Path
) -> None:
    source = resolve(origin.url, ref, policy)
    checkout(source, tmp_path / "into", policy, NEVER)
    assert git(tmp_path / "into", "rev-parse", "--abbrev-ref", "HEAD") == "HEAD"
    assert git(tmp_path / "into", "rev-parse", "HEAD") == source.commit


def test_a_commit_is_checked_out_by_its_id(
    origin: Origin, policy: SourcePolicy, tmp_path: Path
) -> None:
    checkout(resolve(origin.url, origin.first, policy), tmp_path / "into", policy, NEVER)
    assert (tmp_path / "into" / "README").read_text() == "one\n"


def test_a_commit_that_does_not_exist_is_a_missing_ref(
    origin: Origin, policy: SourcePolicy, tmp_path: Path
) -> None:
    missing = resolve(origin.url, "12" * 20, policy)
    assert fetch_failure(missing, tmp_path / "into", policy).code == "source-ref-not-found"


def test_two_checkouts_of_a_commit_are_the_same_bytes(
    origin: Origin, policy: SourcePolicy, tmp_path: Path
) -> None:
    found = []
    for name in ("one", "two"):
        into = tmp_path / name
        checkout(resolve(origin.url, None, policy), into, policy, NEVER)
        found.append(
            {str(p.relative_to(into)): p.read_bytes() for p in into.rglob("*") if p.is_file()}
        )
        assert into.stat().st_mtime == COMMITTED_AT
        assert not (into / ".git" / "logs").exists()
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "date", [" 18446744073709551614 +0000", f" {'9' * 5000} +0000", ""], ids=["far", "long", "none"]
)
def test_a_commit_with_an_impossible_date_is_checked_out(
    date: str, origin: Origin, policy: SourcePolicy, tmp_path: Path
) -> None:
    bare = tmp_path / "served" / "odd name.git"
    tree = git(bare, "rev-parse", f"{origin.trunk}^{{tree}}")
    who = "A <a@example.org>"
    text = f"tree {tree}\nauthor {who} 1767323045 +0000\ncommitter {who}{date}\n\nodd\n"
    (tmp_path / "commit").write_text(text)
    written = ("hash-object", "--literally", "-t", "commit", "-w", str(tmp_path / "commit"))
    commit = git(bare, *written)
    git(bare, "update-ref", "refs/heads/trunk", commit)

    checkout(resolve(origin.url, None, policy), tmp_path / "into", policy, NEVER)

    assert git(tmp_path / "into", "rev-parse", "HEAD") == commit
    assert (tmp_path / "into").stat().st_mtime == 0


def test_nothing_of_this_machine_takes_part(
    origin: Origin, policy: SourcePolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = tmp_path / "templates" / "hooks"
    hooks.mkdir(parents=True)
    for name in ("post-checkout", "reference-transaction", "post-index-change"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/pwned\n")
        (hooks / name).chmod(0o755)
    config = tmp_path / "gitconfig"
    config.write_text(
        f"[init]\n\ttemplateDir = {hooks.parent}\n[core]\n\thooksPath = {hooks}\n"
        f'[url "file:///nowhere"]\n\tinsteadOf = {origin.url}\n'
        f'[filter "x"]\n\tsmudge = touch {tmp_path}/pwned; cat\n'
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(hooks.parent))
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.chdir(tmp_path / "work")
    git(tmp_path / "work", "config", "url.file:///nowhere.insteadOf", origin.url)
    into = tmp_path / "into"
    checkout(resolve(origin.url, None, policy), into, policy, NEVER)
    assert not (tmp_path / "pwned").exists()
    assert not (into / ".git" / "hooks").exists()
    assert not (tmp_path / "nowhere").exists()


def test_filters_submodules_and_large_file_pointers_are_left_alone(
    origin: Origin,
    policy: SourcePolicy,
    tmp_path: Path,
    grow: Callable[[dict[str, bytes]], str],
) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
    grow(
        {
            ".gitattributes": b"*.bin filter=lfs diff=lfs merge=lfs -text\n",
            ".gitmodules": b'[submodule "s"]\n\tpath = s\n\turl = file:///nowhere\n',
            "a.bin": pointer,
        }
    )
    checkout(resolve(origin.url, None, policy), tmp_path / "into", policy, NEVER)
    assert (tmp_path / "into" / "a.bin").read_bytes() == pointer


def test_a_repository_of_another_account_can_be_read(
    origin: Origin, policy: SourcePolicy, tmp_path: Path
) -> None:
    bare = origin.path.parent / "odd name.git"
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", "12345:12345", str(bare)], check=True)
    checkout(resolve(origin.url, None, policy), tmp_path / "into", policy, NEVER)
    assert (tmp_path / "into" / "README").exists()
