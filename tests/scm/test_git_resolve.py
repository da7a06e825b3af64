"""Refs of real repositories are resolved to commits, where the operator allows to look."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import pytest

from scm.git import ResolvedSource, SourcePolicy, resolve
from tests.scm.conftest import ODD_BRANCH, HttpServer, Origin, failure, git
from tests.stack.free_ports import free_port

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
