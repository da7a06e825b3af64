"""What is changed, and which tests have to notice it; the quickest tests of a group first."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """Modules that keep one promise, and the tests that hold them to it."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


GROUPS = {
    "amqp": Group(
        ("controlplane/work/amqp.py", "controlplane/work/id_messages.py"),
        ("tests/controlplane/test_id_messages.py", "tests/controlplane/test_amqp.py"),
    ),
    "leases": Group(
        ("controlplane/work/leases.py",),
        ("tests/controlplane/test_leases.py", "tests/runs/recording/test_run_claims.py"),
    ),
    "acquisition": Group(
        ("controlplane/work/acquisition.py",),
        (
            "tests/controlplane/test_leases.py",
            "tests/builds/test_claims.py",
            "tests/runs/recording/test_run_claims.py",
        ),
    ),
    "jobs": Group(
        ("workspaces/models/build_jobs.py",),
        (
            "tests/builds/test_job_queue.py",
            "tests/builds/test_claims.py",
            "tests/builds/pipeline/test_lanes.py",
        ),
    ),
    "steps": Group(
        ("workspaces/lifecycle/step_statements.py",),
        (
            "tests/workspaces/lifecycle/test_job_steps.py",
            "tests/builds/pipeline/test_statements.py",
        ),
    ),
    "heartbeats": Group(
        ("controlplane/work/models.py", "controlplane/work/failure_detector.py"),
        ("tests/controlplane/test_heartbeats.py",),
    ),
    "store": Group(
        ("runs/record/store.py", "runs/record/room.py", "runs/record/chain.py"),
        (
            "tests/runs/record/test_store_endings.py",
            "tests/runs/record/test_store.py",
            "tests/runs/record/test_store_sources.py",
            "tests/runs/record/test_record_room.py",
            "tests/runs/record/test_store_hostile.py",
        ),
    ),
    "new-record": Group(
        ("runs/record/new_record.py", "runs/record/settlement.py", "runs/record/seal.py"),
        (
            "tests/runs/record/test_settlement.py",
            "tests/runs/record/test_new_record.py",
            "tests/runs/record/test_store_endings.py",
            "tests/runs/record/test_store.py",
            "tests/runs/record/test_chain.py",
        ),
    ),
    "ingest": Group(
        (
            "runs/record/ingest/batch.py",
            "runs/record/ingest/derived.py",
            "runs/record/ingest/meta.py",
            "runs/record/ingest/new_rows.py",
            "runs/record/ingest/tables.py",
        ),
        (
            "tests/runs/record/test_derived.py",
            "tests/runs/record/test_store.py",
            "tests/runs/record/test_store_sources.py",
            "tests/runs/record/test_store_hostile.py",
        ),
    ),
    "verify": Group(
        ("runs/record/verify.py", "runs/record/verify_derived.py", "runs/record/checking.py"),
        (
            "tests/runs/record/test_checking.py",
            "tests/runs/record/test_verify_guards.py",
            "tests/runs/record/test_verify.py",
            "tests/runs/record/test_chain.py",
        ),
    ),
    "spool": Group(
        (
            "runs/agent/record/spool.py",
            "runs/agent/record/spool_files.py",
            "runs/agent/record/spool_folder.py",
            "runs/agent/record/spool_sync.py",
            "runs/agent/record/spool_check.py",
            "runs/agent/record/segments.py",
            "runs/agent/record/recovery.py",
            "runs/agent/record/repair.py",
        ),
        (
            "tests/runs/agent/test_segments.py",
            "tests/runs/agent/test_spool_limits.py",
            "tests/runs/agent/test_repair.py",
            "tests/runs/agent/test_spool.py",
            "tests/runs/agent/test_durability.py",
            "tests/runs/agent/test_verify.py",
            "tests/runs/agent/test_spool_model.py",
        ),
    ),
    "follow": Group(
        (
            "runs/agent/record/follow.py",
            "runs/agent/record/acks.py",
            "runs/agent/record/frames.py",
        ),
        (
            "tests/runs/agent/test_segments.py",
            "tests/runs/agent/test_tail_protocol.py",
            "tests/runs/agent/test_spool.py",
            "tests/runs/agent/test_follow.py",
            "tests/runs/agent/test_durability.py",
        ),
    ),
    "masking": Group(
        (
            "runs/agent/masking/known_values.py",
            "runs/agent/masking/masker.py",
            "runs/agent/masking/token_shapes.py",
        ),
        (
            "tests/runs/agent/test_masking_tokens.py",
            "tests/runs/agent/test_masking.py",
            "tests/runs/agent/test_credentials_masking.py",
        ),
    ),
    "sealing": Group(
        ("controlplane/security/crypto.py", "accounts/sealing.py"),
        ("tests/controlplane/test_crypto.py", "tests/accounts/test_connected_accounts.py"),
    ),
    "resolution": Group(
        ("accounts/resolution.py",),
        (
            "tests/accounts/test_resolution.py",
            "tests/accounts/test_credential_resolution.py",
        ),
    ),
    "outbound": Group(
        ("controlplane/security/outbound.py",),
        (
            "tests/controlplane/test_outbound.py",
            "tests/registries/test_client_failures.py",
            "tests/registries/test_client_tls.py",
        ),
    ),
    "decided": Group(
        (
            "workspaces/egress/decided/journal.py",
            "workspaces/egress/decided/unstored.py",
            "workspaces/egress/decided/settling.py",
            "workspaces/egress/decided/sums.py",
            "workspaces/egress/decided/serving.py",
            "runs/record/egress_decisions.py",
            "runs/record/egress_endings.py",
        ),
        (
            "tests/workspaces/egress/decided/test_journal_waits.py",
            "tests/workspaces/egress/decided/test_left_journals.py",
            "tests/workspaces/egress/decided/test_settling_waits.py",
            "tests/workspaces/egress/decided/test_journal_threads.py",
            "tests/workspaces/egress/decided/test_journal_ends.py",
            "tests/workspaces/egress/decided/test_stored_decisions.py",
            "tests/workspaces/egress/decided/test_network_owners.py",
            "tests/workspaces/egress/decided/test_journal_files.py",
            "tests/workspaces/egress/decided/test_stored_once.py",
            "tests/workspaces/egress/decided/test_bounds.py",
            "tests/workspaces/egress/decided/test_counted.py",
            "tests/workspaces/egress/decided/test_forged.py",
            "tests/workspaces/egress/decided/test_trouble.py",
            "tests/workspaces/egress/decided/test_after_a_kill.py",
            "tests/workspaces/egress/decided/test_settling.py",
            "tests/workspaces/egress/decided/test_threads_that_end.py",
            "tests/workspaces/egress/decided/test_held_records.py",
        ),
    ),
    "egress-policy": Group(
        ("workspaces/egress/host_policy.py",), ("tests/workspaces/egress/test_policy.py",)
    ),
    "engine-proxy": Group(
        (
            "workspaces/runtimes/docker/engine_proxy/policy.py",
            "workspaces/runtimes/docker/engine_proxy/http_wire.py",
        ),
        ("tests/workspaces/runtimes/test_engine_proxy_policy.py",),
    ),
}
