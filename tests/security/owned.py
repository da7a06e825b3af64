"""One owner who has something of everything, and who asks for it: for tests of identities."""

from __future__ import annotations

import base64
import re
import uuid
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django.fixtures import Settings

from accounts.connected import connect_account
from accounts.models import RenewedSecret
from accounts.profiles import ensure_default_profile
from accounts.providers import Provider
from accounts.public_keys import parse_public_key
from accounts.renewal import propose_renewed
from accounts.services import register_ssh_key
from scm.models import Installation, InstallationGrant
from tests.accounts.connected import codex
from tests.accounts.keys import ed25519
from tests.conftest import OWNER, Answer, Api
from tests.runs.ready import ready_attempt
from tests.runs.record_factory import make_run, record
from workspaces.models import Attempt, EgressProposal, PublishedRepository, Sandbox

HEADER = "X-Forwarded-User"
STRANGER = "usr_stranger"


def require_identity(settings: Settings) -> None:
    """Have every caller named by a proxy on this machine, and everything set up to be asked for."""
    settings.SVC_TRUSTED_OWNER_HEADER = HEADER
    settings.SVC_TRUSTED_PROXIES = ["127.0.0.0/8"]
    settings.SVC_CREDENTIALS_KEY = base64.b64encode(bytes(32)).decode()
    settings.WORKSPACE_SSH_GATEWAY_TOKEN = "gateway-token"
    settings.SCM_APP_ID, settings.SCM_APP_PRIVATE_KEY = "1", "never used"


@dataclass(frozen=True, slots=True)
class Place:
    """The ids of what an owner has, by the names of the path's parameters."""

    ids: dict[str, str]

    def path(self, template: str) -> str:
        """Return a path of the description that leads to what the owner has."""
        return re.sub(r"\{(\w+)\}", lambda name: self.ids[name[1]], template)

    def unknown(self) -> Place:
        """Return a place of ids that nobody has."""
        kept = {"sequence": "1", "port": "8080", "registryId": "default"}
        return Place({name: kept.get(name, str(uuid.uuid4())) for name in self.ids})


def _ssh_key() -> uuid.UUID:
    key = parse_public_key(ed25519())
    return register_ssh_key(owner_user_id=OWNER, key=key, name=None).pk


def _repository() -> str:
    name = f"tests/owned-{uuid.uuid4().hex}"
    assert PublishedRepository.objects.claim("default", name, owner_user_id=OWNER)
    return name


def refused_host(attempt: Attempt) -> uuid.UUID:
    """Give a workspace a policy, and a host that it was refused because of it."""
    network = {"outbound": True, "egress": {"rules": [{"hosts": ["a.test"]}]}}
    spec = {"harness": {"id": "shell"}, "runtime": {"network": network}}
    Sandbox.objects.filter(pk=attempt.sandbox_id).update(spec=spec)
    proposal = EgressProposal.objects.create(workspace=attempt.workspace, host="b.test", port=443)
    return proposal.pk


def fill() -> Place:
    """Let the owner of the tests have something of everything."""
    attempt = ready_attempt()
    run = make_run(workspace=attempt.workspace, attempt=attempt)
    record(run)
    account = connect_account(
        owner_user_id=OWNER, provider=Provider.GENERIC, name="A_TOKEN", secret="not-a-secret"
    )
    renewing = connect_account(
        owner_user_id=OWNER, provider=Provider.CODEX, name=None, secret=codex()
    )
    propose_renewed(
        renewing.pk,
        codex("2026-02-01T00:00:00Z"),
        workspace_id=attempt.workspace_id,
        generation=renewing.generation,
    )
    installation = Installation.objects.create(
        external_id=7,
        account_id=1,
        account_login="acme",
        account_type="organization",
        repository_selection="all",
        observed_at=timezone.now(),
        holder_user_id=OWNER,
    )
    InstallationGrant.objects.create(installation=installation, owner_user_id=OWNER)
    return Place(
        {
            "workspaceId": str(attempt.workspace_id),
            "sandboxId": str(attempt.sandbox_id),
            "attemptId": str(attempt.pk),
            "runId": str(run.pk),
            "sequence": "1",
            "port": "8080",
            "sshKeyId": str(_ssh_key()),
            "connectedAccountId": str(account.pk),
            "codexAccountId": str(renewing.pk),
            "renewalId": str(RenewedSecret.objects.get(account=renewing).pk),
            "proposalId": str(refused_host(attempt)),
            "profileId": str(ensure_default_profile(OWNER).pk),
            "installationId": str(installation.pk),
            "registryId": "default",
            "repository": _repository(),
        }
    )


def call(
    api: Api, method: str, path: str, body: Any = None, *, caller: str | None = None, **headers: str
) -> Answer:
    """Ask for something as a caller, or as nobody."""
    named = {} if caller is None else {HEADER.lower(): caller}
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    return api.request(method, path, body, headers={**named, **told})


def contents() -> dict[str, tuple[int, str]]:
    """Return how many rows each table of ours has, and a hash of all that is in them.

    Of a run's event it is the link, itself a hash of all that is in it and before it: the bodies
    that earlier tests have left are megabytes.
    """
    tables = {model._meta.db_table for model in apps.get_models(include_auto_created=True)}
    found = {}
    with connection.cursor() as cursor:
        for table in sorted(tables):
            row = "(t.run_number, t.sequence, t.link)" if table == "run_event" else "t"
            cursor.execute(
                f"SELECT count(*), coalesce(md5(string_agg(md5({row}::text), ''"  # noqa: S608
                f" ORDER BY {row}::text)), '') FROM \"{table}\" AS t"
            )
            found[table] = cursor.fetchone()
    return found


_VALUES = re.compile(
    r"\"s\d+_x\d+\"|'[^']*'(::\w+)?|\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{32}\b"
)


def shapes(queries: CaptureQueriesContext) -> list[str]:
    """Return the statements that were sent, without the ids and texts in them."""
    return [_VALUES.sub("?", each["sql"]) for each in queries]
