"""What comes from a workspace is read strictly: TLS, names, addresses."""

from __future__ import annotations

import asyncio
import ssl
from ipaddress import IPv4Address, IPv4Network

import dns.message
import dns.rcode
import dns.rdatatype
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workspaces.blueprint import Egress
from workspaces.egress import name_server, web
from workspaces.egress.client_hello import NotTls, read_client_hello
from workspaces.egress.host_policy import Policy, Verdict
from workspaces.egress.name_addresses import (
    MAX_NAMES,
    NAME_ADDRESSES,
    AskedNames,
    ReachableAddresses,
    address_for,
)
from workspaces.egress.presets import read_presets

POOL = IPv4Network("10.213.0.0/16")


def hello(host: str | None = "api.example.org") -> bytes:
    outgoing = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=host)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_the_host_is_read_however_the_message_is_split() -> None:
    whole = hello()
    for size in range(len(whole)):
        assert read_client_hello(whole[:size]) is None
    found = read_client_hello(whole)
    assert found is not None
    assert found.host == "api.example.org"


def test_a_message_without_a_host_is_refused() -> None:
    with pytest.raises(NotTls, match="no host"):
        read_client_hello(hello(None))


def test_a_message_in_many_small_records_is_refused_before_it_takes_time() -> None:
    whole = hello()

    def split(size: int) -> bytes:
        body = whole[5:]
        parts = (body[at : at + size] for at in range(0, len(body), size))
        return b"".join(whole[:3] + len(part).to_bytes(2, "big") + part for part in parts)

    found = read_client_hello(split(len(whole) // 30))
    assert found is not None
    assert found.host == "api.example.org"
    with pytest.raises(NotTls, match="more than 32 records"):
        read_client_hello(split(1))


@given(st.binary(max_size=300), st.integers(0, 600), st.binary(max_size=4))
def test_no_bytes_make_the_reader_fail_in_another_way(tail: bytes, at: int, put: bytes) -> None:
    whole = hello()
    for data in (tail, whole[:at] + put + whole[at + len(put) :], whole[:at] + tail):
        try:
            found = read_client_hello(data)
        except NotTls:
            continue
        assert found is None or found.host


def test_a_name_has_the_same_address_after_a_restart_and_its_own_memory_is_bounded() -> None:
    names = AskedNames()
    address = names.asked("a.test")
    assert address == address_for("a.test")
    assert address in NAME_ADDRESSES
    assert names.only_name_at(address) == "a.test"
    for number in range(MAX_NAMES):
        names.asked(f"n{number}.test")
    assert names.only_name_at(address) != "a.test"


@pytest.mark.parametrize(
    ("address", "allowed", "reachable"),
    [
        ("93.184.216.34", [], True),
        ("10.1.2.3", [], False),
        ("127.0.0.1", [], False),
        ("169.254.169.254", [], False),
        ("198.18.0.1", [], False),
        ("10.1.2.3", ["10.1.0.0/16"], True),
        ("10.213.4.5", ["10.0.0.0/8"], False),
        ("127.0.0.1", ["127.0.0.0/8"], False),
        # It is not the address that the kernel would send from.
        ("127.0.0.2", ["127.0.0.0/8"], False),
    ],
)
def test_only_public_and_listed_addresses_are_dialled(
    address: str, allowed: list[str], reachable: bool
) -> None:
    found = ReachableAddresses(map(IPv4Network, allowed), POOL)
    assert found.may_reach(IPv4Address(address)) is reachable


def asked(host: str, kind: str = "A") -> tuple[dns.message.Message, list[tuple[str, Verdict]]]:
    refused: list[tuple[str, Verdict]] = []
    egress = Egress.model_validate_json('{"rules": [{"hosts": ["*.a.test"]}]}')
    policy = Policy.of(egress, read_presets())
    query = dns.message.make_query(host, kind).to_wire()
    told = name_server.answer(
        query, policy, AskedNames(), lambda name, verdict: refused.append((name, verdict))
    )
    assert told is not None
    return dns.message.from_wire(told), refused


def test_an_allowed_name_has_an_address_and_nothing_else() -> None:
    reply, refused = asked("X.a.test")
    assert [str(record) for record in reply.answer[0]] == [str(address_for("x.a.test"))]
    assert refused == []
    for kind in ("AAAA", "TXT", "HTTPS", "SVCB", "ANY", "MX", "NS"):
        reply, _ = asked("x.a.test", kind)
        assert (reply.rcode(), reply.answer) == (dns.rcode.NOERROR, [])


def test_a_name_of_no_rule_does_not_exist_and_is_told() -> None:
    reply, refused = asked("b.test", "TXT")
    assert (reply.rcode(), reply.answer) == (dns.rcode.NXDOMAIN, [])
    assert [(name, verdict.rule) for name, verdict in refused] == [("b.test", "default")]
    assert asked(r"a\.b.a.test")[0].rcode() == dns.rcode.NXDOMAIN


def test_a_flood_of_queries_gets_a_bounded_number_of_answers() -> None:
    allowance = name_server.QueryAllowance()
    taken = sum(allowance.take() for _ in range(2000))
    assert name_server.BURST <= taken < 1000


async def read(head: bytes) -> web.Request:
    reader = asyncio.StreamReader()
    reader.feed_eof()
    return await web.read_request(head, reader)


@pytest.mark.parametrize(
    "headers",
    [
        b"Host: a\t.test\r\n",
        b"Host: a .test\r\n",
        b"Host: a.test\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Host: a.test\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    ],
)
def test_a_request_that_servers_may_read_in_two_ways_is_refused(headers: bytes) -> None:
    with pytest.raises(web.BadRequest):
        asyncio.run(read(b"POST / HTTP/1.1\r\n" + headers + b"\r\n"))
    assert asyncio.run(read(b"POST / HTTP/1.1\r\nHost: a.test\r\n\r\n")).host == "a.test"


@given(st.binary(max_size=600))
def test_no_datagram_makes_the_name_server_fail(query: bytes) -> None:
    policy = Policy.of(Egress(default="allow"), read_presets())
    told = name_server.answer(query, policy, AskedNames(), lambda name, verdict: None)
    assert told is None or len(told) < 2048


@pytest.mark.parametrize("line", [b"Authorization : Bearer canary", b"Cookie: canary\0"])
def test_what_is_wrong_with_a_request_is_said_without_what_it_says(line: bytes) -> None:
    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_eof()
        head = b"GET / HTTP/1.1\r\nHost: a.test\r\n" + line + b"\r\n\r\n"
        await web.read_request(head, reader)

    with pytest.raises(web.BadRequest, match="illegal header line") as caught:
        asyncio.run(read())
    assert "canary" not in str(caught.value)
