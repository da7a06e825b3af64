"""Bad input gets a 4xx in the common shape, never a 5xx and never half a workspace."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import Api
from tests.workspaces.attacks import INJECTIONS, PATH, assert_nothing_written, refused
from tests.workspaces.packages.package_index import write_index

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("text", INJECTIONS)
@pytest.mark.parametrize("member", ["name", "registryId", "repository", "tag", "ownerUserId"])
def test_outer_text_that_injects_is_refused_or_kept_as_text(
    api: Api, request_body: dict[str, Any], member: str, text: str
) -> None:
    answer = api.request("POST", PATH, {**request_body, member: text})
    if answer.status == 202:
        assert api.get(answer.headers["location"]).body[member] == text
    else:
        assert answer.status in {400, 404}
        assert_nothing_written()


@pytest.mark.parametrize(
    "repository",
    [
        "A/b", "a b", "a//b", "/a", "a/", "a..b", "a/../b", "-a", "a-", "a_", "a___b", ".a", "a:b",
        "a@b", "ä", "a?b=c", "a#b", "a%2fb", "a" * 256, "", " ", "a\\b", "a\n", "a/b/", "A",
    ],
)  # fmt: skip
def test_a_repository_outside_the_oci_grammar_is_refused(
    api: Api, request_body: dict[str, Any], repository: str
) -> None:
    body = {**request_body, "repository": repository}
    if repository.strip() != repository and repository.strip():
        assert api.request("POST", PATH, body).status in {202, 400}
        return
    assert set(refused(api, body).codes) == {"/repository"}


@pytest.mark.parametrize("repository", ["a", "a/b/c", "a-b", "a--b", "a_b", "a__b", "a.b", "0/9"])
def test_a_repository_of_the_oci_grammar_is_taken(
    api: Api, request_body: dict[str, Any], repository: str
) -> None:
    api.post(PATH, {**request_body, "repository": repository})


@pytest.mark.parametrize("tag", [".a", "-a", "a/b", "a:b", "ä", "a b", "a" * 129, "", "sha256:x"])
def test_a_tag_outside_the_oci_grammar_is_refused(
    api: Api, request_body: dict[str, Any], tag: str
) -> None:
    assert set(refused(api, {**request_body, "tag": tag}).codes) == {"/tag"}


@pytest.mark.parametrize("tag", ["latest", "_a", "V1.0-rc_1", "a" * 128])
def test_a_tag_of_the_oci_grammar_is_taken(
    api: Api, request_body: dict[str, Any], tag: str
) -> None:
    api.post(PATH, {**request_body, "tag": tag})


def test_a_regular_expression_is_not_led_astray(api: Api, request_body: dict[str, Any]) -> None:
    refused(api, {**request_body, "repository": "a" * 254 + "!"})
    refused(api, {**request_body, "repository": "a-" * 127 + "!"})
    refused(api, {**request_body, "repository": "a/" * 127 + "!"})


def test_every_fault_is_told_at_once(api: Api) -> None:
    body = {
        "ownerUserId": 5,
        "registryId": "",
        "repository": "NO",
        "tag": "!",
        "nam": "x",
        "sourceSelection": {"provider": "gitlab", "ref": 1},
        "spec": {"harness": {"id": "codx"}, "runtime": {"env": {"HOME": "/"}}},
    }
    answer = refused(api, body, headers={"idempotency-key": ""})
    assert answer.codes == {
        "/ownerUserId": "wrong-type",
        "/registryId": "blank",
        "/repository": "invalid-format",
        "/tag": "invalid-format",
        "/nam": "unknown-member",
        "/sourceSelection/provider": "invalid-choice",
        "/sourceSelection/ref": "wrong-type",
        "/sourceSelection/installationId": "required",
        "/sourceSelection/installationRepositoryId": "required",
        "idempotency-key": "blank",
        "/spec/harness/id": "not-allowed",
        "/spec/runtime/env/HOME": "reserved-name",
    }


def nested(kind: str, depth: int) -> bytes:
    opened, closed = ("[", "]") if kind == "array" else ('{"a":', "}")
    return (opened * depth + "1" + closed * depth).encode()


@pytest.mark.parametrize("kind", ["array", "object"])
@pytest.mark.parametrize("depth", [65, 1_000, 100_000])
@pytest.mark.parametrize("closed", [True, False])
def test_deep_json_is_refused(api: Api, kind: str, depth: int, closed: bool) -> None:
    body = nested(kind, depth)
    if not closed:
        body = body[: len(body) // 2]
    answer = refused(api, raw=body)
    assert answer.body["code"] in {"body-too-deep", "malformed-json"}


def test_brackets_in_strings_are_not_nesting(api: Api, request_body: dict[str, Any]) -> None:
    request_body["spec"]["runtime"] = {"env": {"A": '[{"\\"' * 500}}
    api.post(PATH, request_body)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"{", "malformed-json"),
        (b"{'a': 1}", "malformed-json"),
        (b'{"a": 1,}', "malformed-json"),
        (b'{"a": 1} x', "malformed-json"),
        (b"\xff\xfe{}", "malformed-json"),
        (b'{"a": "\xc3\x28"}', "malformed-json"),
        (b'{"a": "\xed\xa0\x80"}', "malformed-json"),
        (b"\xef\xbb\xbf{}", "malformed-json"),
        ('{"a": 1}'.encode("utf-16"), "malformed-json"),
        (b'{"a": "\n"}', "malformed-json"),
        (b'{"a": NaN}', "malformed-json"),
        (b'{"a": Infinity}', "malformed-json"),
        (b'{"a": -Infinity}', "malformed-json"),
        (b'{"a": 1e999}', "malformed-json"),
        (b'{"a": -1e999}', "malformed-json"),
        (b'{"a": ' + b"9" * 4001 + b"}", "malformed-json"),
        (b'{"a": 0x10}', "malformed-json"),
        (b'{"a": 01}', "malformed-json"),
        (b"\x00", "malformed-json"),
        (b'{"a": 1, "a": 1}', "duplicate-member"),
        (b'{"spec": {"x": {"a": 1, "a": 2}}}', "duplicate-member"),
        (b'{"\\u0061": 1, "a": 2}', "duplicate-member"),
        (b'"' + b"\\" * 100_001, "malformed-json"),
    ],
)
def test_what_is_not_strict_json_is_refused(api: Api, raw: bytes, code: str) -> None:
    answer = refused(api, raw=raw)
    assert answer.status == 400
    assert answer.body["code"] == code
    for inside in ("utf-8-sig", "Traceback", "RecursionError", "int()", "codec"):
        assert inside not in answer.body["detail"]


@pytest.mark.parametrize(
    "value", ["1e308", "1e-400", "-0", "9" * 40, "0." + "3" * 4000, "123456789012345678901"]
)
@pytest.mark.parametrize("member", ["memoryMb", "cpus", "pids"])
def test_numbers_that_json_allows_and_we_do_not_are_refused(
    api: Api, request_body: dict[str, Any], member: str, value: str
) -> None:
    raw = json.dumps(request_body).replace(
        '"spec": {', f'"spec": {{"runtime": {{"resources": {{"{member}": {value}}}}}, '
    )
    answer = api.request("POST", PATH, raw=raw.encode())
    if answer.status != 202:
        assert answer.status == 400
        assert_nothing_written()
    else:
        assert member == "cpus"
        assert value.startswith("0.")


def test_a_body_of_ten_mebibytes_is_a_413(api: Api, request_body: dict[str, Any]) -> None:
    answer = refused(api, {**request_body, "name": "a" * 10 * 1024 * 1024})
    assert answer.status == 413
    assert answer.body["code"] == "body-too-large"


def test_a_body_of_almost_a_mebibyte_is_read(api: Api, request_body: dict[str, Any]) -> None:
    for junk in ("a" * 1_000_000, "\x00" * 160_000, ["\x00"] * 50_000):
        assert refused(api, {**request_body, "name": junk}).status == 400


def test_a_hundred_thousand_unknown_members_are_answered_briefly(
    api: Api, request_body: dict[str, Any]
) -> None:
    answer = refused(api, {**request_body, **{f"m{index}": 1 for index in range(80_000)}})
    assert len(answer.content) < 100_000
    request_body["spec"] = {f"m{index}": 1 for index in range(80_000)}
    assert len(refused(api, request_body).content) < 100_000
    assert len(refused(api, {**request_body, "n" * 900_000: 1}).content) < 100_000


def test_a_thousand_packages_are_refused(api: Api, request_body: dict[str, Any]) -> None:
    request_body["spec"]["tooling"] = {"packages": [{"id": f"p{n}"} for n in range(1000)]}
    assert refused(api, request_body).codes == {"/spec/tooling/packages": "too-many"}


def test_two_hundred_packages_are_taken(api: Api, request_body: dict[str, Any]) -> None:
    write_index("debian", {f"p{n}": ["1"] for n in range(200)})
    request_body["spec"]["tooling"] = {"packages": [{"id": f"p{n}"} for n in range(200)]}
    api.post(PATH, request_body)


@pytest.mark.parametrize("member", ["spec", "name", "repository", "x\u0000y", "\ud800"])
def test_member_names_that_cannot_be_stored_are_refused(
    api: Api, request_body: dict[str, Any], member: str
) -> None:
    request_body["spec"][f"{member}\u0000"] = 1
    refused(api, raw=json.dumps(request_body).encode())
    refused(api, raw=json.dumps({member: {"\udfff": "x"}}).encode())


@pytest.mark.parametrize(
    "query",
    [
        "ownerUserId=a&ownerUserId=b",
        "ownerUserId=%00",
        "ownerUserId=" + "a" * 100_000,
        "ownerUserId=",
        "x" * 5000 + "=1",
        "%00=1",
        "ownerUserId=%FF%FE",
        "userId=%ED%A0%80",
        "ownerUserId[]=a",
        "=&=&;",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_query_that_is_garbage_is_never_our_fault(
    api: Api, request_body: dict[str, Any], query: str, method: str
) -> None:
    del request_body["ownerUserId"]
    body = request_body if method == "POST" else None
    answer = api.request(method, f"/v1/workspaces?{query}", body)
    assert answer.status in {200, 202, 400}
    assert len(answer.content) < 10_000
    if "&" in query or "%00" in query or "[]" in query:
        assert answer.status == 400
