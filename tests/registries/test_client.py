"""The registry client against the real registry, and against one that misbehaves."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from controlplane.oci_names import is_digest, is_repository, is_tag
from registries.client import InvalidReferenceError, RegistryClient, RegistryError

BASE_URL = os.environ.get("REGISTRY_BASE_URL", "http://127.0.0.1:5000")
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
GONE = "sha256:" + "0" * 64


def digest_of(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


@pytest.fixture
def client() -> Iterator[RegistryClient]:
    client = RegistryClient(BASE_URL, connect_timeout=2, read_timeout=5)
    yield client
    client.close()


@pytest.fixture
def repository() -> str:
    return f"tests/client-{uuid.uuid4().hex}"


def push_blob(repository: str, content: bytes) -> dict[str, object]:
    url = f"{BASE_URL}/v2/{repository}/blobs/uploads/"
    location = requests.post(url, timeout=5).headers["Location"]
    digest = digest_of(content)
    put = requests.put(location, params={"digest": digest}, data=content, timeout=5)
    assert put.status_code == 201
    return {"size": len(content), "digest": digest, "mediaType": "application/octet-stream"}


def put_manifest(repository: str, reference: str, media_type: str, document: object) -> str:
    content = json.dumps(document).encode()
    put = requests.put(
        f"{BASE_URL}/v2/{repository}/manifests/{reference}",
        data=content,
        headers={"Content-Type": media_type},
        timeout=5,
    )
    assert put.status_code == 201, put.text
    return digest_of(content)


def push_image(repository: str, tag: str, media_type: str = DOCKER_MANIFEST) -> str:
    """Push a small image of two layers and return its digest."""
    layers = [push_blob(repository, gzip.compress(uuid.uuid4().bytes)) for _ in range(2)]
    config = push_blob(repository, json.dumps({"id": uuid.uuid4().hex}).encode())
    document = {
        "schemaVersion": 2,
        "mediaType": media_type,
        "config": config,
        "layers": [*layers, layers[0]],
    }
    return put_manifest(repository, tag, media_type, document)


# The real registry


def test_the_registry_answers(client: RegistryClient) -> None:
    client.ping()


@pytest.mark.parametrize("media_type", [DOCKER_MANIFEST, OCI_MANIFEST])
def test_a_manifest_is_found_by_tag_and_by_digest(
    client: RegistryClient, repository: str, media_type: str
) -> None:
    digest = push_image(repository, "v1", media_type)
    assert client.head_manifest(repository, "v1") == digest
    assert client.head_manifest(repository, digest) == digest
    manifest = client.get_manifest(repository, "v1")
    assert manifest is not None
    assert (manifest.digest, manifest.media_type) == (digest, media_type)
    assert digest_of(manifest.content) == digest


def test_what_does_not_exist_is_none(client: RegistryClient, repository: str) -> None:
    assert client.head_manifest(repository, "v1") is None
    assert client.get_manifest(repository, "v1") is None
    push_image(repository, "v1")
    assert client.head_manifest(repository, "v2") is None
    assert client.head_manifest(repository, GONE) is None


@pytest.mark.parametrize("media_type", [DOCKER_MANIFEST, OCI_MANIFEST])
def test_a_copy_names_the_same_manifest_in_another_repository(
    client: RegistryClient, repository: str, media_type: str
) -> None:
    digest = push_image(repository, "v1", media_type)
    assert client.copy(repository, digest, f"{repository}/copy", "other")
    assert client.head_manifest(f"{repository}/copy", "other") == digest
    assert client.copy(repository, digest, f"{repository}/copy", "again")
    assert client.head_manifest(f"{repository}/copy", "again") == digest
    manifest = client.get_manifest(f"{repository}/copy", digest)
    assert manifest is not None
    for layer in manifest.parsed()["layers"]:
        url = f"{BASE_URL}/v2/{repository}/copy/blobs/{layer['digest']}"
        assert requests.head(url, timeout=5).status_code == 200


def test_a_copy_within_a_repository_adds_a_tag_and_may_move_one(
    client: RegistryClient, repository: str
) -> None:
    first, second = push_image(repository, "v1"), push_image(repository, "v2")
    assert client.copy(repository, first, repository, "v2")
    assert client.head_manifest(repository, "v2") == first
    assert client.head_manifest(repository, second) == second


def test_an_index_is_copied_with_its_manifests(client: RegistryClient, repository: str) -> None:
    children = [push_image(repository, f"child{n}", OCI_MANIFEST) for n in range(2)]
    manifests = []
    for child in children:
        manifest = client.get_manifest(repository, child)
        assert manifest is not None
        manifests.append(
            {
                "mediaType": OCI_MANIFEST,
                "digest": child,
                "size": len(manifest.content),
                "platform": {"architecture": "amd64", "os": "linux"},
            }
        )
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests}
    digest = put_manifest(repository, "all", OCI_INDEX, index)
    assert client.copy(repository, digest, f"{repository}-copy", "all")
    assert client.head_manifest(f"{repository}-copy", "all") == digest
    assert client.head_manifest(f"{repository}-copy", children[1]) == children[1]


def test_what_is_gone_cannot_be_copied(client: RegistryClient, repository: str) -> None:
    digest = push_image(repository, "v1")
    assert not client.copy(f"{repository}-none", digest, repository, "v2")
    assert not client.copy(repository, GONE, repository, "v2")
    assert client.delete_manifest(repository, digest)
    assert not client.copy(repository, digest, f"{repository}-copy", "v1")
    assert client.head_manifest(f"{repository}-copy", "v1") is None


def test_an_image_whose_layer_is_gone_is_not_copied(
    client: RegistryClient, repository: str
) -> None:
    digest = push_image(repository, "v1")
    manifest = client.get_manifest(repository, digest)
    assert manifest is not None
    layer = manifest.parsed()["layers"][1]["digest"]
    requests.delete(f"{BASE_URL}/v2/{repository}/blobs/{layer}", timeout=5).raise_for_status()
    assert not client.copy(repository, digest, f"{repository}-copy", "v1")
    assert client.head_manifest(f"{repository}-copy", "v1") is None


def test_a_manifest_is_deleted_once(client: RegistryClient, repository: str) -> None:
    digest = push_image(repository, "v1")
    assert client.delete_manifest(repository, digest)
    assert client.head_manifest(repository, "v1") is None
    assert not client.delete_manifest(repository, digest)
    with pytest.raises(InvalidReferenceError):
        client.delete_manifest(repository, "v1")


# Names

BAD_NAMES = [
    *("", "A", "a//b", "/a", "a/", "a/../b", "a b", "a?x=1", "a#b", "a%2fb", "a\n", "-a", "a/-b"),
    *("a" * 256, "a/./b", "ü", "a___b"),
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_malformed_repository_never_reaches_the_registry(
    client: RegistryClient, name: str
) -> None:
    assert not is_repository(name)
    with pytest.raises(InvalidReferenceError):
        client.head_manifest(name, "v1")
    with pytest.raises(InvalidReferenceError):
        client.copy("a", GONE, name, "v1")


@pytest.mark.parametrize(
    "name", ["", ".a", "-a", "a/b", "a b", "a" * 129, "a:b", "sha256:12", "a\n"]
)
def test_a_malformed_reference_never_reaches_the_registry(
    client: RegistryClient, name: str
) -> None:
    assert not is_tag(name)
    assert not is_digest(name)
    with pytest.raises(InvalidReferenceError):
        client.get_manifest("a", name)


@pytest.mark.parametrize("name", ["a", "a/b/c", "a.b", "a_b", "a__b", "a--b", "0", "a" * 255])
def test_a_sound_repository_is_accepted(name: str) -> None:
    assert is_repository(name)


# A registry that misbehaves

Behaviour = Callable[[BaseHTTPRequestHandler], None]


class FakeRegistry:
    """Answers every request as the test says and remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.behaviour: Behaviour = lambda request: request.send_error(500)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                """Keep quiet."""

            def handle_any(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.requests.append((self.command, self.path, headers))
                self.rfile.read(int(self.headers.get("content-length") or 0))
                outer.behaviour(self)

            do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_any  # noqa: N815

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    fake = FakeRegistry()
    yield fake
    fake.close()


def answer(status: int, body: bytes = b"", **headers: str) -> Behaviour:
    def behave(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return behave


def hurried(fake: FakeRegistry, **account: str) -> RegistryClient:
    return RegistryClient(fake.url, connect_timeout=0.5, read_timeout=0.5, **account)


def failure(call: Callable[[], object]) -> RegistryError:
    with pytest.raises(RegistryError) as caught:
        call()
    error = caught.value
    assert error.status == 502
    for hidden in ("127.0.0.1", "http://", "Traceback", "urllib3", "hunter2"):
        assert hidden not in error.detail
    return error


def test_a_registry_nobody_runs_cannot_be_reached() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    client = RegistryClient(f"http://127.0.0.1:{port}", connect_timeout=0.5, read_timeout=0.5)
    assert "reached" in failure(client.ping).detail


def test_a_registry_that_does_not_answer_is_left_in_time(fake: FakeRegistry) -> None:
    fake.behaviour = lambda request: time.sleep(5)
    started = time.monotonic()
    assert "in time" in failure(hurried(fake).ping).detail
    assert time.monotonic() - started < 2


def test_an_answer_that_trickles_is_left_in_time(fake: FakeRegistry) -> None:
    def trickle(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "1000")
        request.end_headers()
        for _ in range(40):
            request.wfile.write(b"x")
            time.sleep(0.1)

    fake.behaviour = trickle
    started = time.monotonic()
    assert "in time" in failure(hurried(fake).ping).detail
    assert time.monotonic() - started < 2


def test_an_answer_that_is_too_large_is_not_read(fake: FakeRegistry) -> None:
    fake.behaviour = answer(200, b"x" * (5 * 1024 * 1024))
    assert "too large" in failure(lambda: hurried(fake).get_manifest("a", "v1")).detail


def test_an_answer_that_breaks_off_is_a_failure(fake: FakeRegistry) -> None:
    def break_off(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "1000")
        request.end_headers()
        request.wfile.write(b"{")
        request.wfile.flush()
        request.connection.shutdown(socket.SHUT_RDWR)

    fake.behaviour = break_off
    failure(lambda: hurried(fake).get_manifest("a", "v1"))


def test_a_server_error_names_its_status_after_a_reading_was_repeated(fake: FakeRegistry) -> None:
    fake.behaviour = answer(503, b"secret internals")
    error = failure(hurried(fake).ping)
    assert error.upstream_status == 503
    assert "503" in error.detail
    assert len(fake.requests) == 3


def test_a_registry_that_recovers_is_not_an_error(fake: FakeRegistry) -> None:
    def recover(request: BaseHTTPRequestHandler) -> None:
        answer(503 if len(fake.requests) == 1 else 200, b"{}")(request)

    fake.behaviour = recover
    hurried(fake).ping()


def test_writing_is_not_repeated(fake: FakeRegistry) -> None:
    fake.behaviour = answer(503)
    failure(lambda: hurried(fake).delete_manifest("a", GONE))
    assert len(fake.requests) == 1


def test_the_account_is_sent_and_a_redirect_does_not_carry_it_away(fake: FakeRegistry) -> None:
    elsewhere = FakeRegistry()
    fake.behaviour = answer(307, Location=f"{elsewhere.url}/v2/")
    client = hurried(fake, username="joe", password="hunter2")
    error = failure(client.ping)
    assert error.upstream_status == 307
    assert "redirect" in error.detail
    assert elsewhere.requests == []
    expected = "Basic " + base64.b64encode(b"joe:hunter2").decode()
    assert fake.requests[0][2]["authorization"] == expected
    elsewhere.close()


def test_a_refused_account_is_a_failure_with_the_registrys_status(fake: FakeRegistry) -> None:
    fake.behaviour = answer(401, WWW_Authenticate='Basic realm="x"')
    assert failure(hurried(fake).ping).upstream_status == 401


def test_all_manifest_formats_are_accepted(fake: FakeRegistry) -> None:
    fake.behaviour = answer(404)
    assert hurried(fake).head_manifest("a", "v1") is None
    for media_type in (DOCKER_MANIFEST, OCI_MANIFEST, OCI_INDEX):
        assert media_type in fake.requests[0][2]["accept"]


@pytest.mark.parametrize("stated", [GONE, "sha256:short", ""])
def test_a_manifest_that_is_not_what_its_digest_says_is_refused(
    fake: FakeRegistry, stated: str
) -> None:
    fake.behaviour = answer(200, b"{}", Docker_Content_Digest=stated)
    client = hurried(fake)
    failure(lambda: client.get_manifest("a", digest_of(b"other")))
    if stated:
        failure(lambda: client.get_manifest("a", "v1"))
    else:
        assert client.head_manifest("a", "v1") == digest_of(b"{}")


@pytest.mark.parametrize(
    "content",
    [b"[]", b"not json", b'{"layers": [{"digest": "../../x"}]}', b'{"config": 7}', b"[" * 100_000],
)
def test_a_manifest_that_makes_no_sense_is_not_copied(fake: FakeRegistry, content: bytes) -> None:
    fake.behaviour = answer(200, content, Content_Type=OCI_MANIFEST)
    failure(lambda: hurried(fake).copy("a", digest_of(content), "b", "v1"))
    assert {method for method, _, _ in fake.requests} == {"GET"}


def test_a_registry_that_shares_no_blobs_gets_no_manifest_and_keeps_no_upload(
    fake: FakeRegistry,
) -> None:
    content = json.dumps({"config": {"digest": GONE}, "layers": []}).encode()

    def behave(request: BaseHTTPRequestHandler) -> None:
        if request.command == "HEAD":
            answer(404)(request)
        elif request.command == "GET":
            answer(200, content, Content_Type=OCI_MANIFEST)(request)
        elif request.command == "POST":
            answer(202, Location="/v2/b/blobs/uploads/42?_state=x")(request)
        else:
            answer(204)(request)

    fake.behaviour = behave
    assert not hurried(fake).copy("a", digest_of(content), "b", "v1")
    assert [(method, path) for method, path, _ in fake.requests[2:]] == [
        ("POST", f"/v2/b/blobs/uploads/?mount={GONE}&from=a"),
        ("DELETE", "/v2/b/blobs/uploads/42?_state=x"),
    ]


def test_an_upload_that_is_said_to_be_elsewhere_is_not_touched(fake: FakeRegistry) -> None:
    elsewhere = FakeRegistry()
    content = json.dumps({"config": {"digest": GONE}, "layers": []}).encode()

    def behave(request: BaseHTTPRequestHandler) -> None:
        if request.command == "HEAD":
            answer(404)(request)
        elif request.command == "GET":
            answer(200, content, Content_Type=OCI_MANIFEST)(request)
        else:
            answer(202, Location=f"{elsewhere.url}/v2/b/blobs/uploads/42")(request)

    fake.behaviour = behave
    assert not hurried(fake).copy("a", digest_of(content), "b", "v1")
    assert elsewhere.requests == []
    elsewhere.close()


def test_a_registry_that_stores_something_else_is_caught(fake: FakeRegistry) -> None:
    content = b'{"layers": []}'

    def behave(request: BaseHTTPRequestHandler) -> None:
        if request.command == "GET":
            answer(200, content, Content_Type=OCI_MANIFEST)(request)
        else:
            answer(201, Docker_Content_Digest=GONE)(request)

    fake.behaviour = behave
    failure(lambda: hurried(fake).copy("a", digest_of(content), "a", "v1"))


def test_cookies_are_not_kept(fake: FakeRegistry) -> None:
    fake.behaviour = answer(200, b"{}", Set_Cookie="a=b")
    client = hurried(fake)
    client.ping()
    client.ping()
    assert "cookie" not in fake.requests[1][2]
