"""Networks whose workspaces and builds reach only what a policy names."""

from __future__ import annotations

from django.db import models

from workspaces.models.core import Attempt


class EgressNetwork(models.Model):
    """A network with a policy, known by its bridge on the engine's machine.

    Written before the network is made, so that nothing in it is ever without its policy. The policy
    is kept with the rules of its presets filled in. The name of a bridge is never used again.
    """

    bridge = models.CharField(primary_key=True, max_length=15)
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="egress_networks")
    policy = models.JSONField()
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.bridge} of {self.attempt_id}"
