"""The operator's word on a name wins over the table and the index, from the next request on."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from tests.conftest import Api
from tests.workspaces.packages.package_index import write_index
from workspaces.models import Attempt, PackageOverride

pytestmark = pytest.mark.django_db

RESOLVE = "/v1/packages/resolve?targetOs=debian&query="


def override(name: str, *packages: str, family: str = "", note: str = "") -> PackageOverride:
    """Store an override as the admin's form does."""
    row = PackageOverride(name=name, family=family, packages=list(packages), note=note)
    row.full_clean()
    row.save()
    return row


def post(api: Api, body: dict[str, Any], *names: str, expect: int) -> dict[str, str]:
    body["spec"]["tooling"] = {"packages": [{"id": name} for name in names]}
    answer = api.post("/v1/sandboxes", body, expect=expect)
    return answer.codes if expect == 400 else {}


def stored() -> list[dict[str, str]]:
    packages: list[dict[str, str]] = Attempt.objects.get().spec["tooling"]["packages"]
    return packages


def test_it_wins_over_the_table_and_the_index(api: Api, request_body: dict[str, Any]) -> None:
    write_index("debian", {"nodejs": ["18"], "npm": ["9"], "nodejs-22": ["22"], "rg": ["1"]})
    override("node", "nodejs-22", family="debian")
    override("RG", "nodejs-22", "rg")
    body = api.get(f"{RESOLVE}Node").body
    assert (body["status"], body["origin"]) == ("resolved", "override")
    assert body["source"] == "override"
    assert body["packages"] == [{"name": "nodejs-22", "offered": "22", "repository": "main"}]
    post(api, request_body, "node", "rg", expect=202)
    assert stored() == [{"id": "nodejs-22"}, {"id": "rg"}]


def test_one_of_a_family_wins_over_one_of_all(api: Api) -> None:
    override("tool", "for-all")
    override("tool", "for-debian", family="debian")
    support = api.get(f"{RESOLVE}tool").body["osSupport"]
    assert support["debian"]["packageName"] == "for-debian"
    assert support["fedora"]["packageName"] == "for-all"


def test_without_packages_a_name_is_refused(api: Api, request_body: dict[str, Any]) -> None:
    override("docker", note="Use podman here.")
    body = api.get(f"{RESOLVE}docker").body
    assert (body["status"], body["reason"]) == ("unsupported", "refused")
    assert "Use podman here." in body["detail"]
    assert post(api, request_body, "docker", expect=400) == {
        "/spec/tooling/packages/0/id": "package-refused"
    }


def test_it_counts_where_no_index_was_read(api: Api, request_body: dict[str, Any]) -> None:
    override("house-tools", "acme-tools", "acme-cli")
    body = api.get(f"{RESOLVE}house-tools").body
    assert [package["name"] for package in body["packages"]] == ["acme-tools", "acme-cli"]
    post(api, request_body, "house-tools", expect=202)
    assert stored() == [{"id": "acme-tools"}, {"id": "acme-cli"}]


def test_versions_are_checked_all_the_same(api: Api) -> None:
    write_index("debian", {"nodejs-22": ["22.1", "22.0"]})
    override("node22", "nodejs-22")
    assert api.get(f"{RESOLVE}node22%3D22.0").body["packages"][0]["version"] == "22.0"
    assert api.get(f"{RESOLVE}node22%3D9").body["reason"] == "version-unavailable"


def test_taking_it_away_puts_things_back(api: Api) -> None:
    row = override("rg", "other")
    assert api.get(f"{RESOLVE}rg").body["origin"] == "override"
    row.delete()
    assert api.get(f"{RESOLVE}rg").body["origin"] == "alias"


@pytest.mark.parametrize("package", ["ends-", "-x", "a b", "UPPER", "a=1", "*", "a;b"])
def test_what_no_package_manager_could_take_is_refused(package: str) -> None:
    with pytest.raises(ValidationError) as caught:
        override("tool", package, family="debian")
    assert set(caught.value.message_dict) == {"packages"}


@pytest.mark.parametrize("package", ["a@b", "x" * 129])
def test_one_of_an_earlier_version_that_no_blueprint_can_hold_is_a_fault(
    api: Api, request_body: dict[str, Any], package: str
) -> None:
    PackageOverride.objects.bulk_create([PackageOverride(name="tool", packages=["jq", package])])
    request_body["spec"]["target"] = {"os": {"family": "arch", "mode": "require"}}
    told = post(api, request_body, "tool", expect=400)
    assert told == {"/spec/tooling/packages/0/id": "package-name-invalid"}


def test_names_that_nobody_could_ask_for_are_refused() -> None:
    for name in ("a b", "", "-x", "a=b", "é"):
        with pytest.raises(ValidationError) as caught:
            override(name, "jq")
        assert "name" in caught.value.message_dict, name


def test_there_is_one_of_each() -> None:
    override("Tool", "jq")
    with pytest.raises(ValidationError):
        override("tool", "yq")
    with pytest.raises(IntegrityError), transaction.atomic():
        PackageOverride.objects.create(name="tool", packages=["yq"])
