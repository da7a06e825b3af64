"""What an operator writes of nodes becomes the part of a Pod that says which it may go to."""

from __future__ import annotations

from typing import Any

import pytest

from workspaces.runtimes.kubernetes.pod_placement import PodPlacement


def placed(*args: Any) -> dict[str, Any]:
    """The specification of a Pod that is placed so."""
    specification: dict[str, Any] = {}
    PodPlacement(*args).apply(specification)
    return specification


def test_without_a_choice_a_pod_says_nothing_about_nodes() -> None:
    assert placed() == {}


def test_labels_are_a_node_selector() -> None:
    found = placed(["example.com/pool=agents", "fast="])
    assert found == {"nodeSelector": {"example.com/pool": "agents", "fast": ""}}


@pytest.mark.parametrize(
    ("written", "toleration"),
    [
        (
            "dedicated=agents:NoSchedule",
            {"key": "dedicated", "operator": "Equal", "value": "agents", "effect": "NoSchedule"},
        ),
        (
            "dedicated=:PreferNoSchedule",
            {"key": "dedicated", "operator": "Equal", "value": "", "effect": "PreferNoSchedule"},
        ),
        (
            "dedicated:NoExecute",
            {"key": "dedicated", "operator": "Exists", "effect": "NoExecute"},
        ),
        (
            "node.kubernetes.io/unreachable:NoExecute:60",
            {
                "key": "node.kubernetes.io/unreachable",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 60,
            },
        ),
    ],
)
def test_a_taint_is_a_toleration(written: str, toleration: dict[str, Any]) -> None:
    assert placed((), [written]) == {"tolerations": [toleration]}
