"""Debian's real index, read once: what is in it, and what names mean there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from django.conf import settings as configured
from pytest_django import DjangoDbBlocker

from workspaces.blueprint import PackageRequest
from workspaces.models import Package, PackageIndex
from workspaces.packages.aliases import aliases
from workspaces.packages.lookup import look_up
from workspaces.packages.reading import configured_engine
from workspaces.packages.standardization import standardize_with_index
from workspaces.packages.sync import sync_family

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.django_db]


@pytest.fixture(scope="module")
def debian(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, instance_id: str
) -> Iterator[dict[str, Package]]:
    """Read Debian's index once for this module's questions, and take it away again.

    Under the session's own id: what reads for another session removes what it takes for leftovers
    of its own.
    """
    engine = replace(configured_engine(), instance_id=instance_id)
    with django_db_blocker.unblock():
        try:
            sync_family("debian", engine=engine, cancelled=threading.Event())
            yield {package.name: package for package in Package.objects.filter(family="debian")}
        finally:
            Package.objects.all().delete()
            PackageIndex.objects.all().delete()


def test_every_package_is_there_with_its_versions(debian: dict[str, Package]) -> None:
    real = [package for package in debian.values() if not package.virtual]
    assert len(real) > 30_000
    assert {"git", "python3", "g++", "libssl-dev", "ripgrep"} <= {p.name for p in real}
    assert all(package.versions for package in real)
    assert debian["git"].repository == "main"


def test_virtual_packages_name_those_that_provide_them(debian: dict[str, Package]) -> None:
    assert debian["awk"].virtual
    assert {"gawk", "mawk"} <= set(debian["awk"].providers)


@pytest.mark.parametrize("os_family", ["debian"])
def test_every_package_of_the_curated_table_is_there(
    debian: dict[str, Package], os_family: str
) -> None:
    missing = {
        f"{name} -> {package}"
        for name, packages in aliases(os_family).items()
        for package in packages
        if package not in debian or debian[package].virtual
    }
    assert missing == set()


def test_the_table_knows_what_people_type_differently(debian: dict[str, Package]) -> None:
    known = aliases("debian")
    differently = [name for name in known if known[name] and name not in debian]
    assert len(differently) >= 150


def test_what_was_read_and_when_is_told(debian: dict[str, Package]) -> None:
    with_index = PackageIndex.objects.get(pk="debian")
    assert with_index.packages == sum(not package.virtual for package in debian.values())
    assert with_index.architecture in {"amd64", "arm64"}
    assert with_index.base_image == configured.SVC_BASE_IMAGES["debian"]
    assert with_index.failures == 0


@pytest.mark.parametrize(
    ("asked", "packages"),
    [
        ("node", ["nodejs", "npm"]),
        ("golang", ["golang-go"]),
        ("gcc++", ["g++"]),
        ("rg", ["ripgrep"]),
        ("libssl-dev", ["libssl-dev"]),
        ("psql", ["postgresql-client"]),
        ("aws", ["awscli"]),
        ("docker", ["docker.io"]),
        ("sl", ["sl"]),
        ("sl:all", ["sl"]),
    ],
)
def test_names_of_people_and_of_debian_are_resolved(
    debian: dict[str, Package], asked: str, packages: list[str]
) -> None:
    answer = look_up(asked, "debian")
    assert answer["status"] == "resolved"
    assert [package.name for package in answer["packages"]] == packages


@pytest.mark.parametrize(
    ("asked", "alternative"),
    [
        ("awk", "mawk"),
        ("docker_compose", "docker-compose"),
        ("ripgrpe", "ripgrep"),
        ("libsll-dev", "libssl-dev"),
        ("requests", "python3-requests"),
        ("curl-", "curl"),
    ],
)
def test_what_is_nearly_right_is_ambiguous(
    debian: dict[str, Package], asked: str, alternative: str
) -> None:
    answer = look_up(asked, "debian")
    assert (answer["status"], answer["packages"]) == ("ambiguous", ())
    assert {"project_name": alternative} in answer["alternatives"]


def test_each_version_that_apt_could_install_may_be_asked_for(debian: dict[str, Package]) -> None:
    versions = debian["jq"].versions
    for version in versions:
        (package,) = standardize_with_index([PackageRequest(id="jq", version=version)], "debian")
        assert package.version == version


def test_what_is_standard_stays_as_it_is(debian: dict[str, Package]) -> None:
    for name in aliases("debian"):
        if aliases("debian")[name]:
            once = standardize_with_index([PackageRequest(id=name)], "debian")
            assert standardize_with_index(once, "debian") == once, name
