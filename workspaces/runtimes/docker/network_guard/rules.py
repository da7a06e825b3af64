"""What workspaces and builds may reach, as tables of nftables of the installation's own.

The bridges of an installation have a prefix of their own, so the rules are the same for every
network that there is or will be, and concern nobody else's. They decide where packets come in:
before published ports and proxies are looked at, and before Docker's own rules, which the engine
writes anew when it starts. A packet that is dropped here is not accepted anywhere else.

What leads networks with a policy to the egress proxy is a second table, loaded by itself: a kernel
that cannot redirect keeps all other rules, and those networks reach nothing.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from workspaces.runtimes.docker.networks import bridge_prefix, egress_prefix
from workspaces.runtimes.never_reached import NEVER_REACHED


@dataclass(frozen=True, slots=True)
class _Chain:
    name: str
    kind: str
    hook: str
    priority: int
    rules: Sequence[str]


@dataclass(frozen=True, slots=True)
class GuardRules:
    """The rules of one installation.

    ``resolvers`` answer the names that workspaces ask for, at port 53 and nowhere else; ``allowed``
    are networks that the operator lets workspaces reach although they are private. Networks with a
    policy, whose bridges have another prefix, reach the egress proxy and nothing else.
    """

    instance_id: str
    pool: IPv4Network
    resolvers: tuple[IPv4Address, ...] = ()
    allowed: tuple[IPv4Network, ...] = ()
    egress_port: int = 0
    """Where the egress proxy listens; 0: networks with a policy reach nothing."""

    @property
    def table(self) -> str:
        """The name of both tables: ``inet`` for what is dropped, ``ip`` for what is redirected."""
        return f"svc_{bridge_prefix(self.instance_id)}"

    @property
    def digest(self) -> str:
        """Stands for these rules and no others."""
        chains = [*self._chains(), *self._redirecting()]
        told = "\n".join([self.table, *(rule for chain in chains for rule in chain.rules)])
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    def text(self) -> str:
        """Return what ``nft -f -`` reads: the whole table is replaced at once."""
        return self._text("inet", self._chains())

    def redirect_text(self) -> str:
        """Return what ``nft -f -`` reads for the table that redirects to the egress proxy."""
        return self._text("ip", self._redirecting())

    def _text(self, family: str, wanted: Sequence[_Chain]) -> str:
        chains = ""
        for chain in wanted:
            rules = "".join(
                f'    {rule} comment "{self.digest} {chain.name} {number}"\n'
                for number, rule in enumerate(chain.rules)
            )
            chains += (
                f"  chain {chain.name} {{\n"
                f"    type {chain.kind} hook {chain.hook} priority {chain.priority};"
                f" policy accept;\n{rules}  }}\n"
            )
        # The first line makes sure that there is something to delete.
        table = f"table {family} {self.table}"
        made = f"{table} {{\n{chains}}}\n" if chains else ""
        return f"{table}\ndelete {table}\n{made}"

    def are_in(self, listing: str) -> bool:
        """Tell whether ``nft -j list table`` lists exactly these rules, where they take effect."""
        return self._are_in(listing, self._chains())

    def redirect_in(self, listing: str) -> bool:
        """Tell the same of the table that redirects."""
        return self._are_in(listing, self._redirecting())

    def _are_in(self, listing: str, chains: Sequence[_Chain]) -> bool:
        try:
            things = json.loads(listing)["nftables"]
            told = [thing["rule"].get("comment", "") for thing in things if "rule" in thing]
            hooked = {
                (chain.get("type"), chain.get("hook"), chain.get("prio"), chain.get("policy"))
                for chain in (thing["chain"] for thing in things if "chain" in thing)
            }
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
        wanted = [
            f"{self.digest} {chain.name} {number}"
            for chain in chains
            for number in range(len(chain.rules))
        ]
        places = {(chain.kind, chain.hook, chain.priority, "accept") for chain in chains}
        return hooked == places and sorted(told) == sorted(wanted)

    def _chains(self) -> Sequence[_Chain]:
        """Return the chains; without an egress proxy the first one is all there is."""
        # After connections are known (-200), before addresses are changed (-100).
        chains = [_Chain("from_workspaces", "filter", "prerouting", -155, self._rules())]
        if not self.egress_port:
            return chains
        theirs = f'iifname "{egress_prefix(self.instance_id)}*"'
        port = self.egress_port
        return [
            *chains,
            # Whatever became of the redirection: they reach the proxy, and nobody through us.
            _Chain(
                "to_the_machine",
                "filter",
                "input",
                -10,
                [
                    "ct direction reply accept",
                    f"{theirs} meta l4proto {{ tcp, udp }} th dport {port} accept",
                    f"{theirs} drop",
                    # Nobody else has business with the proxy, the machine itself included.
                    f"meta l4proto {{ tcp, udp }} th dport {port} drop",
                ],
            ),
            _Chain("through_the_machine", "filter", "forward", -10, [f"{theirs} drop"]),
        ]

    def _redirecting(self) -> Sequence[_Chain]:
        if not self.egress_port:
            return []
        theirs = f'iifname "{egress_prefix(self.instance_id)}*"'
        rules = [
            f"{theirs} meta l4proto tcp redirect to :{self.egress_port}",
            f"{theirs} udp dport 53 redirect to :{self.egress_port}",
        ]
        # Before Docker's own, which lead to published ports.
        return [_Chain("to_egress_proxy", "nat", "prerouting", -110, rules)]

    def _egress_rules(self) -> list[str]:
        theirs = f'iifname "{egress_prefix(self.instance_id)}*"'
        if not self.egress_port:
            return [f"{theirs} drop"]
        return [
            # Who sends for somebody else would have it put down to them.
            f"{theirs} fib saddr . iif oif missing drop",
            f"{theirs} meta nfproto ipv6 drop",
            f"{theirs} ct direction reply accept",
            f"{theirs} meta l4proto tcp accept",
            f"{theirs} udp dport 53 accept",
            f"{theirs} drop",
        ]

    def _rules(self) -> list[str]:
        blocked = ipaddress.collapse_addresses([*NEVER_REACHED, self.pool])
        single = [each for each in self.allowed if each.num_addresses == 1]
        wider = [each for each in self.allowed if each.num_addresses > 1]
        return [
            *self._egress_rules(),
            f'iifname != "{bridge_prefix(self.instance_id)}*" accept',
            # What the machine itself began: without an answer it would reach no workspace.
            "ct direction reply accept",
            "meta nfproto ipv6 drop",
            *_to(self.resolvers, "meta l4proto { tcp, udp } th dport 53 accept"),
            *_to(single, "accept"),
            # Every address of the machine, gateways of other bridges and published ports with it.
            "fib daddr type != unicast drop",
            # What somebody has put beside the workspace in its own network.
            "fib daddr . iif oif exists accept",
            # Nobody who allows a network means the machine or other workspaces in it.
            *_to([self.pool], "drop"),
            *_to(wider, "accept"),
            *_to(blocked, "drop"),
        ]


def _to(addresses: Iterable[IPv4Address | IPv4Network], verdict: str) -> Sequence[str]:
    listed = ", ".join(map(str, addresses))
    return [f"ip daddr {{ {listed} }} {verdict}"] if listed else []


def resolvers_in(resolv_conf: str) -> tuple[IPv4Address, ...]:
    """Return the name servers of a ``resolv.conf`` that a container can reach by their address."""
    found: set[IPv4Address] = set()
    for line in resolv_conf.splitlines():
        words = line.split()
        if len(words) < 2 or words[0] != "nameserver":
            continue
        try:
            address = ipaddress.ip_address(words[1])
        except ValueError:
            continue
        if isinstance(address, IPv4Address) and not address.is_loopback:
            found.add(address)
    return tuple(sorted(found))
