"""What names mean: override, curated table, index, in that order; nothing close is ever chosen."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils.dateparse import parse_datetime
from hypothesis import given
from hypothesis import strategies as st
from pytest_django.fixtures import Settings

from tests.conftest import Answer, Api
from tests.workspaces.packages.package_index import write_index
from workspaces.families import FAMILIES
from workspaces.models import PackageIndex
from workspaces.packages.aliases import aliases
from workspaces.packages.facts import NOTHING
from workspaces.packages.names import Query, one_slip_apart, squeezed, stem
from workspaces.packages.resolver import Reason, resolve

DEBIAN = {
    "ripgrep": ["13.0.0-4+b2"],
    "nodejs": ["18.20.4+dfsg-1~deb12u3", "18.13.0+dfsg1-1"],
    "npm": ["9.2.0~ds1-1"],
    "g++": ["4:12.2.0-3"],
    "jq": ["1.6-2.1+deb12u1", "1.6-2.1"],
    "libssl-dev": ["3.0.15-1"],
    "libsasl2-dev": ["2.1.28"],
    "python3-requests": ["2.28.1"],
    "docker-compose": ["1.29.2-3"],
    "gawk": ["1:5.2.1-2"],
    "mawk": ["1.3.4"],
    "exim4-daemon-light": ["4.96"],
    "tree": ["2.1.0-1"],
}
PROVIDES = {"gawk": ["awk"], "mawk": ["awk"], "exim4-daemon-light": ["default-mta"]}


def ask(api: Api, query: str, target_os: str | None = "debian", *, expect: int = 200) -> Answer:
    target = "" if target_os is None else f"&targetOs={target_os}"
    return api.get(f"/v1/packages/resolve?query={quote(query, safe='')}{target}", expect=expect)


@pytest.fixture
def debian(db: None) -> None:
    write_index("debian", DEBIAN, provides=PROVIDES)


@pytest.mark.usefixtures("debian")
class TestWhatIsResolved:
    @pytest.mark.parametrize(
        ("query", "source", "packages"),
        [
            ("ripgrep", "alias", ["ripgrep"]),
            ("rg", "alias", ["ripgrep"]),
            ("  RG ", "alias", ["ripgrep"]),
            ("node", "alias", ["nodejs", "npm"]),
            ("gcc++", "alias", ["g++"]),
            ("libsasl2-dev", "index", ["libsasl2-dev"]),
            ("LibSASL2-Dev", "index", ["libsasl2-dev"]),
            ("default-mta", "index", ["exim4-daemon-light"]),
            ("mawk:amd64", "index", ["mawk"]),
            ("mawk:x86_64", "index", ["mawk"]),
            ("mawk:all", "index", ["mawk"]),
            ("jq=1.6-2.1", "alias", ["jq"]),
            ("default-mta=4.96", "index", ["exim4-daemon-light"]),
        ],
    )
    def test_by_table_index_and_what_is_provided(
        self, api: Api, query: str, source: str, packages: list[str]
    ) -> None:
        body = ask(api, query).body
        assert (body["status"], body["origin"]) == ("resolved", source)
        assert [package["name"] for package in body["packages"]] == packages
        assert body["selectedProject"] == packages[0]
        assert body["alternatives"] == []

    def test_the_answer_has_every_member(self, api: Api) -> None:
        body = ask(api, " Node=18.13.0+dfsg1-1 ").body
        assert body.pop("fetchedAt") < body.pop("expiresAt")
        unread = {"supported": False, "status": "index-unread"}
        assert body == {
            "requested": "Node=18.13.0+dfsg1-1",
            "normalized": "node=18.13.0+dfsg1-1",
            "status": "ambiguous",
            "source": "override",
            "origin": "alias",
            "canonicalId": "nodejs",
            "packages": [],
            "osSupport": {
                "debian": {"supported": False, "status": "version-ambiguous"},
                "ubuntu": {"supported": False, "status": "version-ambiguous"},
                "fedora": {"supported": False, "status": "version-ambiguous"},
                "arch": {"supported": False, "status": "version-unsupported"},
                "alpine": {"supported": False, "status": "version-ambiguous"},
                "nix": {"supported": False, "status": "unsupported-os"},
            },
            "alternatives": [{"projectName": "nodejs"}, {"projectName": "npm"}],
            "reason": "version-ambiguous",
            "detail": body["detail"],
        }
        body = ask(api, "nodejs=18.13.0+dfsg1-1").body
        assert body["packages"] == [
            {
                "name": "nodejs",
                "version": "18.13.0+dfsg1-1",
                "offered": "18.20.4+dfsg-1~deb12u3",
                "repository": "main",
            },
            {"name": "npm", "offered": "9.2.0~ds1-1", "repository": "main"},
        ]
        assert body["osSupport"]["debian"] == {
            "supported": True,
            "packageName": "nodejs",
            "projectName": "nodejs",
            "version": "18.20.4+dfsg-1~deb12u3",
            "repo": "main",
        }
        assert body["osSupport"]["fedora"] == unread

    def test_it_expires_as_the_operator_wants(self, api: Api, settings: Settings) -> None:
        settings.PACKAGE_INDEX_TTL_MS = 60_000
        body = ask(api, "tree").body
        fetched_at, expires_at = (parse_datetime(body[at]) for at in ("fetchedAt", "expiresAt"))
        assert fetched_at is not None
        assert expires_at == fetched_at + timedelta(minutes=1)

    def test_the_default_family_is_meant_where_none_is_named(
        self, api: Api, settings: Settings
    ) -> None:
        assert ask(api, "tree", None).body["status"] == "resolved"
        settings.SVC_DEFAULT_OS_FAMILY = "fedora"
        assert ask(api, "moreutils", None).body["osSupport"]["fedora"]["supported"]

    def test_a_resolve_is_one_statement_and_a_miss_two(self, api: Api) -> None:
        for query, statements in (("rg", 1), ("libsasl2-dev", 1), ("awk", 1), ("rigprep", 2)):
            with CaptureQueriesContext(
                connection,
            ) as asked:
                ask(api, query)
            assert len(asked) == statements, query


@pytest.mark.usefixtures("debian")
class TestWhatIsNotResolved:
    @pytest.mark.parametrize(
        ("query", "reason", "alternatives"),
        [
            ("awk", "several-providers", ["gawk", "mawk"]),
            ("docker_compose", "similar-names", ["docker-compose"]),
            ("docker.compose", "similar-names", ["docker-compose"]),
            ("ripgerp", "similar-names", ["ripgrep"]),
            ("riprep", "similar-names", ["ripgrep"]),
            ("rippgrep", "similar-names", ["ripgrep"]),
            ("libssl-dve", "similar-names", ["libssl-dev"]),
            ("requests", "similar-names", ["python3-requests"]),
            ("exim4", "similar-names", ["exim4-daemon-light"]),
            ("tree-", "similar-names", ["tree"]),
        ],
    )
    def test_what_is_close_is_ambiguous(
        self, api: Api, query: str, reason: str, alternatives: list[str]
    ) -> None:
        body = ask(api, query).body
        assert (body["status"], body["reason"]) == ("ambiguous", reason)
        assert [other["projectName"] for other in body["alternatives"]] == alternatives
        assert body["packages"] == []
        assert "selectedProject" not in body

    @pytest.mark.parametrize(
        ("query", "status", "reason"),
        [
            ("no-such-thing-anywhere", "not-found", "unknown"),
            ("gcc:i386", "unsupported", "not-packaged"),
            ("mawk:i386", "unsupported", "architecture-unavailable"),
            ("jq=9.9", "unsupported", "version-unavailable"),
            ("pnpm", "unsupported", "not-packaged"),
            ("a b", "invalid", "name-invalid"),
            ("-x", "invalid", "name-invalid"),
            ("jq=", "invalid", "name-invalid"),
            ("jq:", "invalid", "name-invalid"),
            ("jq=1;rm", "invalid", "name-invalid"),
            ("$(id)", "invalid", "name-invalid"),
            ("../../etc", "invalid", "name-invalid"),
            ("jq'--", "invalid", "name-invalid"),
            ("%", "invalid", "name-invalid"),
            ("ж", "invalid", "name-invalid"),
        ],
    )
    def test_the_answer_says_why(self, api: Api, query: str, status: str, reason: str) -> None:
        body = ask(api, query).body
        assert (body["status"], body["reason"]) == (status, reason)
        assert body["packages"] == []
        assert body["detail"]

    def test_a_version_that_is_not_offered_is_answered_with_those_that_are(self, api: Api) -> None:
        detail = ask(api, "jq=9.9").body["detail"]
        assert "1.6-2.1+deb12u1, 1.6-2.1" in detail

    def test_a_name_of_another_family_is_unsupported_and_says_of_which(self, api: Api) -> None:
        write_index("arch", {"paru-like-helper": ["2.0-1"]})
        body = ask(api, "paru-like-helper").body
        assert (body["status"], body["reason"]) == ("unsupported", "not-packaged")
        assert "Arch Linux" in body["detail"]
        assert body["osSupport"]["arch"]["supported"]

    def test_nix_is_unsupported_and_the_answer_says_what_supports_it(self, api: Api) -> None:
        for query in ("rg", "libsasl2-dev"):
            body = ask(api, query, "nix").body
            assert (body["status"], body["reason"]) == ("unsupported", "unsupported-os")
            assert "Debian" in body["detail"]
            assert body["packages"] == []
            assert body["osSupport"]["debian"]["supported"]
            assert body["osSupport"]["nix"] == {"supported": False, "status": "unsupported-os"}
        assert ask(api, "!!", "nix").body["status"] == "invalid"

    def test_the_source_is_told_in_the_words_of_other_clients_too(self, api: Api) -> None:
        shown = [ask(api, query).body for query in ("rg", "libsasl2-dev", "wholly-unheard-of")]
        assert [body["source"] for body in shown] == ["override", "cache", "cache"]
        assert [body["origin"] for body in shown] == ["alias", "index", "index"]

    @pytest.mark.parametrize("value", ["", "%20", "a%00b", "x" * 256, "a%0Ab"])
    def test_a_malformed_query_is_a_fault_of_the_request(self, api: Api, value: str) -> None:
        answer = api.get(f"/v1/packages/resolve?query={value}", expect=400)
        assert list(answer.codes) == ["query"]

    def test_all_faults_of_the_request_are_told(self, api: Api) -> None:
        answer = api.get("/v1/packages/resolve?targetOs=windows&quarry=a", expect=400)
        assert set(answer.codes) == {"query", "targetOs", "quarry"}


@pytest.mark.django_db
class TestWithoutAnIndex:
    def test_the_family_is_named(self, api: Api) -> None:
        answer = ask(api, "libsasl2-dev", "alpine", expect=502)
        assert answer.body["code"] == "package-index-unavailable"
        assert answer.body["targetOs"] == "alpine"
        assert "syncpackages --family alpine" in answer.body["detail"]

    def test_what_the_table_knows_is_answered(self, api: Api) -> None:
        body = ask(api, "rg").body
        assert (body["status"], body["origin"]) == ("resolved", "alias")
        assert body["packages"] == [{"name": "ripgrep"}]
        assert "fetchedAt" not in body

    @pytest.mark.parametrize("query", ["rg=13", "rg:amd64"])
    def test_versions_and_architectures_cannot_be_checked(self, api: Api, query: str) -> None:
        assert ask(api, query, expect=502).body["code"] == "package-index-unavailable"

    def test_a_failed_reading_is_not_an_index(self, api: Api) -> None:
        PackageIndex.objects.create(family="debian", failures=3, error="mirror is away")
        answer = ask(api, "tree", expect=200)
        assert answer.body["origin"] == "alias"
        answer = ask(api, "libsasl2-dev", expect=502)
        assert "mirror is away" not in answer.content.decode()


@pytest.mark.django_db
class TestOtherFamilies:
    def test_the_table_gives_way_to_the_index(self, api: Api) -> None:
        # The table says that this Debian has no pnpm, and that its docker is docker.io.
        write_index("debian", {"pnpm": ["9"], "docker": ["27"]})
        assert ask(api, "pnpm").body["packages"][0]["name"] == "pnpm"
        assert ask(api, "docker").body["packages"][0]["name"] == "docker"
        body = ask(api, "rg").body
        assert (body["status"], body["reason"]) == ("unsupported", "not-packaged")

    def test_capitals_count_only_where_packages_differ_in_nothing_else(self, api: Api) -> None:
        write_index("fedora", {"NetworkManager": ["1-1"], "Pencil": ["1-1"], "pencil": ["2-1"]})
        assert ask(api, "networkmanager", "fedora").body["selectedProject"] == "NetworkManager"
        assert ask(api, "Pencil", "fedora").body["selectedProject"] == "Pencil"
        body = ask(api, "PENCIL", "fedora").body
        assert body["status"] == "ambiguous"
        assert {other["projectName"] for other in body["alternatives"]} == {"Pencil", "pencil"}

    @pytest.mark.parametrize("version", ["32:9.18.28-1.fc43", "9.18.28-1.fc43", "9.18.28"])
    def test_dnf_takes_parts_of_a_version(self, api: Api, version: str) -> None:
        write_index("fedora", {"bind": ["32:9.18.28-1.fc43"]})
        assert ask(api, f"bind={version}", "fedora").body["status"] == "resolved"
        assert ask(api, "bind=9.18", "fedora").body["reason"] == "version-unavailable"

    def test_dnf_names_architectures_after_a_dot(self, api: Api) -> None:
        write_index("fedora", {"glibc-langpack-en": ["2-1"], "java.noarch": ["1-1"]})
        assert ask(api, "glibc-langpack-en.x86_64", "fedora").body["status"] == "resolved"
        body = ask(api, "glibc-langpack-en.i686", "fedora").body
        assert body["reason"] == "architecture-unavailable"
        assert ask(api, "java.noarch", "fedora").body["selectedProject"] == "java.noarch"

    def test_arch_has_one_version_of_each_package(self, api: Api) -> None:
        write_index("arch", {"jq": ["1.7.1-1"]})
        assert ask(api, "jq=1.7.1-1", "arch").body["reason"] == "version-unsupported"


class TestNames:
    @pytest.mark.parametrize(
        ("one", "other"),
        [("ripgrep", "ripgrp"), ("ripgrep", "ripgrepp"), ("abcd", "abdc"), ("abcd", "xbcd")],
    )
    def test_one_slip(self, one: str, other: str) -> None:
        assert one_slip_apart(one, other)
        assert one_slip_apart(other, one)

    @pytest.mark.parametrize(("one", "other"), [("abcd", "badc"), ("abcd", "ab"), ("abc", "cba")])
    def test_two_slips(self, one: str, other: str) -> None:
        assert not one_slip_apart(one, other)

    @given(st.text("abc", max_size=8), st.text("abc", max_size=8))
    def test_slips_are_what_they_are_called(self, one: str, other: str) -> None:
        """Compared with all texts that are one slip from ``one``."""
        slips = {one}
        for at in range(len(one) + 1):
            slips |= {one[:at] + more + one[at:] for more in "abc"}
            slips |= {one[:at] + other + one[at + 1 :] for other in ["", *"abc"] if at < len(one)}
            if at + 1 < len(one):
                slips.add(one[:at] + one[at + 1] + one[at] + one[at + 2 :])
        assert one_slip_apart(one, other) is (other in slips)

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("libssl-dev", "ssl"),
            ("python3-requests", "requests"),
            ("postgresql-client-15", "postgresql"),
            ("lib", "lib"),
            ("7zip", "7zip"),
            ("2048", "2048"),
        ],
    )
    def test_the_stem_is_what_distributions_put_their_words_around(
        self, name: str, expected: str
    ) -> None:
        assert stem(name) == expected

    @given(st.text(max_size=300))
    def test_no_text_is_too_strange_to_take_apart(self, text: str) -> None:
        try:
            query = Query.parse(text)
        except ValueError:
            return
        assert squeezed(query.folded).isascii()
        for family in FAMILIES:
            found = resolve(query, family, NOTHING)
            assert found.is_resolved or found.reason is not None

    @pytest.mark.parametrize("os_family", FAMILIES)
    def test_the_table_is_answered_without_an_index(self, os_family: str) -> None:
        for name, packages in aliases(os_family).items():
            found = resolve(Query.parse(name), os_family, NOTHING)
            assert tuple(package.name for package in found.packages) == packages
            if not packages:
                assert found.reason == Reason.NOT_PACKAGED


def test_nothing_of_the_database_is_in_an_answer(api: Api, db: Any) -> None:
    write_index("debian", DEBIAN)
    for query in ("'; drop table workspaces_package; --", "\\", '"', "%s", "a||pg_sleep(9)"):
        assert ask(api, query).body["status"] == "invalid"
