"""Sources are resolved and checked out with real git over every transport, and nothing leaks in."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import pytest

from scm.git import ResolvedSource, SourceError, SourcePolicy, checkout, resolve
from tests.scm.conftest import (
    COMMITTED_AT,
    GIT_ENV,
    ODD_BRANCH,
    HttpServer,
    HttpsServer,
    Origin,
    free_port,
    git,
)

NEVER = threading.Event()


def failure(url: str, ref: str | None, policy: SourcePolicy) -> SourceError:
    with pytest.raises(SourceError) as caught:
        resolve(url, ref, policy)
    return caught.value


def fetch_failure(source: ResolvedSource, into: Path, policy: SourcePolicy) -> SourceError:
    with pytest.raises(SourceError) as caught:
        checkout(source, into, policy, NEVER)
    assert not into.exists()
    return caught.value


# Resolving


def test_no_ref_means_the_default_branch_whatever_its_name(
    origin: Origin, policy: SourcePolicy
) -> None:
    assert resolve(origin.url, None, policy) == ResolvedSource(
        origin.url, "refs/heads/trunk", origin.trunk
    )


def test_every_kind_of_ref_is_resolved(origin: Origin, policy: SourcePolicy) -> None:
    for ref, name, commit in [
        ("trunk", "refs/heads/trunk", origin.trunk),
        (ODD_BRANCH, f"refs/heads/{ODD_BRANCH}", origin.topic),
        ("v1", "refs/tags/v1", origin.first),
        ("light", "refs/tags/light", origin.trunk),
        ("both", "refs/heads/both", origin.trunk),
        ("tags/both", "refs/tags/both", origin.first),
        ("refs/tags/v1", "refs/tags/v1", origin.first),
        ("pull/7/head", "refs/pull/7/head", origin.topic),
        (origin.first, origin.first, origin.first),
        (origin.first.upper(), origin.first, origin.first),
    ]:
        assert resolve(origin.url, ref, policy) == ResolvedSource(origin.url, name, commit), ref


def test_a_ref_that_does_not_exist_is_named(origin: Origin, policy: SourcePolicy) -> None:
    error = failure(origin.url, "nope", policy)
    assert error.code == "source-ref-not-found"
    assert "nope" in error.message
    assert origin.url in error.message


def test_a_shortened_commit_id_is_answered_with_advice(
    origin: Origin, policy: SourcePolicy
) -> None:
    error = failure(origin.url, origin.first[:9], policy)
    assert error.code == "source-ref-not-found"
    assert "full id" in error.message


def test_an_empty_repository_has_no_default_branch(tmp_path: Path, policy: SourcePolicy) -> None:
    git(tmp_path, "init", "-q", "--bare", "empty")
    assert failure(f"file://{tmp_path}/empty", None, policy).code == "source-ref-not-found"


@pytest.mark.parametrize("ref", ["--upload-pack=touch pwned", "-x", "a..b", "", "a\nb"])
def test_a_ref_cannot_be_an_option(
    ref: str, origin: Origin, policy: SourcePolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert failure(origin.url, ref, policy).code == "source-ref-not-found"
    assert not (tmp_path / "pwned").exists()


# What is allowed


def test_file_urls_need_the_operators_permission(origin: Origin, policy: SourcePolicy) -> None:
    error = failure(origin.url, None, replace(policy, allow_file=False))
    assert error.code == "source-url-forbidden"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "10.0.0.1", "169.254.169.254"]
)
@pytest.mark.parametrize("scheme", ["http", "https", "git"])
def test_inner_hosts_need_the_operators_permission(
    scheme: str, host: str, policy: SourcePolicy
) -> None:
    error = failure(f"{scheme}://{host}/x", None, replace(policy, allow_private=False))
    assert error.code == "source-url-forbidden"
    assert "public internet" in error.message


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1", "0177.0.0.1"])
def test_an_address_in_disguise_is_refused_even_where_inner_hosts_are_allowed(
    host: str, policy: SourcePolicy
) -> None:
    assert failure(f"http://{host}/x", None, policy).code == "source-url-forbidden"


def test_a_name_is_connected_to_at_the_address_that_was_judged(
    http_server: HttpServer, policy: SourcePolicy, origin: Origin
) -> None:
    url = http_server.url.replace("127.0.0.1", "localhost") + "/git/odd%20name.git"
    assert resolve(url, None, policy).commit == origin.trunk


def test_git_can_be_pinned_to_an_address_for_a_name_nobody_knows(
    http_server: HttpServer, policy: SourcePolicy, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The lookup is where the outside world comes in: here it is a world with one more name. Nobody
    # listens at its first address.
    def answer(host: str, **_: object) -> list[IPv4Address | IPv6Address]:
        return [IPv6Address("::1"), IPv4Address("127.0.0.1")]

    monkeypatch.setattr("scm.git.command.look_up", answer)
    port = http_server.url.rpartition(":")[2]
    url = f"http://forge.invalid:{port}/git/odd%20name.git"
    assert resolve(url, None, policy).commit == origin.trunk


def test_a_literal_address_of_either_kind_is_connected_to(policy: SourcePolicy) -> None:
    for host in ("127.0.0.1", "[::1]", "[0:0::1]"):
        error = failure(f"http://{host}:{free_port()}/x", None, policy)
        assert error.code == "source-unreachable"
        assert "cannot be reached" in error.message


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


# Failures


def test_a_closed_port_is_unreachable(policy: SourcePolicy) -> None:
    for scheme in ("http", "https", "git"):
        error = failure(f"{scheme}://127.0.0.1:{free_port()}/x", None, policy)
        assert error.code == "source-unreachable"
        assert f"{scheme}://127.0.0.1" in error.message


def test_a_host_that_does_not_exist_is_unreachable(policy: SourcePolicy) -> None:
    assert failure("https://no-such-host.invalid/x", None, policy).code == "source-unreachable"


def test_a_repository_that_does_not_exist_is_unreachable(
    http_server: HttpServer, git_daemon: str, tmp_path: Path, policy: SourcePolicy
) -> None:
    for url in (f"{http_server.url}/git/none", f"{git_daemon}/none", f"file://{tmp_path}/none"):
        error = failure(url, None, policy)
        assert error.code == "source-unreachable", error.message
        assert "no git repository" in error.message
    assert failure(f"{http_server.url}/page/x", None, policy).code == "source-unreachable"
    assert failure(f"{http_server.url}/broken/x", None, policy).code == "source-unreachable"


def test_a_private_repository_asks_for_a_sign_in_and_nobody_is_prompted(
    http_server: HttpServer, policy: SourcePolicy
) -> None:
    error = failure(f"{http_server.url}/private/x", None, policy)
    assert error.code == "source-auth-required"
    assert "sign-in" in error.message


def test_a_redirect_on_the_way_to_the_repository_is_followed_and_remembered(
    http_server: HttpServer, origin: Origin, policy: SourcePolicy
) -> None:
    source = resolve(f"{http_server.url}/moved/odd%20name.git", None, policy)
    assert source.url == f"{http_server.url}/git/odd%20name.git"
    assert source.commit == origin.trunk


def test_a_redirect_into_our_own_network_is_not_followed(
    http_server: HttpServer, policy: SourcePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the test's own server counts as public, so that there is somewhere to be redirected from.
    monkeypatch.setattr("scm.git.command.is_public", lambda found: str(found) == "127.0.0.1")
    public = replace(policy, allow_private=False)
    error = failure(f"{http_server.url}/inside/x", None, public)
    assert error.code == "source-url-forbidden"
    assert "169.254.169.254" in error.message


def test_a_redirect_to_a_sign_in_page_or_in_circles_is_refused(
    http_server: HttpServer, policy: SourcePolicy, tmp_path: Path
) -> None:
    for kind in ("login", "loop"):
        error = failure(f"{http_server.url}/{kind}/x", None, policy)
        assert error.code == "source-url-forbidden"
    moved = ResolvedSource(f"{http_server.url}/moved/x", "refs/heads/a", "1" * 40)
    assert fetch_failure(moved, tmp_path / "into", policy).code == "source-url-forbidden"


def test_a_server_that_hangs_meets_the_time_limit(
    http_server: HttpServer, silent_port: int, policy: SourcePolicy, tmp_path: Path
) -> None:
    hurried = replace(policy, resolve_timeout=1, fetch_timeout=1)
    for url in (f"{http_server.url}/hang/x", f"git://127.0.0.1:{silent_port}/x"):
        started = time.monotonic()
        assert failure(url, None, hurried).code == "source-timed-out"
        source = ResolvedSource(url, "refs/heads/main", "1" * 40)
        assert fetch_failure(source, tmp_path / "into", hurried).code == "source-timed-out"
        assert time.monotonic() - started < 8


def test_a_checkout_can_be_cancelled(
    silent_port: int, policy: SourcePolicy, tmp_path: Path
) -> None:
    cancelled = threading.Event()
    timer = threading.Timer(0.4, cancelled.set)
    timer.start()
    started = time.monotonic()
    source = ResolvedSource(f"git://127.0.0.1:{silent_port}/x", "refs/heads/main", "1" * 40)
    with pytest.raises(SourceError) as caught:
        checkout(source, tmp_path / "into", policy, cancelled)
    timer.join()
    assert caught.value.code == "source-cancelled"
    assert not (tmp_path / "into").exists()
    assert time.monotonic() - started < 5


def test_a_repository_that_is_too_large_is_refused(
    origin: Origin,
    policy: SourcePolicy,
    tmp_path: Path,
    grow: Callable[[dict[str, bytes]], str],
) -> None:
    grow({"big": os.urandom(3_000_000), **{f"small/{n}": b"" for n in range(50)}})
    source = resolve(origin.url, None, policy)
    error = fetch_failure(source, tmp_path / "into", replace(policy, max_bytes=1_000_000))
    assert error.code == "source-too-large"
    # The objects fit, the objects and the files together do not.
    error = fetch_failure(source, tmp_path / "into", replace(policy, max_bytes=4_000_000))
    assert error.code == "source-too-large"
    checkout(source, tmp_path / "into", policy, NEVER)


def test_a_small_repository_that_unpacks_without_end_is_stopped(
    tmp_path: Path, policy: SourcePolicy
) -> None:
    bomb = tmp_path / "bomb"
    git(tmp_path, "init", "-q", "-b", "main", str(bomb))

    def put(kind: str, content: bytes) -> str:
        done = subprocess.run(
            [
                "git",
                "-C",
                str(bomb),
                *(("mktree",) if kind == "tree" else ("hash-object", "-w", "--stdin")),
            ],
            input=content,
            env=GIT_ENV,
            capture_output=True,
            check=True,
        )
        return done.stdout.decode().strip()

    entry = f"100644 blob {put('blob', b'boom')}"
    for _ in range(7):
        entry = "040000 tree " + put(
            "tree", "".join(f"{entry}\tf{n}\n" for n in range(10)).encode()
        )
    commit = git(bomb, "commit-tree", "-m", "bomb", entry.split()[-1])
    git(bomb, "update-ref", "refs/heads/main", commit)
    source = resolve(f"file://{bomb}", "main", policy)
    started = time.monotonic()
    error = fetch_failure(source, tmp_path / "into", replace(policy, max_bytes=2_000_000))
    assert error.code == "source-too-large"
    assert time.monotonic() - started < 15


def test_a_place_that_cannot_be_written_fails_the_checkout(
    origin: Origin, policy: SourcePolicy, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    source = resolve(origin.url, None, policy)
    with pytest.raises(SourceError) as caught:
        checkout(source, tmp_path / "file" / "into", policy, NEVER)
    assert caught.value.code == "source-checkout-failed"
    assert str(tmp_path / "file") not in caught.value.message


def test_a_folder_that_exists_is_left_alone(
    origin: Origin, policy: SourcePolicy, tmp_path: Path
) -> None:
    (tmp_path / "into").mkdir()
    (tmp_path / "into" / "precious").write_text("x")
    with pytest.raises(SourceError, match="File exists") as caught:
        checkout(resolve(origin.url, None, policy), tmp_path / "into", policy, NEVER)
    assert caught.value.code == "source-checkout-failed"
    assert (tmp_path / "into" / "precious").exists()


def test_an_extra_authority_that_cannot_be_read_is_an_error_without_its_path(
    origin: Origin, policy: SourcePolicy
) -> None:
    error = failure(origin.url, None, replace(policy, extra_ca_file="/no/such/ca.crt"))
    assert error.code == "source-checkout-failed"
    assert "/no/such" not in error.message


@pytest.mark.parametrize("commit", ["HEAD", "--help", "12ab", "g" * 40])
def test_only_a_full_commit_id_is_checked_out(
    commit: str, origin: Origin, policy: SourcePolicy, tmp_path: Path
) -> None:
    source = ResolvedSource(origin.url, "refs/heads/trunk", commit)
    assert fetch_failure(source, tmp_path / "into", policy).code == "source-ref-not-found"


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
