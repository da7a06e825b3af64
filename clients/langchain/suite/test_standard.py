"""The standard tests for sandboxes of ``langchain-tests``."""

from __future__ import annotations

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

from controlplane_langchain import ControlPlaneSandbox


class TestControlPlaneSandbox(SandboxIntegrationTests):
    """All of them."""

    @pytest.fixture(scope="class")
    def sandbox(self, made_sandbox: ControlPlaneSandbox) -> ControlPlaneSandbox:
        """The workspace under test."""
        return made_sandbox
