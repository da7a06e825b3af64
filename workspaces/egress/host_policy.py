"""What a policy says of a host, a port and, where that can be seen, of a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:  # an idle proxy has no policies, and loads neither blueprints nor pydantic
    from workspaces.blueprint import Egress, EgressRule
    from workspaces.egress.presets import Presets

DNS_PORT, SSH_PORT, HTTP_PORT, TLS_PORT = 53, 22, 80, 443
DEFAULT_HEADER = "authorization"


class UnknownPreset(LookupError):
    """There is no such preset; the text is the name that was asked for."""


@dataclass(frozen=True, slots=True)
class Bound:
    """An account whose secret is put into a header of requests."""

    account_id: UUID
    header: str


@dataclass(frozen=True, slots=True)
class NamedRule:
    """A rule, and what it is called in decisions: ``rules/0`` or ``presets/python@1/0``.

    ``account_id`` is the account that its credential names.
    """

    name: str
    rule: EgressRule
    account_id: UUID | None = None

    def names(self, host: str) -> bool:
        """Tell whether the rule is about the host."""
        return any(
            host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern
            for pattern in self.rule.hosts
        )

    def carries(self, protocol: str) -> bool:
        """Tell whether it allows a protocol at its ports: ``http``, ``tls``, ``ssh`` or ``tcp``."""
        if self.rule.credential is not None:
            return protocol == "tls"
        return not self.rule.sees_requests or protocol in ("http", "tls")

    def fits(self, method: str, path: str) -> bool:
        """Tell whether it allows a request."""
        return _method_fits(self.rule, method) and _path_fits(self.rule, path)

    @property
    def bound(self) -> Bound | None:
        """What is put into requests that it allows."""
        if self.account_id is None:
            return None
        return Bound(self.account_id, self.rule.header or DEFAULT_HEADER)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether something may pass, the rule that says so, and why not.

    ``another_rule`` tells that a rule for the host and port would allow it.
    """

    allowed: bool
    rule: str
    reason: str = ""
    another_rule: bool = False
    bound: tuple[Bound, ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy with the rules of its presets filled in: it does not change afterwards."""

    default_allow: bool
    rules: tuple[NamedRule, ...]

    @classmethod
    def of(
        cls, egress: Egress, presets: Presets, accounts: Mapping[int, UUID] | None = None
    ) -> Policy:
        """Fill in the presets, and the accounts by the number of the rule that names each.

        Raises ``UnknownPreset``.
        """
        bound = accounts or {}
        named = [
            NamedRule(f"rules/{number}", rule, bound.get(number))
            for number, rule in enumerate(egress.rules)
        ]
        for wanted in egress.presets:
            found = presets.find(wanted)
            if found is None:
                raise UnknownPreset(wanted)
            name, rules = found
            named += [
                NamedRule(f"presets/{name}/{number}", rule) for number, rule in enumerate(rules)
            ]
        return cls(egress.default == "allow", tuple(named))

    @classmethod
    def from_wire(cls, told: Mapping[str, Any]) -> Policy:
        """Return what :meth:`to_wire` was made of."""
        from workspaces.blueprint import EgressRule

        rules = (
            NamedRule(
                each["name"],
                EgressRule.model_validate(each["rule"]),
                UUID(each["accountId"]) if "accountId" in each else None,
            )
            for each in told["rules"]
        )
        return cls(bool(told["defaultAllow"]), tuple(rules))

    def to_wire(self) -> dict[str, Any]:
        """Return the policy as JSON."""
        return {
            "defaultAllow": self.default_allow,
            "rules": [
                {
                    "name": each.name,
                    "rule": each.rule.model_dump(mode="json", by_alias=True, exclude_none=True),
                    **({"accountId": str(each.account_id)} if each.account_id else {}),
                }
                for each in self.rules
            ],
        }

    def without_credentials(self) -> Policy:
        """Return the same for a build: it has no placeholders, and its TLS is its own."""
        nothing = {"credential": None, "header": None}
        rules = (
            replace(each, rule=each.rule.model_copy(update=nothing), account_id=None)
            for each in self.rules
        )
        return Policy(self.default_allow, tuple(rules))

    def about_name(self, host: str) -> Verdict:
        """Say whether a host may be reached at any port at all, so that its name is answered."""
        about = [each for each in self.rules if each.names(host)]
        if about:
            return Verdict(True, about[0].name)
        return self._by_default(host)

    def about_connection(self, host: str, port: int, protocol: str = "tls") -> Verdict:
        """Say whether a host may be reached at a port with a protocol, and some request."""
        about = [each for each in self.rules if each.names(host)]
        if not about:
            return self._by_default(host)
        at_port = [each for each in about if port in each.rule.ports]
        for each in at_port:
            if each.carries(protocol):
                return Verdict(True, each.name)
        if at_port:
            wanted = "TLS" if at_port[0].rule.credential is not None else "HTTP and TLS"
            reason = f"The rule for {host} at port {port} is for {wanted} only."
            return Verdict(False, at_port[0].name, reason)
        reason = f"{host} may not be reached at port {port}."
        return Verdict(False, about[0].name, reason, another_rule=True)

    def about_request(
        self, host: str, port: int, method: str, path: str, protocol: str = "http"
    ) -> Verdict:
        """Say whether an HTTP request may be sent. ``path`` is without the query.

        ``protocol`` is ``tls`` for a request inside TLS.
        """
        about = self._about(host, port, protocol)
        if not about:
            return self.about_connection(host, port, protocol)
        fitting = [each for each in about if each.fits(method, path)]
        if not fitting:
            reason = f"{method} {path[:200]} is not allowed at {host}."
            return Verdict(False, about[0].name, reason)
        bound = [each for each in fitting if each.bound is not None]
        first = (bound or fitting)[0]
        return Verdict(
            True, first.name, bound=tuple(each.bound for each in bound if each.bound is not None)
        )

    def opens_tls(self, host: str, port: int) -> bool:
        """Tell whether a rule has to see the requests inside TLS to this host and port."""
        return any(each.rule.sees_requests for each in self._about(host, port, "tls"))

    def names_port(self, host: str, port: int) -> bool:
        """Tell whether a rule names this very host and port: then any protocol is meant."""
        return bool(self._about(host, port, "tcp"))

    def _about(self, host: str, port: int, protocol: str) -> list[NamedRule]:
        return [
            each
            for each in self.rules
            if each.names(host) and port in each.rule.ports and each.carries(protocol)
        ]

    def _by_default(self, host: str) -> Verdict:
        if self.default_allow:
            return Verdict(True, "default")
        return Verdict(False, "default", f"No rule names {host}.", another_rule=True)


def _method_fits(rule: EgressRule, method: str) -> bool:
    return rule.methods is None or method in rule.methods


def _path_fits(rule: EgressRule, path: str) -> bool:
    if rule.paths is None:
        return True
    # What a server may take for another path than it looks fits no rule.
    if set(path) & set("%\\;#") or "//" in path or {".", ".."} & set(path.split("/")):
        return False
    return any(
        path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern
        for pattern in rule.paths
    )
