"""No spelling of an address of our own network passes as public."""

from __future__ import annotations

import ipaddress

import pytest

from scm.git_addresses import is_public, look_up, parse_literal
from tests.support.waiting import LONG_WAIT


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.255.255.254", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1"),  # noqa: S104
        *("169.254.169.254", "100.64.0.1", "100.100.100.200", "224.0.0.1", "255.255.255.255"),
        *("192.0.0.192", "198.18.0.1", "240.0.0.1", "168.63.129.16"),
        *("::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::", "64:ff9b::a00:1"),
        *("2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:db8::1", "::127.0.0.1"),
    ],
)
def test_an_inner_address_is_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "140.82.121.3", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "host",
    [
        *("2130706433", "0x7f000001", "0x7f.1", "127.1", "0177.0.0.1", "127.0.0.01", "1.2.3.4.5"),
        *("example.0x7f", "1.2.3.256", "fe80::1%eth0", ":::", "127.0.0.1."),
    ],
)
def test_an_unusual_spelling_of_an_address_is_refused(host: str) -> None:
    with pytest.raises(ValueError):
        parse_literal(host)


def test_names_and_plain_addresses_are_told_apart() -> None:
    assert parse_literal("example.org") is None
    assert parse_literal("0x.example") is None
    assert parse_literal("127.0.0.1") == ipaddress.ip_address("127.0.0.1")
    assert parse_literal("::1") == ipaddress.ip_address("::1")


def test_a_host_is_looked_up_with_all_its_addresses() -> None:
    assert ipaddress.ip_address("127.0.0.1") in look_up("localhost", timeout=LONG_WAIT)
    assert look_up("no-such-host.invalid", timeout=20) == []
