"""What a policy says of a host, a port and, where that can be seen, of a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workspaces.blueprint import Egress, EgressRule
from workspaces.egress.presets import Presets

DNS_PORT, SSH_PORT, HTTP_PORT, TLS_PORT = 53, 22, 80, 443


class UnknownPreset(LookupError):
    """There is no such preset; the text is the name that was asked for."""


@dataclass(frozen=True, slots=True)
class NamedRule:
    """A rule, and what it is called in decisions: ``rules/0`` or ``presets/python@1/0``."""

    name: str
    rule: EgressRule

    def names(self, host: str) -> bool:
        """Tell whether the rule is about the host."""
        return any(
            host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern
            for pattern in self.rule.hosts
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether something may pass, the rule that says so, and why not."""

    allowed: bool
    rule: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy with the rules of its presets filled in: it does not change afterwards."""

    default_allow: bool
    rules: tuple[NamedRule, ...]

    @classmethod
    def of(cls, egress: Egress, presets: Presets) -> Policy:
        """Fill in the presets; raises ``UnknownPreset``."""
        named = [NamedRule(f"rules/{number}", rule) for number, rule in enumerate(egress.rules)]
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
        rules = (
            NamedRule(each["name"], EgressRule.model_validate(each["rule"]))
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
                }
                for each in self.rules
            ],
        }

    def about_name(self, host: str) -> Verdict:
        """Say whether a host may be reached at any port at all, so that its name is answered."""
        about = [each for each in self.rules if each.names(host)]
        if about:
            return Verdict(True, about[0].name)
        return self._by_default(host)

    def about_connection(self, host: str, port: int) -> Verdict:
        """Say whether a host may be reached at a port, with some request."""
        about = [each for each in self.rules if each.names(host)]
        if not about:
            return self._by_default(host)
        for each in about:
            if port in each.rule.ports:
                return Verdict(True, each.name)
        return Verdict(False, about[0].name, f"{host} may not be reached at port {port}.")

    def about_request(self, host: str, port: int, method: str, path: str) -> Verdict:
        """Say whether an HTTP request may be sent. ``path`` is without the query."""
        about = [each for each in self.rules if each.names(host) and port in each.rule.ports]
        if not about:
            return self.about_connection(host, port)
        for each in about:
            if _method_fits(each.rule, method) and _path_fits(each.rule, path):
                return Verdict(True, each.name)
        return Verdict(False, about[0].name, f"{method} {path[:200]} is not allowed at {host}.")

    def names_port(self, host: str, port: int) -> bool:
        """Tell whether a rule names this very host and port: then any protocol is meant."""
        return any(each.names(host) and port in each.rule.ports for each in self.rules)

    def _by_default(self, host: str) -> Verdict:
        if self.default_allow:
            return Verdict(True, "default")
        return Verdict(False, "default", f"No rule names {host}.")


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
