"""Which tests ``make test`` runs, and how several processes share them.

``make test`` leaves out what has the marker ``full``: tests that kill real services, install the
product or programs of others, drive a browser or take long. ``make test-full`` runs everything.

The tests of a file run in one process and in their order (``--dist=loadfile``), so module fixtures
are set up once. Each process has a database, queues and an instance id of its own
(``tests/conftest.py``), so files may run beside each other; what takes long begins first, so that
no process is left alone with it at the end.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.stack import cluster

KUBERNETES = (
    "tests/workspaces/runtimes/test_kubernetes.py",
    "tests/e2e/test_kubernetes.py",
    "tests/e2e/test_kubernetes_lost_node.py",
    "tests/e2e/test_kubernetes_deployed.py",
    "tests/deploy/kubernetes/test_manifests_in_cluster.py",
)
"""What needs a cluster. One is started for all of them, so they begin together, and first."""

OUR_CLUSTER = (
    "tests/e2e/test_kubernetes_deployed.py",
    "tests/e2e/test_kubernetes_lost_node.py",
)
"""What needs the one that the kit starts: nodes are given images or killed, Pods reach our engine.
"""

FULL = (
    *KUBERNETES,
    "tests/builds/images/test_full_disks.py",
    "tests/builds/planner/test_planned_images.py",
    "tests/chaos/",
    "tests/clients/",
    "tests/deploy/test_compose.py",
    "tests/deploy/test_install.py",
    "tests/docs/test_commands.py",
    "tests/e2e/",
    "tests/mutants/",
    "tests/runs/gateway/test_hostile_",
    "tests/security/test_egress.py",
    "tests/security/test_egress_secrets.py",
    "tests/security/test_network_guard.py",
)
"""Folders and files that are for ``make test-full`` as a whole, but for those in ``ALWAYS``."""

ALWAYS = (
    "tests/e2e/test_exec.py",
    "tests/e2e/test_runs.py",
    "tests/e2e/test_ssh_commands.py",
    "tests/e2e/test_workspace.py",
)
"""The main job from end to end: each way to run something in a workspace that was built."""

WITHOUT_CLUSTER = (
    "The tests of Kubernetes were not part of this run: KUBECONFIG names no cluster, and there is "
    f"no kit in {cluster.KIT} to start one with as root (SVC_CLUSTER_KIT names another place)."
)

LONG_FIRST = (
    *KUBERNETES,
    "tests/deploy/test_compose.py",
    "tests/chaos/",
    "tests/e2e/",
    "tests/security/cases/",
    "tests/clients/",
    "tests/runs/gateway/",
    "tests/docs/",
    "tests/workspaces/runtimes/",
    "tests/builds/",
    "tests/runs/agent/",
    "tests/deploy/",
)
"""Where files take long, the longest first; elsewhere the number of tests tells."""


def file_of(item: pytest.Item) -> str:
    """Return the file of a test."""
    return item.nodeid.partition("::")[0]


def mark(items: list[pytest.Item]) -> None:
    """Mark the tests that only the full run has."""
    for item in items:
        left_out = item.nodeid.startswith(FULL) and not item.nodeid.startswith(ALWAYS)
        if left_out or item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.full)


def leave_out_kubernetes(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the tests of Kubernetes out of the run where there is no cluster to be had."""
    impossible: tuple[str, ...] = KUBERNETES
    if cluster.where():
        impossible = OUR_CLUSTER if os.environ.get("KUBECONFIG") else ()
    left_out = [item for item in items if item.nodeid.startswith(impossible)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def refuse_repeated_ids(ids: Iterable[str]) -> None:
    """Raise UsageError where two tests have one id: of those, several processes run one only."""
    repeated = [f"{nodeid} ({count} times)" for nodeid, count in Counter(ids).items() if count > 1]
    if repeated:
        raise pytest.UsageError(f"Tests need ids of their own: {', '.join(repeated)}")


def sort(items: list[pytest.Item]) -> None:
    """Sort the tests by file, the longest first; those of a file stay as they were."""
    sizes = Counter(file_of(item) for item in items)

    def rank(item: pytest.Item) -> tuple[int, int, str]:
        file = file_of(item)
        places = (place for place, start in enumerate(LONG_FIRST) if file.startswith(start))
        return next(places, len(LONG_FIRST)), -sizes[file], file

    items.sort(key=rank)
