"""All rows of workspaces: what was asked for, what is being done, and what runs."""

from controlplane.work.leases import Fence, LeaseLost
from workspaces.models.build_jobs import BuildJob, SandboxRequest, SourceReference
from workspaces.models.core import (
    ENGINE_GONE,
    ERROR_CODE_MAX_LENGTH,
    EVENTS_CHANNEL,
    Attempt,
    CredentialReference,
    RuntimeInstance,
    Sandbox,
    Workspace,
    WorkspaceEvent,
)
from workspaces.models.egress_networks import (
    EgressAuthority,
    EgressJournal,
    EgressNetwork,
    EgressProposal,
)
from workspaces.models.guards import NetworkGuardReport
from workspaces.models.known_engines import Engine
from workspaces.models.repositories import PublishedRepository
from workspaces.models.transition import Transition
from workspaces.models.warm_pool import PlanDemand, WarmMember, WarmPlan
from workspaces.packages.models import Package, PackageIndex, PackageOverride

__all__ = [
    "ENGINE_GONE",
    "ERROR_CODE_MAX_LENGTH",
    "EVENTS_CHANNEL",
    "Attempt",
    "BuildJob",
    "CredentialReference",
    "EgressAuthority",
    "EgressJournal",
    "EgressNetwork",
    "EgressProposal",
    "Engine",
    "Fence",
    "LeaseLost",
    "NetworkGuardReport",
    "Package",
    "PackageIndex",
    "PackageOverride",
    "PlanDemand",
    "PublishedRepository",
    "RuntimeInstance",
    "Sandbox",
    "SandboxRequest",
    "SourceReference",
    "Transition",
    "WarmMember",
    "WarmPlan",
    "Workspace",
    "WorkspaceEvent",
]
