"""The workspace that the suite works in, of a service that runs.

``SVC_BASE_URL`` and ``SVC_OWNER_USER_ID`` say which. Its previews have to be on.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
from agents.sandbox.session.sandbox_session import SandboxSession

from controlplane_client import AsyncClient
from controlplane_openai_agents import (
    ControlPlaneSandboxClient,
    ControlPlaneSandboxClientOptions,
)

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"  # would be sent to OpenAI


@pytest.fixture(scope="session")
async def service() -> AsyncIterator[AsyncClient]:
    """A client of the service."""
    async with AsyncClient() as made:
        yield made


@pytest.fixture(scope="session")
def sandboxes(service: AsyncClient) -> ControlPlaneSandboxClient:
    """What makes sandboxes of workspaces."""
    return ControlPlaneSandboxClient(service)


@pytest.fixture(scope="session")
async def session(sandboxes: ControlPlaneSandboxClient) -> AsyncIterator[SandboxSession]:
    """A session in a new workspace, for all tests."""
    options = ControlPlaneSandboxClientOptions(
        repository="tests/openai-agents", exposed_ports=(8000,), env={"GREETING": "hello"}
    )
    async with await sandboxes.create(options=options) as made:
        yield made
    await sandboxes.delete(made)
