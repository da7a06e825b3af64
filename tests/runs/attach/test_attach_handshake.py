"""Handshakes and frames by hand: what is no WebSocket, or no sound frame, and who may ask."""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.db import connection as database

from tests.runs.attach.test_attach_served import end, given, opened, write
from tests.runs.record_factory import make_run
from tests.stack.api_process import ApiProcess, api_process
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.django_db(transaction=True)

HANDSHAKE = {
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
PAGE = "https://page.example"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, django_db_setup: None) -> Iterator[ApiProcess]:
    """One server for all tests here, which leave it as it was."""
    log = tmp_path_factory.mktemp("api") / "api.log"
    with api_process(log, SVC_WEB_TRUSTED_ORIGINS=PAGE) as process:
        yield process


@pytest.fixture(autouse=True)
def quiet(api: ApiProcess) -> Iterator[None]:
    """Wait after each test until the server reads nothing: the rows of the test are removed then.

    A handshake leaves it looking at a run for a moment after its client has gone.
    """
    yield
    working = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        " AND (state <> 'idle' OR state_change > clock_timestamp() - interval '150 ms')"
    )

    def is_quiet() -> bool:
        with database.cursor() as cursor:
            cursor.execute(working)
            return bool(cursor.fetchone() == (0,))

    eventually(is_quiet, what="the server reads nothing any more")


def asked(api: ApiProcess, path: str, **headers: str | None) -> tuple[int, bytes]:
    """Return status and body of a handshake; a header of None is left out."""
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    named = {name: value for name, value in {**HANDSHAKE, **told}.items() if value is not None}
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=LONG_WAIT)
    try:
        connection.request("GET", path, headers=named)
        answer = connection.getresponse()
        return answer.status, b"" if answer.status == 101 else answer.read()
    finally:
        connection.close()


def code_of(answer: tuple[int, bytes]) -> tuple[int, str]:
    """Return the status and the code of a problem."""
    return answer[0], json.loads(answer[1])["code"]


def test_the_answer_to_a_handshake_proves_that_it_was_understood(api: ApiProcess) -> None:
    run, _, _ = opened()
    with connected(api, f"/v1/runs/{run.pk}/attach") as (_, head):
        lines = head.lower().split(b"\r\n")
        assert lines[0] == b"http/1.1 101 switching protocols"
        assert b"upgrade: websocket" in lines
        assert b"connection: upgrade" in lines
        assert b"sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=" in lines
        assert not any(line.startswith((b"content-length", b"transfer-")) for line in lines)
        assert not any(line.startswith(b"sec-websocket-extensions") for line in lines)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Upgrade": None}, (426, "upgrade-required")),
        ({"Upgrade": "h2c"}, (426, "upgrade-required")),
        ({"Connection": "keep-alive"}, (426, "upgrade-required")),
        ({"Sec_WebSocket_Version": "8"}, (426, "upgrade-required")),
        ({"Sec_WebSocket_Version": None}, (426, "upgrade-required")),
        ({"Sec_WebSocket_Key": None}, (400, "bad-handshake")),
        ({"Sec_WebSocket_Key": "dG9vIHNob3J0"}, (400, "bad-handshake")),
        ({"Sec_WebSocket_Key": "no base64 at all"}, (400, "bad-handshake")),
    ],
)
def test_what_is_no_handshake_is_answered_as_a_request(
    api: ApiProcess, headers: dict[str, str | None], expected: tuple[int, str]
) -> None:
    run, _, _ = opened()
    assert code_of(asked(api, f"/v1/runs/{run.pk}/attach", **headers)) == expected


def test_a_plain_request_is_told_what_to_speak(api: ApiProcess) -> None:
    run, _, _ = opened()
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=LONG_WAIT)
    connection.request("GET", f"/v1/runs/{run.pk}/attach")
    answer = connection.getresponse()
    assert answer.status == 426
    assert answer.getheader("Sec-WebSocket-Version") == "13"
    answer.read()
    # It is an answer as any other: the connection goes on.
    connection.request("GET", f"/v1/runs/{run.pk}")
    assert connection.getresponse().status == 200
    connection.close()


def test_runs_that_nobody_can_be_attached_to_say_so(api: ApiProcess) -> None:
    unknown = asked(api, f"/v1/runs/{uuid.uuid4()}/attach")
    assert code_of(unknown) == (404, "run-not-found")
    boot = make_run(mode="boot")
    assert code_of(asked(api, f"/v1/runs/{boot.pk}/attach")) == (409, "input-not-open")


@pytest.mark.parametrize("query", ["after=1", "after=x", "after=-1", "afterStderr=0"])
def test_a_place_that_the_output_has_not_is_refused(api: ApiProcess, query: str) -> None:
    run, _, _ = opened()
    status, body = asked(api, f"/v1/runs/{run.pk}/attach?{query}")
    (fault,) = json.loads(body)["errors"]
    assert (status, fault["code"]) == (400, "invalid-cursor")
    assert fault["parameter"] == query.partition("=")[0]


def test_a_page_of_another_origin_is_refused_before_it_is_upgraded(api: ApiProcess) -> None:
    run, _, _ = opened()
    path = f"/v1/runs/{run.pk}/attach"
    foreign = asked(api, path, Origin="https://elsewhere.example")
    assert code_of(foreign) == (403, "origin-not-trusted")
    opaque = asked(api, path, Origin="null")
    assert code_of(opaque) == (403, "origin-not-trusted")
    assert asked(api, path, Origin=PAGE)[0] == 101
    assert asked(api, path, Origin=f"http://127.0.0.1:{api.port}")[0] == 101
    assert code_of(asked(api, path, Host="elsewhere.example")) == (400, "host-not-allowed")


def test_another_owners_run_is_absent(tmp_path: Path) -> None:
    run, _, _ = opened()
    settings = {
        "SVC_TRUSTED_OWNER_HEADER": "X-Forwarded-User",
        "SVC_TRUSTED_PROXIES": "127.0.0.1",
    }
    path = f"/v1/runs/{run.pk}/attach"
    with api_process(tmp_path / "owned.log", **settings) as owned:
        assert code_of(asked(owned, path)) == (401, "caller-missing")
        stranger = asked(owned, path, X_Forwarded_User="usr_stranger")
        assert code_of(stranger) == (404, "run-not-found")
        assert asked(owned, path, X_Forwarded_User=run.owner_user_id)[0] == 101


# ---------------------------------------------------------------- frames


def frame(opcode: int, payload: bytes, *, final: bool = True, masked: bool = True) -> bytes:
    """Return one frame of a client, as RFC 6455 section 5.2 has it."""
    size = len(payload)
    mask = 0x80 if masked else 0
    head = bytes([opcode | (0x80 if final else 0)])
    if size < 126:
        head += bytes([mask | size])
    elif size < 65536:
        head += bytes([mask | 126]) + struct.pack("!H", size)
    else:
        head += bytes([mask | 127]) + struct.pack("!Q", size)
    if not masked:
        return head + payload
    key = os.urandom(4)
    return head + key + bytes(each ^ key[at % 4] for at, each in enumerate(payload))


TEXT, BINARY, CLOSE, PING, PONG, MORE = 1, 2, 8, 9, 10, 0


@contextmanager
def connected(
    api: ApiProcess, path: str, early: bytes = b""
) -> Iterator[tuple[socket.socket, bytes]]:
    """Give an upgraded connection, with bytes sent right behind the handshake, and its head."""
    lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{api.port}"]
    lines += [f"{name}: {value}" for name, value in HANDSHAKE.items()]
    with socket.create_connection(("127.0.0.1", api.port), timeout=LONG_WAIT) as client:
        client.sendall("\r\n".join([*lines, "", ""]).encode() + early)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = client.recv(1)
            assert byte, head
            head += byte
        yield client, head


def frames_of(client: socket.socket) -> Iterator[tuple[int, bytes]]:
    """Yield opcode and payload of every frame that comes, up to the end of the connection."""
    with client.makefile("rb") as file:
        while head := file.read(2):
            size = head[1]
            assert head[0] & 0x80
            assert size < 128
            if size == 126:
                (size,) = struct.unpack("!H", file.read(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", file.read(8))
            yield head[0] & 0x0F, file.read(size)


def closed_with(client: socket.socket) -> int:
    """Return the code of the close frame, which is the last thing that comes."""
    *_, (opcode, payload) = frames_of(client)
    assert opcode == CLOSE
    (code,) = struct.unpack_from("!H", payload)
    return int(code)


GOOD = frame(BINARY, b"good")


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (frame(BINARY, b"x", masked=False), 1002),
        (frame(0x3, b"x"), 1002),
        (bytes([0x80 | 0x40 | BINARY, 0x80]) + bytes(4), 1002),
        (frame(MORE, b"x"), 1002),
        (frame(BINARY, b"", final=False) + frame(TEXT, b"y"), 1002),
        (frame(PING, b"x", final=False), 1002),
        (frame(PING, b"x" * 126), 1002),
        (frame(CLOSE, b"x"), 1002),
        (frame(CLOSE, struct.pack("!H", 1005)), 1002),
        (frame(TEXT, b"\xff\xfe"), 1007),
        (frame(TEXT, b'{"type": "\xc3', final=False) + frame(MORE, b'("}'), 1007),
        (frame(CLOSE, struct.pack("!H", 1000) + b"\xff"), 1007),
        (frame(TEXT, b" " * 4097), 1009),
        (frame(TEXT, b" " * 3000, final=False) + frame(MORE, b" " * 1097), 1009),
        (frame(CLOSE, struct.pack("!H", 1000)), 1000),
        (frame(CLOSE, struct.pack("!H", 4321) + b"bye"), 4321),
        (frame(PING, b"still there?") + frame(CLOSE, struct.pack("!H", 1000)), 1000),
    ],
    ids=[
        *("unmasked", "unknown opcode", "reserved bit", "continuation of nothing"),
        *("another message in between", "ping in parts", "long ping", "close of one byte"),
        *("close code that is not sent", "no UTF-8", "no UTF-8 over two frames"),
        *("reason without UTF-8", "long text", "long text in parts", "goodbye", "other goodbye"),
        "a ping right before the goodbye",
    ],
)
def test_what_breaks_the_protocol_closes_with_its_code_behind_what_came_before(
    api: ApiProcess, bad: bytes, code: int
) -> None:
    run, _, _ = opened()
    with connected(api, f"/v1/runs/{run.pk}/attach") as (client, _):
        client.sendall(GOOD + bad + frame(BINARY, b"never"))
        assert closed_with(client) == code
    assert given(run) == b"good"


def test_frames_that_come_byte_by_byte_and_right_behind_the_handshake_are_read(
    api: ApiProcess,
) -> None:
    run, source, process = opened()
    message = frame(TEXT, b'{"type": "res', final=False) + frame(PING, b"in between")
    message += frame(MORE, b'ize", "columns": 7, "rows": 5}') + frame(BINARY, b"typed", final=False)
    message += frame(MORE, b" and more")
    with connected(api, f"/v1/runs/{run.pk}/attach", early=GOOD + message[:3]) as (client, _):
        for at in range(3, len(message)):
            client.sendall(message[at : at + 1])
        eventually(lambda: given(run) == b"goodtyped and more", what="all of it is taken")
        write(source, process, b"seen")
        end(source, process)
        found = list(frames_of(client))
    assert (PONG, b"in between") in found
    assert (BINARY, b"seen") in found
    assert found[-1][0] == CLOSE


def test_many_pings_are_answered_to_the_last_one(api: ApiProcess) -> None:
    run, source, process = opened()
    with connected(api, f"/v1/runs/{run.pk}/attach") as (client, _):
        client.sendall(b"".join(frame(PING, str(each).encode()) for each in range(500)))
        pongs: list[bytes] = []
        for opcode, payload in frames_of(client):
            if opcode == PONG:
                pongs.append(payload)
                if payload == b"499":
                    break
    numbers = [int(each) for each in pongs]
    assert numbers == sorted(set(numbers))
    end(source, process)
