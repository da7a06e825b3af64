"""The addresses that no workspace reaches, whatever it runs on."""

from __future__ import annotations

from ipaddress import IPv4Network

NEVER_REACHED = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "168.63.129.16/32",  # what a virtual machine asks of Azure about itself
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "224.0.0.0/3",
    )
)
"""What is private, local to a link, shared, or where clouds tell a machine about itself."""
