"""A name server that answers for allowed names only, out of nothing but the policy.

It asks nobody: what a name resolves to is looked up when somebody connects, so no query of a
workspace leaves the machine.
"""

from __future__ import annotations

from collections.abc import Callable

import dns.exception
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from workspaces.egress.allowance import Allowance
from workspaces.egress.host_policy import Policy, Verdict
from workspaces.egress.name_addresses import AskedNames, is_host_name

TTL_SECONDS = 60
MAX_QUERY_BYTES = 512
PAYLOAD_BYTES = 1232
BURST = 200
PER_SECOND = 50.0


class QueryAllowance(Allowance):
    """How many queries of one network are answered: 200 at once, then 50 a second."""

    def __init__(self) -> None:
        super().__init__(BURST, PER_SECOND)


def answer(
    query: bytes, policy: Policy, names: AskedNames, decided: Callable[[str, Verdict], None]
) -> bytes | None:
    """Return the answer to a query; None when there is none to give.

    ``decided`` is told of each name that is refused, and why.
    """
    if len(query) > MAX_QUERY_BYTES:
        return None
    try:
        asked = dns.message.from_wire(query, ignore_trailing=False)
        if asked.flags & dns.flags.QR or asked.opcode() != dns.opcode.QUERY:
            return None
        reply = dns.message.make_response(
            asked, recursion_available=True, our_payload=PAYLOAD_BYTES
        )
    except (dns.exception.DNSException, ValueError, NotImplementedError):
        return None
    if len(asked.question) != 1 or asked.question[0].rdclass != dns.rdataclass.IN:
        reply.set_rcode(dns.rcode.REFUSED)
        return reply.to_wire()
    question = asked.question[0]
    host = question.name.to_text(omit_final_dot=True).lower()
    verdict = (
        policy.about_name(host)
        if is_host_name(host)
        else Verdict(False, "default", "It is not the name of a host.")
    )
    if not verdict.allowed:
        decided(host, verdict)
        reply.set_rcode(dns.rcode.NXDOMAIN)
    elif question.rdtype == dns.rdatatype.A:
        address = names.asked(host)
        reply.answer.append(
            dns.rrset.from_text(question.name, TTL_SECONDS, "IN", "A", str(address))
        )
    # Other types of an allowed name have no answer: no IPv6, no keys for hiding the host of TLS.
    return reply.to_wire()
