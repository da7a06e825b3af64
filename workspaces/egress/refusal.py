"""That something is not passed on, and why."""

from __future__ import annotations

from workspaces.egress.host_policy import Verdict


class Refused(Exception):
    """A connection is not passed on.

    ``finding`` tells that it would have taken something out, as far as anybody can see;
    ``not_reached`` that the policy allows it, and nobody answers.
    """

    def __init__(
        self, verdict: Verdict, host: str, *, finding: bool = False, not_reached: bool = False
    ) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict
        self.host = host
        self.finding = finding
        self.not_reached = not_reached


def refused(rule: str, reason: str, host: str, *, finding: bool = False) -> Refused:
    """Return a refusal that no rule of the policy would change."""
    return Refused(Verdict(False, rule, reason), host, finding=finding)


def shown(host: str) -> str:
    """Return what a client has said as a host, as it can be stored."""
    return "".join(each if each.isascii() and each.isprintable() else "?" for each in host[:253])
