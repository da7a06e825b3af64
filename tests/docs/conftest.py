"""Everything real for the pages' commands: the stack of the end-to-end tests, and more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest import mock

import pytest
from django.test import override_settings

from tests.docs.site import Site, site_of
from tests.e2e.conftest import stack, transactional_db
from tests.scm.fake_provider import APP_ID, running_provider
from tests.scm.provider_git import ProviderGit
from tests.stack.run_worker_process import RunWorkerProcess
from tests.stack.service import Stack

__all__ = ["provider", "site", "stack", "transactional_db"]


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProviderGit]:
    """A provider with private repositories, which every process of the service is told of."""
    with running_provider() as running:
        running.install("website", "dotfiles", id=7)
        served = ProviderGit(running, tmp_path_factory.mktemp("provider"))
        served.publish("octo-org/website", {"index.html": "<h1>not for everybody</h1>\n"})
        served.publish("octo-org/dotfiles", {".vimrc": "set number\n"})
        changes = {
            "SCM_APP_ID": APP_ID,
            "SCM_APP_PRIVATE_KEY": running.private_key,
            "SCM_API_BASE_URL": running.url,
            "SCM_APP_WEBHOOK_SECRET": "what-the-provider-signs-its-deliveries-with",
        }
        with mock.patch.dict(os.environ, changes), override_settings(**changes):
            yield served


@pytest.fixture(scope="module")
def site(
    provider: ProviderGit,
    stack: Stack,
    run_queue: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    """The service with all its processes; the provider was there before them."""
    folder = tmp_path_factory.mktemp("site")
    with override_settings(WORKSPACE_RUN_QUEUE=run_queue):
        worker = RunWorkerProcess(folder / "run-worker.log")
        try:
            with site_of(stack, folder) as running:
                yield running
        finally:
            worker.stop()
