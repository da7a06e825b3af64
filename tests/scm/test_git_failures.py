"""What keeps a source from being had is told by its code, in time, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from scm.git import ResolvedSource, SourceError, SourcePolicy, checkout, resolve
from tests.scm.conftest import GIT_ENV, NEVER, HttpServer, Origin, failure, fetch_failure, git
from tests.stack.free_ports import free_port
from tests.support.waiting import LONG_WAIT


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
        assert time.monotonic() - started < LONG_WAIT


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
    assert time.monotonic() - started < LONG_WAIT


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
    assert time.monotonic() - started < LONG_WAIT


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
