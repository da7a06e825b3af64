"""The settings with which workspaces become Pods of a namespace of the tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from django.test import override_settings

from tests.stack.cluster import Namespace


@contextlib.contextmanager
def workspaces_in(place: Namespace, **more: str) -> Iterator[None]:
    """Have this process and its children work there for the block."""
    chosen = {
        "DEFAULT_RUNTIME_ADAPTER": "kubernetes",
        "KUBERNETES_NAMESPACE": place.name,
        "KUBERNETES_KUBECONFIG": place.kubeconfig,
        "KUBERNETES_PULL_REGISTRY": place.pull_registry,
        "KUBERNETES_PULL_SECRET": place.pull_secret,
        "KUBERNETES_VOLUME_SIZE": "64Mi",
        **more,
    }
    with pytest.MonkeyPatch.context() as patch, override_settings(**chosen):
        for name, value in chosen.items():
            patch.setenv(name, value)
        yield
