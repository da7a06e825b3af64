"""Requests for packages become the distribution's own names, or faults that name each problem."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builds.families import FAMILIES
from builds.packages import aliases, standardize
from controlplane.errors import ValidationFailed
from workspaces.blueprint import PackageRequest


def requests(*words: str) -> list[PackageRequest]:
    """Return requests out of ``name`` and ``name=version``."""
    return [
        PackageRequest(id=name, version=version or None)
        for name, _, version in (word.partition("=") for word in words)
    ]


def names(os_family: str, *words: str) -> list[str]:
    return [
        f"{package.id}={package.version}" if package.version else package.id
        for package in standardize(requests(*words), os_family)
    ]


def faults(os_family: str, *words: str) -> dict[str, str]:
    with pytest.raises(ValidationFailed) as caught:
        standardize(requests(*words), os_family)
    return {fault.pointer: fault.code for fault in caught.value.errors}


@pytest.mark.parametrize(
    ("os_family", "expected"),
    [
        ("debian", ["nodejs", "npm", "fd-find", "build-essential", "openssh-client", "golang-go"]),
        ("ubuntu", ["nodejs", "npm", "fd-find", "build-essential", "openssh-client", "golang-go"]),
        (
            "fedora",
            [
                *("nodejs", "nodejs-npm", "fd-find", "gcc", "gcc-c++", "make"),
                *("openssh-clients", "golang"),
            ],
        ),
        ("arch", ["nodejs", "npm", "fd", "base-devel", "openssh", "go"]),
        ("alpine", ["nodejs", "npm", "fd", "build-base", "openssh-client", "go"]),
    ],
)
def test_a_tool_is_found_under_the_name_people_use(os_family: str, expected: list[str]) -> None:
    assert names(os_family, "node", "fd", "build-essential", "ssh", "golang") == expected


@pytest.mark.parametrize(
    ("alias", "package"),
    [
        *(("nvim", "neovim"), ("rg", "ripgrep"), ("batcat", "bat"), ("python", "python3")),
        *(("dig", "bind9-dnsutils"), ("psql", "postgresql-client"), ("R", "r-base")),
    ],
)
def test_common_aliases_are_known_on_debian(alias: str, package: str) -> None:
    assert names("debian", alias) == [package]


def test_names_outside_the_table_are_taken_as_they_are() -> None:
    assert names("debian", "libvirt-clients") == ["libvirt-clients"]
    assert names("fedora", "ImageMagick-libs") == ["ImageMagick-libs"]


def test_a_name_is_written_as_the_distribution_writes_it() -> None:
    assert names("debian", "Git", "LibVirt-Clients") == ["git", "libvirt-clients"]
    assert names("fedora", "SHELLCHECK") == ["ShellCheck"]


def test_each_package_comes_once_where_it_is_first_asked_for() -> None:
    assert names("debian", "npm", "jq", "node", "nodejs", "JQ") == ["npm", "jq", "nodejs"]


def test_a_version_counts_wherever_it_is_given() -> None:
    assert names("debian", "jq", "jq=1.6-2.1", "jq") == ["jq=1.6-2.1"]


def test_a_version_of_several_packages_is_for_the_one_that_was_named() -> None:
    assert names("debian", "nodejs=18.20.4") == ["nodejs=18.20.4", "npm"]
    assert faults("fedora", "build-essential=12") == {
        "/spec/tooling/packages/0/id": "package-version-ambiguous"
    }


def test_all_problems_are_reported_together() -> None:
    assert faults("debian", "jq=1", "a_b", "jq=2", "pnpm", "gcc:i386", "curl-", "git") == {
        "/spec/tooling/packages/1/id": "package-name-invalid",
        "/spec/tooling/packages/2/id": "conflicting-versions",
        "/spec/tooling/packages/3/id": "package-not-offered",
        "/spec/tooling/packages/4/id": "package-name-invalid",
        "/spec/tooling/packages/5/id": "package-name-invalid",
    }


@pytest.mark.parametrize("os_family", FAMILIES)
def test_the_table_knows_many_tools_and_only_sound_names(os_family: str) -> None:
    table = aliases(os_family)
    assert len(table) >= 200
    for packages in table.values():
        for package in packages:
            assert FAMILIES[os_family].package_name.fullmatch(package)
    for name in table:
        assert name == name.lower()


@pytest.mark.parametrize("os_family", FAMILIES)
def test_what_is_standard_stays_as_it_is(os_family: str) -> None:
    for name, packages in aliases(os_family).items():
        if packages:
            once = standardize(requests(name), os_family)
            assert standardize(once, os_family) == once, name


@given(
    st.sampled_from(sorted(FAMILIES)),
    st.lists(st.sampled_from([name for name, found in aliases("debian").items() if found])),
)
def test_standardizing_twice_changes_nothing(os_family: str, asked: list[str]) -> None:
    offered = [name for name in asked if aliases(os_family)[name]]
    once = standardize(requests(*offered), os_family)
    assert set(standardize(once, os_family)) == set(once)
    assert len({package.id for package in once}) == len(once)
