"""The wire shapes of workspaces, sandboxes, attempts and events."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from accounts.credential_serializers import MAX_BINDINGS
from controlplane.http.serializers import (
    IdField,
    InputSerializer,
    NameField,
    OutputSerializer,
    OwnedInputSerializer,
    OwnerRequiredInputSerializer,
    PatternField,
    TextField,
    TimestampField,
    WholeNumberField,
)
from controlplane.oci_names import REPOSITORY, TAG
from workspaces.blueprint import MEMBER_IGNORED
from workspaces.env_warnings import SECRET_IN_ENV
from workspaces.models import Attempt, RuntimeInstance, Sandbox, WorkspaceEvent
from workspaces.status import WORKSPACE_STATUSES, SurfacedStatus

MIN_TTL_SECONDS = 10
MAX_TTL_SECONDS = 366 * 24 * 3600
SOURCE_PROVIDERS = ["github"]
STARTED_STATUSES = [SurfacedStatus.QUEUED.value]
RESTART_RELATIONS = [
    Sandbox.Relation.REBUILD.value,
    Sandbox.Relation.RETRY.value,
    Sandbox.Relation.RESUME.value,
]


@extend_schema_field({"$ref": "#/components/schemas/Blueprint"})
class BlueprintField(serializers.JSONField):
    """A blueprint; its own parser says what is wrong with it, after the request's other members."""


class SelectionSerializer(InputSerializer):
    """A repository of a source-hosting installation that the owner was granted."""

    provider = serializers.ChoiceField(choices=SOURCE_PROVIDERS)
    installation_id = TextField(help_text="Its id, as in `GET /v1/scm/installations`.")
    installation_repository_id = TextField(
        help_text="Its id, as in `GET /v1/scm/installations/{installationId}/repositories`."
    )
    ref = TextField(
        required=False, help_text="Branch, tag or commit; by default the default branch."
    )


class CredentialsSerializer(InputSerializer):
    """Which connected accounts the workspace is given, by id or name; empty for none."""

    profile_id = TextField(
        required=False,
        help_text="The profile whose accounts are used, except for those named here.",
    )
    claude = TextField(required=False)
    codex = TextField(required=False)
    github = TextField(required=False)
    generic = serializers.ListField(
        required=False,
        child=TextField(),
        max_length=MAX_BINDINGS,
        help_text="Each sets the environment variable of the same name.",
    )


@extend_schema_serializer(component_name="CreateWorkspace")
class WorkspaceRequestSerializer(OwnerRequiredInputSerializer):
    """What to start: a blueprint, and where its image is published."""

    name = NameField(required=False, help_text="Inferred from repository and tag when absent.")
    registry_id = TextField(help_text="The configured registry's id, `default` unless renamed.")
    repository = PatternField(
        pattern=REPOSITORY,
        hint="A repository is lower-case parts of letters and digits, joined by . _ - and /.",
        max_length=255,
    )
    tag = PatternField(
        pattern=TAG,
        hint="A tag is up to 128 letters, digits, _ . and -, and does not begin with . or -.",
        max_length=128,
    )
    spec = BlueprintField()
    source_selection = SelectionSerializer(required=False)
    dotfiles_selection = SelectionSerializer(required=False)
    credentials = CredentialsSerializer(
        required=False,
        help_text="By default the accounts of the owner's profile `default`; for a workspace that "
        "is started again, the accounts that it had before.",
    )
    ttl_seconds = WholeNumberField(
        required=False,
        min_value=MIN_TTL_SECONDS,
        max_value=MAX_TTL_SECONDS,
        help_text="How long after each start the workspace is stopped, even while it is "
        "working; absent: never.",
    )


@extend_schema_serializer(component_name="StartSandbox")
class SandboxRequestSerializer(WorkspaceRequestSerializer):
    """What to start, perhaps in a workspace that exists already."""

    workspace_id = IdField(
        required=False,
        help_text="Start this workspace again instead of creating one. A `name` renames it.",
    )
    relation = serializers.ChoiceField(
        required=False,
        choices=RESTART_RELATIONS,
        help_text="Why a workspace is started again; by default `rebuild`.",
    )


class StopSerializer(OwnedInputSerializer):
    """Nothing but the owner."""


class StartSerializer(OwnedInputSerializer):
    """How a workspace is started again."""

    relation = serializers.ChoiceField(
        required=False,
        choices=RESTART_RELATIONS,
        help_text="`resume` launches the image that was published, without building; `retry` and "
        "`rebuild` fetch the sources again and build what has changed. By default `resume`, unless "
        "nothing was published yet.",
    )
    credentials = CredentialsSerializer(
        required=False, help_text="By default the accounts that the workspace had before."
    )


WARNING_CODES = (MEMBER_IGNORED, SECRET_IN_ENV)


class WarningSerializer(OutputSerializer):
    """Something of a request that has no effect, or had better be done otherwise."""

    code = serializers.ChoiceField(choices=WARNING_CODES)
    detail = serializers.CharField(help_text="What is wrong with it, and what to do instead.")
    pointer = serializers.CharField(help_text="Where it is in the request (RFC 6901).")


class StartedSandboxSerializer(OutputSerializer):
    """The identifiers of what was started."""

    sandbox_id = serializers.UUIDField()
    workspace_id = serializers.UUIDField()
    attempt_id = serializers.UUIDField()
    run_id = serializers.UUIDField(help_text="The boot run, whose record shows how it went.")
    job_id = serializers.UUIDField()
    name = serializers.CharField()
    status = serializers.ChoiceField(choices=STARTED_STATUSES)
    registry_id = serializers.CharField()
    repository = serializers.CharField()
    tag = serializers.CharField()
    warnings = WarningSerializer(
        many=True, help_text="Parts of the blueprint that are ignored or should be changed."
    )


class RenameSerializer(OwnedInputSerializer):
    """Another name for a workspace."""

    name = NameField()


class TimeToLiveSerializer(OwnedInputSerializer):
    """When a workspace that is live is stopped by itself."""

    ttl_seconds = WholeNumberField(
        min_value=MIN_TTL_SECONDS,
        max_value=MAX_TTL_SECONDS,
        help_text="How long from now, and after each later start, the workspace is stopped, "
        "even while it is working.",
    )


class RenamedSerializer(OutputSerializer):
    """The workspace's new name."""

    workspace_id = serializers.UUIDField()
    name = serializers.CharField()
    updated_at = TimestampField()


class RuntimeSerializer(OutputSerializer):
    """What runs for an attempt."""

    adapter = serializers.CharField()
    resource_id = serializers.CharField()
    reference = serializers.CharField()
    status = serializers.ChoiceField(choices=RuntimeInstance.Status.choices)
    endpoint = serializers.CharField(required=False)


class PublishedImageSerializer(OutputSerializer):
    """The image in the registry."""

    reference = serializers.CharField()
    digest_reference = serializers.CharField()
    digest = serializers.CharField()


class FailureSerializer(OutputSerializer):
    """Why something failed."""

    message = serializers.CharField()
    code = serializers.CharField(required=False)


class ReasonSerializer(OutputSerializer):
    """Why something is not ready, since when, and what happens next."""

    code = serializers.CharField()
    message = serializers.CharField()
    since = TimestampField()
    next = serializers.CharField()
    engine = serializers.CharField(
        required=False, help_text="The engine that is waited for, when that is the reason."
    )


class StatusSerializer(OutputSerializer):
    # The members that reads of workspaces, sandboxes and attempts have in common.
    status = serializers.ChoiceField(choices=SurfacedStatus.choices)
    reason = ReasonSerializer(required=False)
    runtime = RuntimeSerializer(required=False)
    published_image = PublishedImageSerializer(required=False)
    error = FailureSerializer(required=False)
    created_at = TimestampField()
    updated_at = TimestampField()
    started_at = TimestampField(required=False)
    finished_at = TimestampField(required=False)


class EngineSerializer(OutputSerializer):
    """The engine that a workspace is on."""

    name = serializers.CharField()
    pinned = serializers.BooleanField(
        help_text="Whether it can start on no other one: its volumes are there."
    )


class WorkspaceSummarySerializer(StatusSerializer):
    """A workspace and how it stands."""

    status = serializers.ChoiceField(choices=WORKSPACE_STATUSES)
    workspace_id = serializers.UUIDField()
    sandbox_id = serializers.UUIDField(required=False)
    name = serializers.CharField()
    owner_user_id = serializers.CharField()
    registry_id = serializers.CharField(required=False)
    repository = serializers.CharField(required=False)
    tag = serializers.CharField(required=False)
    engine = EngineSerializer(
        required=False, help_text="Where its latest attempt was placed, once it was."
    )
    expires_at = TimestampField(required=False, help_text="When it is stopped automatically.")
    deleted_at = TimestampField(required=False)


class WorkspaceSerializer(WorkspaceSummarySerializer):
    """A workspace, how it stands, and its blueprint."""

    spec = BlueprintField(required=False)


class SandboxSerializer(StatusSerializer):
    """A request to start a workspace, and how it stands."""

    sandbox_id = serializers.UUIDField()
    workspace_id = serializers.UUIDField()
    attempt_id = serializers.UUIDField(required=False)
    run_id = serializers.UUIDField(required=False)
    job_id = serializers.UUIDField(required=False)
    name = serializers.CharField()
    owner_user_id = serializers.CharField()
    relation = serializers.ChoiceField(choices=Sandbox.Relation.choices)
    registry_id = serializers.CharField()
    repository = serializers.CharField()
    tag = serializers.CharField()
    spec = BlueprintField()


class AttemptSerializer(StatusSerializer):
    """One try to build, publish and launch."""

    attempt_id = serializers.UUIDField()
    sandbox_id = serializers.UUIDField()
    run_id = serializers.UUIDField()
    job_id = serializers.UUIDField(required=False)
    relation = serializers.ChoiceField(choices=Sandbox.Relation.choices)
    trigger_type = serializers.ChoiceField(choices=Attempt.TriggerType.choices)
    spec = BlueprintField()
    queued_at = TimestampField()
    linked_at = TimestampField()
    duration_ms = serializers.IntegerField(required=False, min_value=0)


class EventSerializer(OutputSerializer):
    """Something that happened to a workspace."""

    event_id = serializers.UUIDField()
    workspace_id = serializers.UUIDField()
    attempt_id = serializers.UUIDField(required=False)
    type = serializers.ChoiceField(choices=WorkspaceEvent.Type.choices)
    occurred_at = TimestampField()
    message = serializers.CharField()
    data = serializers.DictField(  # type: ignore[assignment]  # DRF takes fields off the class
        child=serializers.JSONField()
    )


class TargetRuntimeSerializer(OutputSerializer):
    """The container of a workspace, as the SSH gateway addresses it."""

    adapter = serializers.CharField()
    resource_id = serializers.CharField()
    reference = serializers.CharField()
    status = serializers.ChoiceField(choices=RuntimeInstance.Status.choices)
    endpoint = serializers.CharField(help_text="The address at which the adapter reaches it.")


class SshTargetSerializer(OutputSerializer):
    """Where the SSH gateway finds a workspace."""

    workspace_id = serializers.UUIDField()
    attempt_id = serializers.UUIDField()
    runtime = TargetRuntimeSerializer()
    working_directory = serializers.CharField(
        required=False, help_text="Where sessions begin: the blueprint's working directory."
    )
