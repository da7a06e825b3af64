"""What the database says, in plain SQL."""

from __future__ import annotations

from typing import Any

import psycopg

from deploy.services.postgres import PrivatePostgres
from tests.stack.processes import wait_for
from tests.stack.sandboxes import Started
from tests.support.waiting import LONG_WAIT


class Database:
    """The rows of the control plane; each question has a connection of its own."""

    def __init__(self, postgres: PrivatePostgres) -> None:
        self._postgres = postgres

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with psycopg.connect(self._postgres.url, autocommit=True) as connection:
            return connection.execute(query.encode(), values).fetchall()

    def one(self, query: str, *values: Any) -> tuple[Any, ...]:
        """Return the only row of a query."""
        (row,) = self.rows(query, *values)
        return row

    def execute(self, statement: str, *values: Any) -> None:
        """Run a statement."""
        with psycopg.connect(self._postgres.url, autocommit=True) as connection:
            connection.execute(statement.encode(), values)

    def job_status(self, job: Started) -> str:
        """Return the status of the job's row."""
        return str(self.one("select status from workspaces_buildjob where id = %s", job.job_id)[0])

    def claims(self, job: Started) -> int:
        """Return how often the job was claimed."""
        return int(
            self.one("select attempt_count from workspaces_buildjob where id = %s", job.job_id)[0]
        )

    def wait_claims(self, job: Started, count: int, seconds: float = LONG_WAIT) -> float:
        """Wait for the claim of that number and return when it happened, in UTC."""
        wait_for(lambda: self.claims(job) >= count, f"claim {count}", seconds)
        query = "select extract(epoch from claimed_at) from workspaces_buildjob where id = %s"
        return float(self.one(query, job.job_id)[0])

    def forget(self, *, except_workspace: str) -> None:
        """Delete every row that a test made; those of one workspace stay."""
        of_runs = "run_id in (select id from runs_run where workspace_id <> %s)"
        tables = {
            "run_input": of_runs,
            "run_input_head": of_runs,
            "runs_runrequest": of_runs,
            "runs_run": "workspace_id <> %s",
            "workspaces_transition": "workspace_id <> %s",
            "workspaces_sandboxrequest": "sandbox_id in (select id from workspaces_sandbox"
            " where workspace_id <> %s)",
            "workspaces_buildjob": "attempt_id in (select id from workspaces_attempt"
            " where workspace_id <> %s)",
            "workspaces_runtimeinstance": "attempt_id in (select id from workspaces_attempt"
            " where workspace_id <> %s)",
            "workspaces_credentialreference": "attempt_id in (select id from workspaces_attempt"
            " where workspace_id <> %s)",
            "workspaces_workspaceevent": "workspace_id <> %s",
            "workspaces_attempt": "workspace_id <> %s",
            "workspaces_sandbox": "workspace_id <> %s",
            "workspaces_workspace": "id <> %s",
        }
        with psycopg.connect(self._postgres.url) as connection:
            connection.execute("delete from work_heartbeat")
            connection.execute("delete from work_heartbeat")
            for table, condition in tables.items():
                connection.execute(
                    f"delete from {table} where {condition}",  # noqa: S608
                    [except_workspace],
                )
            connection.execute("delete from accounts_connectedaccount")
