"""What the proxy to the engine lets through, one guard at a time; no engine is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from workspaces.runtimes import boot
from workspaces.runtimes.docker.engine_proxy import http_wire
from workspaces.runtimes.docker.engine_proxy.policy import (
    MAX_COMMAND_BYTES,
    MAX_PATH_CHARACTERS,
    Action,
    EngineRequest,
    Refused,
    belongs,
    parse_request,
)

T = TypeVar("T")
EXEC = "0123456789abcdef" * 4
SWITCHES = ("AttachStdin", "AttachStdout", "AttachStderr", "Tty")
CREATE = f"/containers/{'c' * 12}/exec"
START = f"/exec/{EXEC}/start"


def create(**members: Any) -> EngineRequest:
    """Ask for an exec of the agent with these members besides."""
    body = {"User": "root", "Cmd": [boot.AGENT, "tail"], **members}
    return parse_request("POST", CREATE, json.dumps(body).encode())


def refused(method: str, target: str, body: bytes = b"") -> tuple[int, str]:
    """The status and the message of a refusal."""
    with pytest.raises(Refused) as caught:
        parse_request(method, target, body)
    assert str(caught.value) == caught.value.message
    return caught.value.status, caught.value.message


# ---------------------------------------------------------------- what passes


@pytest.mark.parametrize("version", ["", "/v1.41", "/v1.999"])
@pytest.mark.parametrize(
    ("method", "target", "body", "action", "subject", "sent"),
    [
        ("GET", "/_ping", b"", Action.PING, "", b""),
        ("GET", "/version", b"", Action.VERSION, "", b""),
        ("GET", "/info", b"", Action.INFO, "", b""),
        ("GET", "/containers/a.b_c-1/json", b"", Action.CONTAINER, "a.b_c-1", b""),
        ("GET", "/containers/c/archive?path=/etc", b"", Action.ARCHIVE, "c", b""),
        ("GET", f"/exec/{EXEC}/json", b"", Action.EXEC_INSPECT, EXEC, b""),
        ("POST", f"/exec/{EXEC}/resize?h=1&w=99999", b"", Action.EXEC_RESIZE, EXEC, b""),
        ("POST", START, b"{}", Action.EXEC_START, EXEC, b'{"Detach": false, "Tty": false}'),
    ],
)
def test_the_few_requests_are_written_anew_as_they_are(
    version: str, method: str, target: str, body: bytes, action: Action, subject: str, sent: bytes
) -> None:
    request = parse_request(method, version + target, body)

    assert (request.action, request.version, request.subject) == (action, version, subject)
    assert request.target() == version + target
    assert request.body == sent


def test_the_engine_is_asked_with_the_id_in_place_of_the_name() -> None:
    request = parse_request("GET", "/containers/name/archive?path=/etc", b"")

    assert request.target("c0ffee") == "/containers/c0ffee/archive?path=/etc"
    assert request.target("") == "/containers//archive?path=/etc"


def test_a_path_is_escaped_anew() -> None:
    request = parse_request("GET", "/containers/c/archive?path=/a%20b%26c%2F..%3fd", b"")

    assert request.rest == "?path=/a%20b%26c/..%3Fd"


def test_an_exec_is_made_in_the_container_of_the_target() -> None:
    assert create().target("c0ffee") == "/containers/c0ffee/exec"
    assert (create().action, create().subject) == (Action.EXEC_CREATE, "c" * 12)


def test_the_agent_is_started_as_root_with_the_switches_that_were_asked_for() -> None:
    sent = json.loads(create(AttachStdin=True, Tty=True, Container="other").body)

    assert sent == {
        "AttachStdin": True,
        "AttachStdout": False,
        "AttachStderr": False,
        "Tty": True,
        "User": "root",
        "Cmd": [boot.AGENT, "tail"],
    }


@pytest.mark.parametrize("name", SWITCHES)
def test_each_switch_is_passed_on_and_is_true_or_false(name: str) -> None:
    sent = json.loads(create(**{name: True}).body)
    assert {switch for switch in SWITCHES if sent[switch]} == {name}
    with pytest.raises(Refused) as caught:
        create(**{name: 1})
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "name", ["Privileged", "Env", "WorkingDir", "DetachKeys", "detachKeys", "Detach"]
)
def test_what_clients_send_empty_is_left_out_and_refused_with_a_value(name: str) -> None:
    assert name not in json.loads(create(**{name: None}).body)
    with pytest.raises(Refused) as caught:
        create(**{name: "x"})
    assert caught.value.status == 403


def test_an_unknown_member_is_refused_even_when_it_is_empty() -> None:
    with pytest.raises(Refused):
        create(ConsoleSize=None)
    assert refused("POST", START, b'{"ConsoleSize": null}')[0] == 403


# ---------------------------------------------------------------- what does not


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/_ping"),
        ("POST", "/containers/c/json"),
        ("PUT", "/containers/c/archive?path=/"),
        ("GET", CREATE),
        ("GET", START),
        ("POST", f"/exec/{EXEC}/json"),
        ("GET", f"/exec/{EXEC}/resize?h=1&w=1"),
        ("GET", "/x/_ping"),
        ("GET", "/_ping/x"),
        ("GET", "/_ping\n"),
        ("GET", "/v1.0/info"),
        ("GET", "/v1.01/info"),
        ("GET", "/v1.1000/info"),
        ("GET", "/v2.41/info"),
        ("GET", "/v1x41/info"),
        ("GET", "/v1.41/v1.41/info"),
        ("GET", "/containers/-c/json"),
        ("GET", f"/containers/{'c' * 129}/json"),
        ("GET", f"/exec/{EXEC[1:]}/json"),
        ("GET", f"/exec/{EXEC}0/json"),
        ("GET", f"/exec/{EXEC.upper()}/json"),
    ],
)
def test_what_is_not_exactly_one_of_these_shapes_is_refused(method: str, target: str) -> None:
    assert refused(method, target) == (403, "The engine proxy does not allow this.")


def test_a_name_may_have_128_characters() -> None:
    assert parse_request("GET", f"/containers/{'c' * 128}/json", b"").subject == "c" * 128


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("GET", "/_ping?", b""),
        ("GET", "/containers/c/json?size=1", b""),
        ("POST", CREATE + "?x=1", b"{}"),
        ("POST", START + "?x=1", b"{}"),
        ("GET", "/_ping", b"{}"),
        ("GET", "/containers/c/archive?path=/", b"{}"),
        ("POST", f"/exec/{EXEC}/resize?h=1&w=1", b"{}"),
    ],
)
def test_options_and_bodies_that_a_request_does_not_have_are_refused(
    method: str, target: str, body: bytes
) -> None:
    assert refused(method, target, body)[0] == 403


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 403),
        ("path=etc", 403),
        ("path=", 403),
        ("path=/etc%00", 403),
        ("path=/etc&noOverwriteDirNonDir=1", 403),
        ("Path=/etc", 403),
        ("path=/etc&x=", 403),
        ("path=/etc&path=/tmp", 400),
        ("path", 400),
        ("path=%ff", 400),
        ("a=1&b=2&c=3&d=4&e=5", 400),
        ("path=/" + "x" * MAX_PATH_CHARACTERS, 403),
    ],
)
def test_of_an_archive_there_is_one_absolute_path(query: str, status: int) -> None:
    assert refused("GET", f"/containers/c/archive?{query}")[0] == status


def test_a_path_has_as_many_characters_as_the_system_takes() -> None:
    longest = "/" + "x" * (MAX_PATH_CHARACTERS - 1)
    assert MAX_PATH_CHARACTERS == 4096
    assert parse_request("GET", f"/containers/c/archive?path={longest}", b"").rest[6:] == longest


@pytest.mark.parametrize(
    "query", ["h=1", "w=1", "h=1&w=1&x=1", "h=&w=1", "h=1&w=-1", "h=1&w=100000", "h=1%0a&w=1"]
)
def test_a_size_is_two_numbers_of_up_to_five_digits(query: str) -> None:
    assert refused("POST", f"/exec/{EXEC}/resize?{query}") == (403, "A size is given as h and w.")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b"[]", b"null"])
@pytest.mark.parametrize("target", [CREATE, START])
def test_a_body_is_an_object(target: str, body: bytes) -> None:
    assert refused("POST", target, body)[0] == 400


@pytest.mark.parametrize(
    "command",
    [
        None,
        [],
        boot.AGENT,
        {boot.AGENT: 1},
        ["/bin/sh", boot.AGENT],
        [boot.AGENT + "x"],
        [boot.AGENT, 1],
        [boot.AGENT, "a\0b"],
    ],
)
def test_nothing_but_the_agent_is_started(command: object) -> None:
    with pytest.raises(Refused) as caught:
        create(Cmd=command)
    assert caught.value.status == 403
    assert caught.value.message == "The engine proxy only starts the agent of a workspace."


@pytest.mark.parametrize("user", [None, "", "workspace", "root:root", 0])
def test_the_agent_is_started_as_nobody_else(user: object) -> None:
    with pytest.raises(Refused) as caught:
        create(User=user)
    assert (caught.value.status, caught.value.message) == (403, "The agent is started as root.")


def test_a_command_has_64_kib() -> None:
    rest = "x" * (64 * 1024 - len(boot.AGENT))
    assert MAX_COMMAND_BYTES == 64 * 1024
    assert json.loads(create(Cmd=[boot.AGENT, rest]).body)["Cmd"][1] == rest
    with pytest.raises(Refused) as caught:
        create(Cmd=[boot.AGENT, rest, "x"])
    assert (caught.value.status, caught.value.message) == (403, "The command is too long.")


def test_the_start_of_an_exec_says_whether_there_is_a_terminal() -> None:
    assert parse_request("POST", START, b'{"Tty": true, "Detach": false}').body == (
        b'{"Detach": false, "Tty": true}'
    )
    assert refused("POST", START, b'{"Tty": 1}') == (400, "A switch must be true or false.")
    assert refused("POST", START, b'{"Detach": true}')[0] == 403


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ({"Config": {"Labels": {"svc.instance": "ours", "svc.run": "x"}}}, True),
        ({"Config": {"Labels": {"svc.instance": "ours", "svc.run": ""}}}, True),
        ({"Config": {"Labels": {"svc.instance": "ours"}}}, False),
        ({"Config": {"Labels": {"svc.instance": "others", "svc.run": "x"}}}, False),
        ({"Config": {"Labels": {"svc.run": "x"}}}, False),
        ({"Config": {"Labels": None}}, False),
        ({"Config": {"Labels": ["svc.run"]}}, False),
        ({"Config": ["Labels"]}, False),
        ({}, False),
    ],
)
def test_a_container_is_ours_with_both_labels(container: dict[str, Any], expected: bool) -> None:
    assert belongs(container, "ours") is expected


# ---------------------------------------------------------------- HTTP


def read(function: Callable[[asyncio.StreamReader], Awaitable[T]], data: bytes) -> T:
    """Have something read these bytes and the end of the connection."""

    async def reading() -> T:
        reader = asyncio.StreamReader(limit=http_wire.BUFFER_BYTES)
        reader.feed_data(data)
        reader.feed_eof()
        return await function(reader)

    return asyncio.run(reading())


def test_a_request_is_taken_apart() -> None:
    data = b"POST /x?y HTTP/1.1\r\nA: b\r\nCONTENT-length:\t2 \r\nConnection: Close\r\n\r\n{}"
    request = read(http_wire.read_request, data)
    assert request == http_wire.Request("POST", "/x?y", b"{}", close=True)
    without = read(http_wire.read_request, b"GET /x HTTP/1.1\r\nConnection: keep\r\n\r\n")
    assert without == http_wire.Request("GET", "/x", b"", close=False)


def test_between_two_requests_a_client_may_hang_up() -> None:
    assert read(http_wire.read_request, b"") is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GET", "half a request"),
        (b"GET /x HTTP/1.1\r\n", "half a request"),
        (b"GET /x HTTP/1.0\r\n\r\n", "not a request"),
        (b"GET x HTTP/1.1\r\n\r\n", "not a request"),
        (b"get /x HTTP/1.1\r\n\r\n", "not a request"),
        (b"GET /x HTTP/1.1 \r\n\r\n", "not a request"),
        (b"GET /x\x7f HTTP/1.1\r\n\r\n", "not a request"),
        (b"GET /x HTTP/1.1\r\nA : b\r\n\r\n", "not a header"),
        (b"GET /x HTTP/1.1\r\n A: b\r\n\r\n", "not a header"),
        (b"GET /x HTTP/1.1\r\nA: \x01\r\n\r\n", "not a header"),
        (b"GET /x HTTP/1.1\r\nContent-Length: 1\r\ncontent-length: 1\r\n\r\n{", "given twice"),
        (b"GET /x HTTP/1.1\r\nConnection: x\r\nConnection: x\r\n\r\n", "given twice"),
        (b"GET /x HTTP/1.1\r\nTransfer-Encoding: x\r\n\r\n", "without a length"),
        (b"GET /x HTTP/1.1\r\nContent-Length: 00000001\r\n\r\n{", "without a length"),
        (b"GET /x HTTP/1.1\r\nContent-Length: -1\r\n\r\n{", "without a length"),
        (b"GET /x HTTP/1.1\r\nContent-Length:\r\n\r\n{", "without a length"),
        (b"GET /x HTTP/1.1\r\nContent-Length: 262145\r\n\r\n", "too long a body"),
        (b"GET /x HTTP/1.1\r\nA: " + b"a" * 40_000 + b"\r\n\r\n", "too long a head"),
        (b"GET /x HTTP/1.1\r\nA: " + b"a" * 300_000 + b"\r\n\r\n", "too long a head"),
    ],
)
def test_what_is_not_one_clear_request_is_malformed(data: bytes, message: str) -> None:
    with pytest.raises(http_wire.MalformedError, match=message):
        read(http_wire.read_request, data)


def test_other_headers_may_be_given_twice_and_the_last_one_counts() -> None:
    request = read(http_wire.read_request, b"GET /x HTTP/1.1\r\nA: 1\r\nA: 2\r\n\r\n")
    assert request == http_wire.Request("GET", "/x", b"", close=False)


def test_head_and_body_of_a_request_have_their_limits() -> None:
    head = b"GET /x HTTP/1.1\r\nContent-Length: 262144\r\nA: "
    head += b"a" * (http_wire.MAX_HEAD_BYTES - len(head) - 4) + b"\r\n\r\n"
    assert len(head) == 32 * 1024
    request = read(http_wire.read_request, head + b"x" * 262144)
    assert request is not None
    assert len(request.body) == 262144
    with pytest.raises(http_wire.MalformedError, match="too long a head"):
        read(http_wire.read_request, head.replace(b"A: ", b"A: a"))


def test_an_answer_of_the_engine_is_taken_apart() -> None:
    head = b"HTTP/1.0 404 Not Found\r\nX-Y:  z \r\n\r\n"
    answer = read(http_wire.read_answer, head + b"rest")
    assert (answer.status, answer.head, answer.headers) == (404, head, {b"x-y": b"z"})
    assert read(http_wire.read_answer, b"HTTP/1.1 200\r\n\r\n").status == 200
    for junk in (b"HTTP/2.0 200 OK\r\n\r\n", b"HTTP/1.1 20 OK\r\n\r\n", b"200 OK\r\n\r\n"):
        with pytest.raises(http_wire.MalformedError, match="not an answer"):
            read(http_wire.read_answer, junk)


def body_of(data: bytes, **headers: bytes) -> bytes:
    """Read the body of an answer with these headers, with ``_`` for ``-``."""
    named = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    answer = http_wire.Answer(200, b"", named)
    return read(lambda reader: http_wire.read_body(reader, answer), data)


def test_the_body_of_an_answer_ends_where_it_says() -> None:
    assert body_of(b"abcdef", content_length=b"3") == b"abc"
    assert body_of(b"abcdef") == b""
    chunks = b"3;x=y\r\nabc\r\n0A\r\n0123456789\r\n0\r\n\r\n"
    assert body_of(chunks, transfer_encoding=b"Chunked") == b"abc0123456789"


def test_a_body_is_read_to_its_end_and_not_beyond() -> None:
    async def reading() -> bytes:
        reader = asyncio.StreamReader(limit=http_wire.BUFFER_BYTES)
        reader.feed_data(b"1\r\nx\r\n0\r\n\r\nbehind")
        reader.feed_eof()
        answer = http_wire.Answer(200, b"", {b"transfer-encoding": b"chunked"})
        assert await http_wire.read_body(reader, answer) == b"x"
        return await reader.read()

    assert asyncio.run(reading()) == b"behind"


def test_an_answer_of_16_mib_is_read() -> None:
    most = 16 * 1024 * 1024
    assert len(body_of(bytes(most), content_length=str(most).encode())) == most


@pytest.mark.parametrize("length", [b"x", b"-1", b"", str(16 * 1024 * 1024 + 1).encode()])
def test_an_answer_without_a_sound_length_is_malformed(length: bytes) -> None:
    with pytest.raises(http_wire.MalformedError, match="too long an answer"):
        body_of(b"abc", content_length=length)


@pytest.mark.parametrize("chunk", [b"", b"x", b"-1", b"123456789", b"1 1"])
def test_a_chunk_without_a_sound_size_is_malformed(chunk: bytes) -> None:
    with pytest.raises(http_wire.MalformedError, match="not a chunk"):
        body_of(chunk + b"\r\nx\r\n0\r\n\r\n", transfer_encoding=b"chunked")


def test_chunks_together_have_the_limit_of_an_answer() -> None:
    most = 16 * 1024 * 1024
    half = b"800000\r\n" + b"x" * (most // 2) + b"\r\n"
    assert len(body_of(half * 2 + b"0\r\n\r\n", transfer_encoding=b"chunked")) == most
    with pytest.raises(http_wire.MalformedError, match="too long an answer"):
        body_of(half * 2 + b"1\r\nx\r\n0\r\n\r\n", transfer_encoding=b"chunked")


def test_requests_and_answers_are_written_in_one_way() -> None:
    assert http_wire.request_bytes("GET", "/info", b"") == (
        b"GET /info HTTP/1.1\r\nHost: docker\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    )
    assert http_wire.request_bytes("POST", "/x", b"{}", upgrade=True) == (
        b"POST /x HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\n"
        b"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 2\r\n\r\n{}"
    )
    for status, reason in (
        (200, b"OK"),
        (201, b"Created"),
        (400, b"Bad Request"),
        (403, b"Forbidden"),
        (404, b"Not Found"),
        (503, b"Service Unavailable"),
        (599, b"Answer"),
    ):
        head = b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\n" % (status, reason)
        end = b"Content-Length: 2\r\n\r\n{}"
        assert http_wire.answer_bytes(status, b"{}", close=False) == head + end
        closed = http_wire.answer_bytes(status, b"{}", close=True)
        assert closed == head + b"Connection: close\r\n" + end
    assert json.loads(http_wire.message("what")) == {"message": "what"}


@pytest.mark.parametrize("address", ["", "unix", "ssh://engine", "tcp://", "https://engine:1"])
def test_an_engine_is_at_a_socket_or_a_port(address: str) -> None:
    with pytest.raises(OSError, match="not usable"):
        asyncio.run(http_wire.connect(address))


@pytest.mark.parametrize("scheme", ["unix", "tcp", "http"])
def test_lines_of_an_engine_may_be_longer_than_usual(scheme: str, tmp_path: Path) -> None:
    line = b"x" * 200_000 + b"\n"

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(line)
        writer.close()

    async def asking() -> bytes:
        if scheme == "unix":
            server = await asyncio.start_unix_server(serve, str(tmp_path / "socket"))
            address = f"unix://{tmp_path / 'socket'}"
        else:
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            address = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            reader, writer = await http_wire.connect(address)
            read = await reader.readuntil(b"\n")
            writer.close()
            return read

    assert asyncio.run(asking()) == line
