"""A blueprint's packages are settled when its sandbox is created, or every fault is named."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_django.fixtures import Settings

from builds.planner import Catalogue, plan
from controlplane.errors import BadGateway, ValidationFailed
from tests.conformance import codes_told
from tests.conftest import Answer, Api
from tests.workspaces.packages.package_index import write_index
from workspaces.blueprint import Blueprint, PackageRequest
from workspaces.families import FAMILIES
from workspaces.models import Attempt, BuildJob, Package, Sandbox, Workspace
from workspaces.packages.aliases import aliases
from workspaces.packages.facts import NOTHING
from workspaces.packages.standardization import standardize, standardize_with_index

SANDBOXES = "/v1/sandboxes"
DEBIAN = {
    "ripgrep": ["13.0.0-4+b2"],
    "nodejs": ["18.20.4-1"],
    "npm": ["9.2.0-1"],
    "jq": ["1.6-2.1+deb12u1", "1.6-2.1"],
    "libvirt-clients": ["9.0.0-4"],
    "gawk": ["1"],
    "mawk": ["1"],
    "docker-compose": ["1.29"],
}


def requests(*words: str) -> list[PackageRequest]:
    """Return requests out of ``name`` and ``name=version``."""
    return [
        PackageRequest(id=name, version=version or None)
        for name, _, version in (word.partition("=") for word in words)
    ]


def names(os_family: str, *words: str) -> list[str]:
    return [
        f"{package.id}={package.version}" if package.version else package.id
        for package in standardize_with_index(requests(*words), os_family)
    ]


def faults(os_family: str, *words: str) -> dict[str, str]:
    with pytest.raises(ValidationFailed) as caught:
        standardize_with_index(requests(*words), os_family)
    return {fault.pointer: fault.code for fault in caught.value.errors}


@pytest.fixture
def index(db: None) -> None:
    write_index("debian", DEBIAN, provides={"gawk": ["awk"], "mawk": ["awk"]})


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
@pytest.mark.django_db
def test_a_tool_is_found_under_the_name_people_use(os_family: str, expected: list[str]) -> None:
    assert names(os_family, "node", "fd", "build-essential", "ssh", "golang") == expected


@pytest.mark.parametrize(
    ("alias", "package"),
    [
        *(("nvim", "neovim"), ("rg", "ripgrep"), ("batcat", "bat"), ("python", "python3")),
        *(("dig", "bind9-dnsutils"), ("psql", "postgresql-client"), ("R", "r-base")),
    ],
)
@pytest.mark.django_db
def test_common_aliases_are_known_on_debian(alias: str, package: str) -> None:
    assert names("debian", alias) == [package]


@pytest.mark.usefixtures("index")
class TestWithAnIndex:
    def test_each_package_comes_once_where_it_is_first_asked_for(self) -> None:
        assert names("debian", "npm", "jq", "node", "nodejs", "JQ") == ["npm", "jq", "nodejs"]

    def test_a_name_is_written_as_the_distribution_writes_it(self) -> None:
        assert names("debian", "LibVirt-Clients", "RG") == ["libvirt-clients", "ripgrep"]

    def test_a_version_counts_wherever_it_is_given(self) -> None:
        assert names("debian", "jq", "jq=1.6-2.1", "jq") == ["jq=1.6-2.1"]

    def test_a_version_of_several_packages_is_for_the_one_that_was_named(self) -> None:
        assert names("debian", "nodejs=18.20.4-1") == ["nodejs=18.20.4-1", "npm"]
        assert faults("debian", "node=18.20.4-1") == {
            "/spec/tooling/packages/0/id": "package-version-ambiguous"
        }

    def test_all_problems_are_reported_together(self) -> None:
        asked = ["jq=1.6-2.1", "a_b", "jq=1.6-2.1+deb12u1", "pnpm", "mawk:i386", "nosuch", "mawk"]
        asked += ["awk", "docker_compose", "jq=9", "a:b:c"]
        assert faults("debian", *asked) == {
            "/spec/tooling/packages/1/id": "package-name-invalid",
            "/spec/tooling/packages/2/id": "conflicting-versions",
            "/spec/tooling/packages/3/id": "package-not-offered",
            "/spec/tooling/packages/4/id": "package-architecture-unavailable",
            "/spec/tooling/packages/5/id": "package-not-found",
            "/spec/tooling/packages/7/id": "package-ambiguous",
            "/spec/tooling/packages/8/id": "package-ambiguous",
            "/spec/tooling/packages/9/version": "package-version-unavailable",
            "/spec/tooling/packages/10/id": "package-name-invalid",
        }

    def test_two_hundred_names_take_few_statements(
        self, django_assert_max_num_queries: Any
    ) -> None:
        with django_assert_max_num_queries(25), pytest.raises(ValidationFailed) as caught:
            standardize_with_index(requests(*(f"unheard-of-{n}" for n in range(200))), "debian")
        assert len(caught.value.errors) == 200

    def test_no_package_asks_nothing(self, django_assert_num_queries: Any) -> None:
        with django_assert_num_queries(0):
            assert standardize_with_index([], "debian") == ()


@pytest.mark.django_db
def test_a_version_of_a_snapshot_on_fedora_can_be_asked_for(api: Api) -> None:
    version = "1.0^20230101gitabc-1.fc43"
    write_index("fedora", {"tool": [version, "1.0-1.fc43"]})
    query = {"query": f"tool={version}", "targetOs": "fedora"}
    assert api.get(f"/v1/packages/resolve?{urlencode(query)}").body["status"] == "resolved"
    assert names("fedora", f"tool={version}") == [f"tool={version}"]


@pytest.mark.django_db
def test_a_name_of_an_earlier_index_that_no_blueprint_can_hold_is_a_fault() -> None:
    write_index("arch", {"jq": ["1"]}, provides={"jq": ["json"]})
    Package.objects.filter(name="jq").update(name="a@b", folded="a@b")
    Package.objects.filter(name="json").update(providers=["a@b"])
    assert faults("arch", "json") == {"/spec/tooling/packages/0/id": "package-name-invalid"}


@pytest.mark.django_db
class TestWithoutAnIndex:
    def test_the_table_is_enough_for_the_names_it_knows(self) -> None:
        assert names("debian", "rg", "node") == ["ripgrep", "nodejs", "npm"]

    @pytest.mark.parametrize("word", ["libvirt-clients", "jq=1.6-2.1"])
    def test_the_rest_cannot_be_checked(self, word: str) -> None:
        with pytest.raises(BadGateway) as caught:
            standardize_with_index(requests("rg", word), "debian")
        assert caught.value.code == "package-index-unavailable"
        assert [fault.pointer for fault in caught.value.errors] == ["/spec/tooling/packages/1/id"]

    def test_faults_of_the_request_come_first(self) -> None:
        assert faults("debian", "libvirt-clients", "a_b", "pnpm") == {
            "/spec/tooling/packages/1/id": "package-name-invalid",
            "/spec/tooling/packages/2/id": "package-not-offered",
        }


class TestRequests:
    """Through the endpoints, which both end in one service."""

    @staticmethod
    def post(api: Api, body: dict[str, Any], *packages: Any, expect: int, path: str) -> Answer:
        body["spec"]["tooling"] = {"packages": list(packages)}
        if path == "/v1/workspaces":
            body["name"] = "Packages"
        return api.post(path, body, expect=expect)

    @pytest.mark.parametrize("path", [SANDBOXES, "/v1/workspaces"])
    def test_the_stored_spec_has_the_resolved_names_and_the_image_too(
        self, api: Api, request_body: dict[str, Any], index: None, path: str
    ) -> None:
        wanted = [{"id": "RG"}, {"id": "jq", "version": "1.6-2.1"}, {"id": "mawk:amd64"}]
        self.post(api, request_body, *wanted, expect=202, path=path)
        stored = Attempt.objects.get().spec
        assert stored["tooling"]["packages"] == [
            {"id": "ripgrep"},
            {"id": "jq", "version": "1.6-2.1"},
            {"id": "mawk"},
        ]
        catalogue = Catalogue({"debian": "debian:12"})
        planned = plan(Blueprint.parse(stored), "auto", catalogue)
        (listed,) = (f.content for f in planned.files if f.path == "install/packages.list")
        assert listed == b"ripgrep\njq=1.6-2.1\nmawk\n"

    @pytest.mark.parametrize("path", [SANDBOXES, "/v1/workspaces"])
    def test_every_fault_is_told_and_nothing_is_written(
        self, api: Api, request_body: dict[str, Any], index: None, path: str
    ) -> None:
        wanted = [{"id": "nosuch"}, {"id": "rg"}, {"id": "awk"}, {"id": "jq", "version": "9"}]
        answer = self.post(api, request_body, *wanted, expect=400, path=path)
        assert answer.codes == {
            "/spec/tooling/packages/0/id": "package-not-found",
            "/spec/tooling/packages/2/id": "package-ambiguous",
            "/spec/tooling/packages/3/version": "package-version-unavailable",
        }
        assert "gawk, mawk" in answer.content.decode()
        assert not Workspace.objects.exists()
        assert not Sandbox.objects.exists()
        assert not BuildJob.objects.exists()

    @pytest.mark.django_db
    def test_an_index_that_was_never_read_is_told(
        self, api: Api, request_body: dict[str, Any]
    ) -> None:
        answer = self.post(api, request_body, {"id": "mawk"}, expect=502, path=SANDBOXES)
        assert answer.body["code"] == "package-index-unavailable"
        assert answer.body["code"] in codes_told("POST", SANDBOXES)
        assert answer.codes == {"/spec/tooling/packages/0/id": "package-index-unavailable"}
        assert not Workspace.objects.exists()

    @pytest.mark.django_db
    def test_auto_is_the_default_family(
        self, api: Api, request_body: dict[str, Any], settings: Settings
    ) -> None:
        settings.SVC_DEFAULT_OS_FAMILY = "alpine"
        self.post(api, request_body, {"id": "github-cli"}, expect=202, path=SANDBOXES)
        assert Attempt.objects.get().spec["tooling"]["packages"] == [{"id": "github-cli"}]


@pytest.mark.parametrize("os_family", FAMILIES)
def test_the_table_knows_many_tools_and_only_sound_names(os_family: str) -> None:
    table = aliases(os_family)
    assert len(table) >= 300
    assert len([name for name, packages in table.items() if packages and packages != (name,)]) > 150
    for packages in table.values():
        for package in packages:
            assert FAMILIES[os_family].package_name.fullmatch(package)
    for name in table:
        assert name == name.lower()


@pytest.mark.parametrize("os_family", FAMILIES)
def test_what_is_standard_stays_as_it_is(os_family: str) -> None:
    for name, packages in aliases(os_family).items():
        if packages:
            once = standardize(requests(name), os_family, NOTHING)
            assert standardize(once, os_family, NOTHING) == once, name


@given(
    st.sampled_from(sorted(FAMILIES)),
    st.lists(st.sampled_from([name for name, found in aliases("debian").items() if found])),
)
def test_standardizing_twice_changes_nothing(os_family: str, asked: list[str]) -> None:
    offered = [name for name in asked if aliases(os_family)[name]]
    once = standardize(requests(*offered), os_family, NOTHING)
    assert set(standardize(once, os_family, NOTHING)) == set(once)
    assert len({package.id for package in once}) == len(once)
