"""Which nodes Pods are for: labels that a node has to have, and taints that are tolerated.

Both are written as the operator writes them in ``KUBERNETES_NODE_SELECTOR`` and
``KUBERNETES_TOLERATIONS``; the settings hold the grammar (``controlplane.settings_environment``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workspaces.runtimes.kubernetes.cluster import Document


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """The operator's choice of nodes, for all Pods; without any the cluster decides alone."""

    node_selector: Sequence[str] = ()
    """Each ``NAME=VALUE``; a node needs all of them."""
    tolerations: Sequence[str] = ()
    """Each ``KEY[=VALUE]:EFFECT``; with ``NoExecute`` perhaps ``:SECONDS`` behind it."""

    def apply(self, specification: Document) -> None:
        """Write it into the specification of a Pod."""
        if self.node_selector:
            labels = (each.partition("=") for each in self.node_selector)
            specification["nodeSelector"] = {name: value for name, _, value in labels}
        if self.tolerations:
            specification["tolerations"] = [_toleration(each) for each in self.tolerations]


ANYWHERE = PodPlacement()


def _toleration(text: str) -> Document:
    taint, effect, *seconds = text.split(":")
    key, equals, value = taint.partition("=")
    compared: Document = {"operator": "Equal", "value": value} if equals else {"operator": "Exists"}
    lasting: Document = {"tolerationSeconds": int(seconds[0])} if seconds else {}
    return {"key": key, "effect": effect} | compared | lasting
