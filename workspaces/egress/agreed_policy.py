"""The policy of a network, agreed on before the network is made, and replaced while it is used."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import structlog
from django.conf import settings
from django.db import connection, transaction

from accounts.resolution import Reference
from controlplane.database.retries import retry_database
from controlplane.errors import ValidationFailed
from workspaces.blueprint import Egress, EgressRule
from workspaces.egress.bound.bindings import bound_accounts, egress_in
from workspaces.egress.host_policy import HTTP_PORT, Policy, UnknownPreset
from workspaces.egress.presets import PresetsError, read_presets
from workspaces.models import Attempt, EgressNetwork, Sandbox
from workspaces.runtimes.base import LaunchError
from workspaces.services import references_of

REGISTER_SECONDS = 30.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AgreedPolicy:
    """The policy of an attempt's networks, with the rules of its presets filled in, as JSON."""

    attempt: Attempt
    egress: Egress
    policy: dict[str, Any]
    is_build: bool

    def __call__(self, bridge: str) -> None:
        """Make the policy of a new network known, by the name of its bridge.

        Waits half a minute for a database that does not answer. May be repeated.
        """
        # It also makes a new connection where this one has ended during a long build.
        retry_database(lambda: self._write(bridge), timeout=REGISTER_SECONDS)

    def _write(self, bridge: str) -> None:
        if self._insert(bridge, self.policy, unless_changed=not self.is_build):
            return
        with transaction.atomic():
            self._insert(bridge, self._present())

    def _insert(self, bridge: str, policy: dict[str, Any], *, unless_changed: bool = False) -> bool:
        """Write the network, in one statement; False: the owner has changed the policy meanwhile.

        It holds the blueprint until it has ended, so that nobody changes the policy in between.
        """
        given: dict[str, Any] = {
            "bridge": bridge,
            "attempt": self.attempt.pk,
            "policy": json.dumps(policy),
            "is_build": self.is_build,
            "any": not unless_changed,
        }
        with connection.cursor() as cursor:
            cursor.execute(_INSERT, given)
            return cursor.fetchone() is not None

    def _present(self) -> dict[str, Any]:
        """Return the policy as the owner may have changed it meanwhile; it cannot change now."""
        spec = Sandbox.objects.select_for_update().get(pk=self.attempt.sandbox_id).spec
        present = egress_in(spec)
        if present is None or present == self.egress:
            return self.policy
        return policy_of(present, references_of(self.attempt)).to_wire()


_INSERT = """
WITH present AS (
    SELECT attempt.id
    FROM workspaces_attempt AS attempt JOIN workspaces_sandbox AS sandbox
        ON sandbox.id = attempt.sandbox_id
    WHERE attempt.id = %(attempt)s AND (%(any)s OR
        sandbox.spec #> '{runtime,network,egress}'
        IS NOT DISTINCT FROM attempt.spec #> '{runtime,network,egress}')
    FOR UPDATE OF sandbox
)
INSERT INTO workspaces_egressnetwork (bridge, attempt_id, policy, is_build, created_at)
SELECT %(bridge)s, id, %(policy)s::jsonb, %(is_build)s, statement_timestamp() FROM present
ON CONFLICT (bridge) DO UPDATE SET
    attempt_id = excluded.attempt_id, policy = excluded.policy, is_build = excluded.is_build
RETURNING bridge
"""


def egress_of(
    attempt: Attempt,
    egress: Egress | None,
    references: Sequence[Reference] = (),
    *,
    is_build: bool = False,
) -> AgreedPolicy | None:
    """Return what makes the policy of a new network known, by the name of its bridge.

    ``references`` are the accounts that the workspace is given. None when there is no policy.
    Raises ``egress-not-enforced`` when its presets, or the accounts that it names, cannot be used.
    """
    if egress is None:
        return None
    policy = policy_of(egress, references)
    if not settings.SVC_CREDENTIALS_KEY and any(map(_opens_tls, egress.rules)):
        raise LaunchError(
            "egress-not-enforced",
            "Rules with methods, paths or a credential require TLS to be opened, by an authority "
            "whose key is kept sealed: this installation has no SVC_CREDENTIALS_KEY.",
        )
    if is_build:
        policy = policy.without_credentials()
    return AgreedPolicy(attempt, egress, policy.to_wire(), is_build)


def _opens_tls(rule: EgressRule) -> bool:
    return rule.sees_requests and set(rule.ports) != {HTTP_PORT}


def policy_of(egress: Egress, references: Sequence[Reference]) -> Policy:
    """Return a policy with its presets and accounts filled in; raises ``egress-not-enforced``."""
    try:
        accounts = bound_accounts(egress, references)
        return Policy.of(egress, read_presets(settings.SVC_EGRESS_PRESETS), accounts)
    except ValidationFailed as error:
        raise LaunchError("egress-not-enforced", error.errors[0].detail) from error
    except UnknownPreset as error:
        raise LaunchError(
            "egress-not-enforced", f"This installation no longer has the preset {error}."
        ) from error
    except PresetsError as error:
        log.error("egress_presets_not_read", reason=str(error))
        raise LaunchError(
            "egress-not-enforced", "The presets of this installation cannot be read."
        ) from error


def replace_policy(attempt_id: UUID, policy: Policy) -> int:
    """Give a workspace's networks another policy; return how many there are."""
    return EgressNetwork.objects.replace_policy(attempt_id, policy.to_wire())
