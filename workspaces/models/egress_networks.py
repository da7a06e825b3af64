"""Networks whose workspaces and builds reach only what a policy names, and what belongs to them."""

from __future__ import annotations

from uuid import UUID

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from controlplane.database.ids import uuid7
from workspaces.models.core import Attempt, Workspace


class EgressNetworkQuerySet(models.QuerySet["EgressNetwork"]):
    """Networks of workspaces, whose policy may change, and of builds, whose policy stays."""

    def replace_policy(self, attempt_id: UUID, policy: object) -> int:
        """Give the networks of an attempt's workspace another policy; return how many there are."""
        mine = self.filter(attempt_id=attempt_id, is_build=False)
        return mine.update(policy=policy, revision=F("revision") + 1)

    def end(self, attempt_id: UUID) -> int:
        """Let nothing pass any more in the networks of an attempt; return how many go on."""
        return self.filter(attempt_id=attempt_id, ending_at=None).update(ending_at=Now())

    def settle(self, attempt_id: UUID, journal: str) -> int:
        """Write that a proxy has stored all its decisions in the networks that end."""
        mine = self.filter(attempt_id=attempt_id, served_by=journal, ending_at__isnull=False)
        return mine.update(settled_at=Now())

    def unsettled(self, attempt_id: UUID) -> EgressNetworkQuerySet:
        """Keep networks in which a proxy may have decided something that is not stored."""
        return self.filter(attempt_id=attempt_id, settled_at=None).exclude(served_by="")


class EgressNetwork(models.Model):
    """A network with a policy, known by its bridge on the engine's machine.

    Written before the network is made, so that nothing in it is ever without its policy. The policy
    is kept with the rules of its presets filled in. The name of a bridge is never used again.
    """

    bridge = models.CharField(primary_key=True, max_length=15)
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="egress_networks")
    policy = models.JSONField()
    is_build = models.BooleanField(
        default=False,
        db_default=False,
        help_text="For a build, which keeps the policy that it began with.",
    )
    revision = models.PositiveIntegerField(
        default=1,
        db_default=1,
        help_text="Counts its policies; proxies notice a new one by it.",
    )
    served_by = models.CharField(
        max_length=32,
        blank=True,
        default="",
        db_default="",
        help_text="The journal of the proxy that decides in it; empty: none has yet.",
    )
    ending_at = models.DateTimeField(
        null=True, help_text="Since when nothing may pass, as the record is about to end."
    )
    settled_at = models.DateTimeField(
        null=True, help_text="When its proxy had stored all its decisions."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    objects = EgressNetworkQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(
                fields=["served_by"],
                name="egress_network_ending",
                condition=Q(ending_at__isnull=False, settled_at__isnull=True),
            )
        ]

    def __str__(self) -> str:
        return f"{self.bridge} of {self.attempt_id}"


class EgressJournal(models.Model):
    """How far a proxy's journal is stored for one attempt: nothing of it is stored twice."""

    pk = models.CompositePrimaryKey("attempt_id", "journal")
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="+")
    journal = models.CharField(max_length=32)
    last_pass = models.BigIntegerField()

    def __str__(self) -> str:
        return f"journal {self.journal} of {self.attempt_id} up to {self.last_pass}"


class EgressAuthority(models.Model):
    """The certificate authority of one workspace, whose programs trust it and nobody else does.

    With it the egress proxy opens the TLS of rules that have to see requests. The private key is
    sealed, and is never in the workspace.
    """

    workspace = models.OneToOneField(
        Workspace, primary_key=True, on_delete=models.CASCADE, related_name="egress_authority"
    )
    certificate = models.TextField(help_text="In PEM.")
    sealed_key = models.BinaryField(editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"authority of {self.workspace_id}"


class EgressProposalQuerySet(models.QuerySet["EgressProposal"]):
    """What workspaces were refused. Database time only."""

    def waiting(self) -> EgressProposalQuerySet:
        """Keep those that nobody has decided on."""
        return self.filter(status=EgressProposal.Status.WAITING)

    def decide(self, status: EgressProposal.Status) -> int:
        """Approve or dismiss those that wait; return how many."""
        return self.waiting().update(status=status, decided_at=Now())


class EgressProposal(models.Model):
    """A host and port that a workspace was refused, and that its owner may allow.

    ::

        waiting ⇄ approved    (refused again, because its rule was taken away)
           └────→ dismissed   (refused again, it is counted and stays dismissed)
    """

    class Status(models.TextChoices):
        WAITING = "waiting"
        APPROVED = "approved"
        DISMISSED = "dismissed"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    workspace = models.ForeignKey(
        Workspace, on_delete=models.CASCADE, related_name="egress_proposals"
    )
    host = models.CharField(max_length=253)
    port = models.PositiveIntegerField(
        null=True, help_text="Null: its name was refused, so nobody could connect to any port."
    )
    status = models.CharField(max_length=16, choices=Status, default=Status.WAITING)
    refusals = models.PositiveBigIntegerField(default=0, help_text="How often it was refused.")
    first_refused_at = models.DateTimeField(db_default=Now())
    last_refused_at = models.DateTimeField(db_default=Now())
    decided_at = models.DateTimeField(null=True)

    objects = EgressProposalQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["workspace", "host", "port"],
                nulls_distinct=False,
                name="egress_proposal_once",
            ),
            models.CheckConstraint(
                condition=Q(status="waiting") ^ Q(decided_at__isnull=False),
                name="egress_proposal_decided",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.host} port {self.port or '?'} for {self.workspace_id}"
