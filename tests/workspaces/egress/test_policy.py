"""What a policy says of hosts, ports and requests, and which policies are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError

from controlplane.errors import ValidationFailed
from workspaces.blueprint import Blueprint, Egress
from workspaces.egress.host_policy import Policy, UnknownPreset
from workspaces.egress.presets import PresetsError, read_presets


def egress(told: dict[str, Any], **network: Any) -> Egress:
    spec = {"harness": {"id": "shell"}, "runtime": {"network": {"egress": told, **network}}}
    found = Blueprint.parse(spec).runtime.network.egress
    assert found is not None
    return found


def policy(**told: Any) -> Policy:
    return Policy.of(egress(told), read_presets())


@pytest.mark.parametrize(
    ("pattern", "host", "allowed"),
    [
        ("example.org", "example.org", True),
        ("Example.ORG.", "example.org", True),
        ("example.org", "www.example.org", False),
        ("example.org", "example.org.evil.net", False),
        ("example.org", "notexample.org", False),
        ("*.example.org", "example.org", False),
        ("*.example.org", "a.example.org", True),
        ("*.example.org", "a.b.example.org", True),
        ("*.example.org", "aexample.org", False),
    ],
)
def test_a_rule_is_about_exactly_the_hosts_that_it_names(
    pattern: str, host: str, allowed: bool
) -> None:
    assert policy(rules=[{"hosts": [pattern]}]).about_connection(host, 443).allowed is allowed


def test_a_named_host_is_reached_as_its_rules_say_even_when_all_others_are_allowed() -> None:
    found = policy(default="allow", rules=[{"hosts": ["a.test"], "ports": [8443]}])
    assert not found.about_connection("a.test", 443).allowed
    assert found.about_connection("a.test", 8443).rule == "rules/0"
    assert found.about_connection("b.test", 1234).rule == "default"
    assert not policy().about_name("b.test").allowed


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/a/b", True),
        ("POST", "/a/b", False),
        ("GET", "/c", True),
        ("GET", "/cc", False),
        ("GET", "/ab", False),
        ("GET", "/a/../d", False),
        ("GET", "/a/%2e%2e/d", False),
        ("GET", "/a//d", False),
        ("GET", "/a/..;/d", False),
        ("GET", "/a/b;c", False),
        ("GET", "/a/b#c", False),
        ("GET", "/a/\\..\\d", False),
    ],
)
def test_a_request_has_to_fit_method_and_path_of_one_rule(
    method: str, path: str, allowed: bool
) -> None:
    rule = {"hosts": ["a.test"], "ports": [80], "methods": ["GET"], "paths": ["/a/*", "/c"]}
    found = policy(rules=[rule])
    assert found.about_request("a.test", 80, method, path).allowed is allowed


GITHUB = UUID(int=1)


def bound() -> Policy:
    rules = [
        {"hosts": ["a.test"], "ports": [443]},
        {"hosts": ["a.test"], "paths": ["/api/*"], "credential": "github"},
        {"hosts": ["b.test"], "methods": ["GET"]},
        {"hosts": ["c.test"], "ports": [9000], "methods": ["GET"]},
    ]
    return Policy.of(egress({"rules": rules}), read_presets(), {1: GITHUB})


def test_a_rule_with_a_credential_goes_before_another_that_allows_the_same() -> None:
    found = bound().about_request("a.test", 443, "GET", "/api/x", "tls")
    assert (found.rule, [each.account_id for each in found.bound]) == ("rules/1", [GITHUB])
    found = bound().about_request("a.test", 443, "GET", "/else", "tls")
    assert (found.allowed, found.rule, found.bound) == (True, "rules/0", ())


def test_tls_is_opened_only_where_a_rule_has_to_see_requests() -> None:
    found = bound()
    assert found.opens_tls("a.test", 443)
    assert found.opens_tls("b.test", 443)
    assert not found.opens_tls("a.test", 8443)
    assert not policy(rules=[{"hosts": ["a.test"]}]).opens_tls("a.test", 443)


def test_what_has_no_requests_does_not_pass_by_a_rule_about_requests() -> None:
    found = bound()
    assert not found.names_port("c.test", 9000)
    for protocol in ("tcp", "ssh"):
        assert not found.about_connection("c.test", 9000, protocol).allowed
    assert found.about_connection("c.test", 9000, "http").allowed
    only = policy(rules=[{"hosts": ["a.test"], "ports": [8080], "credential": "github"}])
    assert not only.about_request("a.test", 8080, "GET", "/").allowed
    assert only.about_request("a.test", 8080, "GET", "/", "tls").allowed


def test_a_refusal_says_whether_another_rule_for_the_host_would_undo_it() -> None:
    found = bound()
    asked = {
        "no rule": found.about_connection("d.test", 443),
        "no rule, by name": found.about_name("d.test"),
        "another port": found.about_connection("a.test", 22),
        "another protocol": found.about_connection("c.test", 9000, "ssh"),
        "another request": found.about_request("b.test", 443, "PUT", "/", "tls"),
    }
    assert {name: (each.allowed, each.rule, each.another_rule) for name, each in asked.items()} == {
        "no rule": (False, "default", True),
        "no rule, by name": (False, "default", True),
        "another port": (False, "rules/0", True),
        "another protocol": (False, "rules/3", False),
        "another request": (False, "rules/2", False),
    }
    assert found.about_connection("c.test", 9000, "ssh").reason.endswith("for HTTP and TLS only.")
    only = policy(rules=[{"hosts": ["a.test"], "credential": "github"}])
    assert only.about_connection("a.test", 443, "tcp").reason.endswith("is for TLS only.")


def test_the_first_rule_that_carries_the_protocol_at_the_port_is_the_one_that_is_told() -> None:
    found = policy(
        rules=[
            {"hosts": ["a.test"], "ports": [8443]},
            {"hosts": ["a.test"], "ports": [443], "methods": ["GET"]},
            {"hosts": ["a.test"], "ports": [443]},
        ]
    )
    assert found.about_name("a.test").rule == "rules/0"
    assert found.about_connection("a.test", 443, "tls").rule == "rules/1"
    assert found.about_connection("a.test", 443, "tcp").rule == "rules/2"
    assert found.about_request("a.test", 443, "PUT", "/", "tls").rule == "rules/2"
    assert found.about_request("a.test", 8443, "PUT", "/").rule == "rules/0"
    refused = found.about_request("a.test", 9, "PUT", "/")
    assert (refused.allowed, refused.another_rule) == (False, True)
    assert found.names_port("a.test", 443)
    assert not found.names_port("a.test", 80)
    assert not found.names_port("b.test", 443)


def test_a_secret_goes_into_the_header_that_its_rule_names_or_into_authorization() -> None:
    rules = [
        {"hosts": ["a.test"], "credential": "github"},
        {"hosts": ["b.test"], "credential": "github", "header": "x-api-key"},
    ]
    found = Policy.of(egress({"rules": rules}), read_presets(), {0: GITHUB, 1: GITHUB})
    headers = [
        [each.header for each in found.about_request(host, 443, "GET", "/", "tls").bound]
        for host in ("a.test", "b.test")
    ]
    assert headers == [["authorization"], ["x-api-key"]]


@pytest.mark.parametrize("path", ["/a/%2e", "/a\\b", "/a;b", "/a#b", "//a", "/./a", "/../a"])
def test_a_path_that_a_server_may_take_for_another_one_fits_no_rule(path: str) -> None:
    found = policy(rules=[{"hosts": ["a.test"], "ports": [80], "paths": ["/*"]}])
    assert found.about_request("a.test", 80, "GET", "/a_b.c/..d").allowed
    assert not found.about_request("a.test", 80, "GET", path).allowed


def test_a_build_has_the_same_rules_without_credentials() -> None:
    found = bound().without_credentials()
    assert found.about_request("a.test", 443, "GET", "/api/x", "tls").bound == ()
    assert (
        not Policy.from_wire(found.to_wire())
        .about_request("b.test", 443, "POST", "/", "tls")
        .allowed
    )
    assert {each.rule.header for each in found.rules} == {None}
    rule = {"hosts": ["a.test"], "credential": "github", "header": "x-api-key"}
    only = Policy.of(egress({"rules": [rule]}), read_presets())
    assert only.opens_tls("a.test", 443)
    assert not only.without_credentials().opens_tls("a.test", 443)
    assert only.without_credentials().rules[0].rule.header is None
    assert not policy(default="allow").without_credentials().rules
    assert policy(default="allow").without_credentials().about_name("b.test").allowed


def test_a_policy_that_was_stored_says_the_same() -> None:
    found = policy(default="allow", presets=["python", "debian@1"], rules=[{"hosts": ["a.test"]}])
    assert Policy.from_wire(found.to_wire()) == found
    assert Policy.from_wire(bound().to_wire()) == bound()
    assert found.about_connection("pypi.org", 443).rule == "presets/python@1/0"


def test_presets_of_the_operator_are_added_and_replace_ours(tmp_path: Path) -> None:
    theirs = tmp_path / "our presets.toml"
    theirs.write_text(
        '[python.7]\nrules = [{ hosts = ["pypi.internal"] }]\n'
        '[house.1]\nrules = [{ hosts = ["a.internal"] }]\n'
        '[house.2]\nrules = [{ hosts = ["b.internal"], ports = [22, 443] }]\n'
    )
    presets = read_presets(str(theirs))

    def hosts(name: str) -> tuple[str, tuple[str, ...]]:
        found = presets.find(name)
        assert found is not None
        return found[0], found[1][0].hosts

    assert hosts("python") == ("python@7", ("pypi.internal",))
    assert hosts("house") == ("house@2", ("b.internal",))
    assert hosts("house@1") == ("house@1", ("a.internal",))
    assert presets.find("npm") is not None
    assert presets.find("house@3") is None
    with pytest.raises(UnknownPreset):
        Policy.of(egress({"presets": ["python@1"]}), presets)


@pytest.mark.parametrize(
    "text",
    [
        "[",
        'a = "b"',
        "[a.x]\nrules = []",
        "[a.1]\n",
        '[a.1]\nrules = [{ hosts = ["1.2.3.4"] }]',
        '[a.1]\nrules = [{ hosts = ["a.test"], port = [1] }]',
        '[a.1]\nrules = [{ hosts = ["a.test"], credential = "github" }]',
    ],
)
def test_a_file_of_presets_that_makes_no_sense_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "presets.toml").write_text(text)
    with pytest.raises(PresetsError):
        read_presets(str(tmp_path / "presets.toml"))
    with pytest.raises(PresetsError):
        read_presets(str(tmp_path / "missing.toml"))


@pytest.mark.parametrize(
    ("rule", "member"),
    [
        ({"hosts": []}, "/hosts"),
        ({"hosts": ["*"]}, "/hosts/0"),
        ({"hosts": ["*.org"]}, "/hosts/0"),
        ({"hosts": ["a.*.org"]}, "/hosts/0"),
        ({"hosts": ["1.2.3.4"]}, "/hosts/0"),
        ({"hosts": ["::1"]}, "/hosts/0"),
        ({"hosts": ["a.1"]}, "/hosts/0"),
        ({"hosts": ["https://a.test"]}, "/hosts/0"),
        ({"hosts": ["a.test:80"]}, "/hosts/0"),
        ({"hosts": ["münchen.test"]}, "/hosts/0"),
        ({"hosts": [f"{'a' * 64}.test"]}, "/hosts/0"),
        ({"hosts": ["a.test"], "ports": [0]}, "/ports/0"),
        ({"hosts": ["a.test"], "ports": [65536]}, "/ports/0"),
        ({"hosts": ["a.test"], "ports": [22], "methods": ["GET"]}, "/methods"),
        ({"hosts": ["a.test"], "ports": [22, 443], "paths": ["/"]}, "/paths"),
        ({"hosts": ["a.test"], "ports": [80], "methods": ["get"]}, "/methods/0"),
        ({"hosts": ["a.test"], "ports": [80], "paths": ["a"]}, "/paths/0"),
        ({"hosts": ["a.test"], "ports": [80], "paths": ["/a/../b"]}, "/paths/0"),
        ({"hosts": ["a.test"], "ports": [80], "paths": ["/a;b"]}, "/paths/0"),
        ({"hosts": ["a.test"], "ports": [80], "credential": "github"}, "/credential"),
        ({"hosts": ["a.test"], "ports": [22, 443], "credential": "github"}, "/credential"),
        ({"hosts": ["a.test"], "header": "x-api-key"}, "/header"),
        ({"hosts": ["a.test"], "credential": "github", "header": "Host"}, "/header"),
        ({"hosts": ["a.test"], "credential": "github", "header": "x: y"}, "/header"),
        ({"hosts": ["a.test"], "host": "b.test"}, "/host"),
    ],
)
def test_a_rule_that_cannot_be_kept_is_refused_where_it_is_wrong(
    rule: dict[str, Any], member: str
) -> None:
    with pytest.raises(ValidationFailed) as caught:
        egress({"rules": [rule]})
    assert f"/spec/runtime/network/egress/rules/0{member}" in {
        fault.pointer for fault in caught.value.errors
    }


def test_a_policy_without_a_network_is_refused() -> None:
    with pytest.raises(ValidationFailed):
        egress({}, outbound=False)


def test_the_presets_of_ours_are_all_policies() -> None:
    presets = read_presets()
    for name in presets.by_name:
        assert Policy.of(Egress(presets=(name,)), presets).rules
    with pytest.raises(ValidationError):
        Egress(presets=("Python",))
