"""What workspaces add to the OpenAPI description: the blueprint, and examples."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiExample, OpenApiParameter

from workspaces.blueprint import blueprint_schema, egress_schema

SMALLEST_BLUEPRINT: dict[str, Any] = {"harness": {"id": "shell"}}

BLUEPRINT: dict[str, Any] = {
    "harness": {"id": "claude-code"},
    "sources": {
        "workspace": {"url": "https://github.com/octocat/Hello-World.git", "ref": "master"}
    },
    "tooling": {"packages": [{"id": "ripgrep"}, {"id": "node"}]},
    "lifecycle": {
        "setup": [{"id": "install", "run": "npm install"}],
        "startup": {"steps": [{"id": "check", "run": "npm test"}]},
    },
    "runtime": {
        "env": {"NODE_ENV": "development"},
        "network": {"outbound": True},
        "resources": {"memoryMb": 2048, "cpus": 2},
    },
    "target": {"os": {"family": "debian"}},
}

REQUEST: dict[str, Any] = {
    "ownerUserId": "usr_local",
    "registryId": "default",
    "repository": "team/hello-world",
    "tag": "latest",
}

START_DESCRIPTION = """\
Stores the request and queues a build job. Poll `GET /v1/sandboxes/{sandboxId}` until `status` is
`ready` or `failed`. Creates a workspace unless `workspaceId` names one that has ended.

A selection replaces a source in `spec`: `sourceSelection` that of `sources.workspace`,
`dotfilesSelection` that of the dotfiles. A workspace that is started again keeps the selection of a
source as long as its URL stays the same.

Connected accounts are opened by the worker when the workspace starts. One that cannot be opened
then fails the job, with one of these as its `errorCode`: `connected-account-gone`,
`connected-account-invalid`, `connected-account-mismatch`, `connected-account-unopened`,
`credentials-key-unset`, `credentials-too-large`.

| Status | `code` | When |
|---|---|---|
| 400 | `validation-failed` | members or blueprint are wrong; see `errors` |
| 403 | `installation-not-active` | the installation of a selection is suspended or was removed |
| 404 | `registry-not-found` | `registryId` is not the configured registry |
| 404 | `installation-not-found` | a selection names an installation that the owner does not have |
| 404 | `source-repository-not-found` | it names a repository that does not exist |
| 404 | `workspace-not-found` | the owner has no such workspace |
| 404 | `credentials-not-found` | a profile or account is named that the owner does not have |
| 409 | `connected-account-not-active` | a named account is invalid or was deleted |
| 409 | `profile-archived` | the named profile is archived |
| 409 | `repository-taken` | another owner was the first to publish to the repository |
| 409 | `idempotency-key-reused` | the key was used for another request |
| 409 | `workspace-active` | the workspace has not ended |
| 409 | `sandbox-superseded` | a request is repeated whose sandbox a newer one has replaced |
| 409 | `workspace-stopping` | it is being stopped; start it when it has stopped |
| 409 | `workspace-deleting` | it is being deleted |
| 409 | `workspace-deleted` | it was deleted |
| 429 | `owner-limit-reached` | the owner has reached a limit of the operator; `limits` names it |
| 502 | `package-index-unavailable` | a package needs an index that has not been read yet |
| 502 | `queue-publish-failed` | recorded as failed: the queue could not be reached |
| 503 | `scm-app-unconfigured` | a selection was given, but no provider app is configured |
"""

STOP_DESCRIPTION = """\
Stores a request to stop the workspace. A build worker then ends everything that runs in it,
completes the records, and removes the container; after that, `status` is `stopped`. A build or
launch in progress is cancelled, and `status` is `cancelled`. Until then, `reason.code` is
`stopping`. A persistent workspace keeps its home and `workspaceRoot`. Stopping a workspace that has
ended or is being stopped is accepted and changes nothing.

| Status | `code` | When |
|---|---|---|
| 404 | `workspace-not-found` | the owner has no such workspace |
| 409 | `workspace-deleted` | it was deleted |
"""

RESTART_DESCRIPTION = """\
Starts another attempt of a workspace that has ended, with the blueprint of its latest sandbox. Poll
`GET /v1/workspaces/{workspaceId}` until `status` is `ready` or `failed`. A `resume` whose image the
registry has lost builds it again.

| Status | `code` | When |
|---|---|---|
| 404 | `workspace-not-found` | the owner has no such workspace |
| 404 | `credentials-not-found` | a profile or account is named that the owner does not have |
| 409 | `workspace-active` | it has not ended |
| 409 | `workspace-stopping` | it is being stopped; start it when it has stopped |
| 409 | `workspace-deleting` | it is being deleted |
| 409 | `workspace-deleted` | it was deleted |
| 409 | `nothing-published` | `resume`, but no image was published yet |
| 409 | `connected-account-not-active` | one of its accounts is invalid or was deleted |
| 409 | `profile-archived` | the named profile is archived |
| 429 | `owner-limit-reached` | the owner has reached a limit of the operator; `limits` names it |
| 502 | `queue-publish-failed` | recorded as failed: the queue could not be reached |
"""

DELETE_DESCRIPTION = """\
Accepted in every state, also repeatedly; it cannot be undone. Cancels a build in progress, stops
the workspace as a stop does, and removes containers and volumes; after that, `status` is `deleted`,
and lists leave the workspace out unless asked with `status=deleted`. Until then, `reason.code` is
`deleting`. The records of its runs and its history stay readable as long as records are kept.

| Status | `code` | When |
|---|---|---|
| 404 | `workspace-not-found` | the owner has no such workspace |
"""

TTL_DESCRIPTION = """\
Sets how long from now a live workspace is stopped, which may be earlier or later than before. It
also applies after each later start. `expiresAt` says when; the history has an event
`workspace.ttl-changed`.

| Status | `code` | When |
|---|---|---|
| 404 | `workspace-not-found` | the owner has no such workspace |
| 409 | `workspace-ended` | the workspace has ended; start it first |
| 409 | `workspace-stopping` | it is being stopped |
| 409 | `workspace-deleting` | it is being deleted |
| 409 | `workspace-deleted` | it was deleted |
"""

SSH_TARGET_DESCRIPTION = """\
Only for the SSH gateway. The token is checked first.

| Status | `code` | When |
|---|---|---|
| 401 | `gateway-token-invalid` | the token is missing or wrong |
| 401 | `principal-missing` | the header that names the owner is missing |
| 404 | `workspace-not-found` | the principal has no such workspace |
| 409 | `workspace-not-ready` | `reason` says why, since when and what happens next |
| 503 | `gateway-token-unset` | the installation has no token |
"""

EGRESS_POLICY: dict[str, Any] = {
    "presets": ["python"],
    "rules": [{"hosts": ["api.github.com"], "credential": "github"}],
}

EGRESS_DESCRIPTION = """\
The hosts that the workspace may reach, by name: `runtime.network.egress` of its blueprint, as it is
now.

| Status | `code` | When |
|---|---|---|
| 404 | `workspace-not-found` | the owner has no such workspace |
| 409 | `egress-policy-absent` | it was started without a policy |
"""

REPLACE_EGRESS_DESCRIPTION = """\
Replaces the policy, without a restart: the egress proxy decides by the new one within a second, and
closes open connections that it does not allow. Later starts of the workspace have it, too. A build
that is under way keeps the policy that it began with. `credential` can name an account only if a
rule named it already when the workspace was started: otherwise its secret is in the workspace.

| Status | `code` | When |
|---|---|---|
| 400 | `validation-failed` | the policy is wrong; see `errors` |
| 404 | `workspace-not-found` | the owner has no such workspace |
| 409 | `egress-policy-absent` | it was started without a policy, so its network cannot have one |
| 409 | `egress-authority-absent` | it has no certificate authority, and a rule needs TLS opened |
"""

EGRESS_PROPOSALS_DESCRIPTION = """\
Hosts and ports that the workspace asked for, that were refused, and that a rule would allow: the
latest 200 that nobody has decided on. What is dismissed is proposed no more.

| Status | `code` | When |
|---|---|---|
| 404 | `workspace-not-found` | the owner has no such workspace |
"""

APPROVE_EGRESS_DESCRIPTION = """\
Adds a rule for the host to the policy, as a replacement of the policy would, and answers with the
policy. Who or what in the workspace asked for the host is not known: look at it first.

| Status | `code` | When |
|---|---|---|
| 400 | `validation-failed` | the ports are wrong; see `errors` |
| 404 | `workspace-not-found` | the owner has no such workspace |
| 404 | `egress-proposal-not-found` | it has no such proposal, or it was decided on |
| 409 | `egress-policy-absent` | the workspace was started again without a policy |
| 409 | `egress-rules-full` | the policy has as many rules as it can have |
"""

DISMISS_EGRESS_DESCRIPTION = """\
The host stays refused, and is proposed no more.

| Status | `code` | When |
|---|---|---|
| 404 | `workspace-not-found` | the owner has no such workspace |
| 404 | `egress-proposal-not-found` | it has no such proposal, or it was decided on |
"""

CREATE_EXAMPLES = [
    OpenApiExample(
        "The smallest", value={**REQUEST, "spec": SMALLEST_BLUEPRINT}, request_only=True
    ),
    OpenApiExample(
        "A repository with an agent, tools and steps",
        value={**REQUEST, "name": "Hello World", "spec": BLUEPRINT},
        request_only=True,
    ),
]

ACCEPTED_HEADERS = [
    OpenApiParameter(
        "Location",
        str,
        OpenApiParameter.HEADER,
        description="Where its current state can be read.",
        response=[202],
    ),
    OpenApiParameter(
        "idempotency-replayed",
        str,
        OpenApiParameter.HEADER,
        description="`true` when this repeats the first answer to the key.",
        response=[202],
    ),
]


def add_blueprint(
    result: dict[str, Any], generator: Any, request: Any, public: bool
) -> dict[str, Any]:
    """Describe blueprint and policy once, as the components that all their places refer to."""
    schema = {**blueprint_schema(), "examples": [SMALLEST_BLUEPRINT, BLUEPRINT]}
    ours = {"Blueprint": schema, "EgressPolicy": {**egress_schema(), "examples": [EGRESS_POLICY]}}
    schemas = {**result["components"]["schemas"], **ours}
    result["components"]["schemas"] = dict(sorted(schemas.items()))
    return result
