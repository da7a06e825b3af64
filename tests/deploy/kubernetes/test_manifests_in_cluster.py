"""A cluster takes every manifest: schema and admission, by a server-side apply that only tries."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
import yaml

from tests.deploy.kubernetes.manifests import FOLDER, composed, kubectl
from tests.registries.account import PUSH_REGISTRY
from tests.stack import cluster
from tests.stack.cluster import Namespace
from tests.support.waiting import BUILD_WAIT

# The first test also has the cluster set up.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespace]:
    """A namespace of a cluster."""
    with cluster.namespace(PUSH_REGISTRY, tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.mark.parametrize("folder", ["access", "base", "postgres", "rabbitmq", "example"])
def test_a_cluster_takes_what_a_folder_amounts_to(folder: str, place: Namespace) -> None:
    found = composed(FOLDER / folder)
    # Nothing is really made, so neither are the namespaces that the rest would be in.
    for each in found:
        if each["kind"] != "Namespace":
            each["metadata"]["namespace"] = place.name
    done = subprocess.run(
        [
            kubectl(),
            f"--kubeconfig={place.admin_kubeconfig}",
            "apply",
            "--server-side",
            "--dry-run=server",
            "-f",
            "-",
        ],
        input=yaml.safe_dump_all(found),
        capture_output=True,
        text=True,
        timeout=BUILD_WAIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("serverside-applied") == len(found), done.stdout
