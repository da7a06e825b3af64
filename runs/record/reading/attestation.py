"""A signed statement about a record, as supply-chain tools read it: in-toto v1 in a DSSE envelope.

Its subjects are the record (the head of its chain, and its seal once it has ended), the image that
the workspace was started from, and the git tree that the run left. The signature is this
installation's, made when it is asked for; the same key seals records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from controlplane.errors import ServiceUnavailable
from runs.models import Run, RunHead
from runs.record import export_format, signatures
from runs.record.reading.change_list import baseline
from runs.record.seal import signing_key
from workspaces.models import BuildJob

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:controlplane:run-record:v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"

_SHA256 = re.compile(r"sha256:([0-9a-f]{64})")
_GIT_TREE = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def attestation(run: Run, head: RunHead) -> Iterator[bytes]:
    """Return the envelope, in one piece; of a record that goes on, as it stands at ``head``.

    Raises ``ServiceUnavailable`` (``record-signing-key-unset``).
    """
    private = signing_key()
    if private is None:
        raise ServiceUnavailable(
            "This installation has no record signing key.",
            code="record-signing-key-unset",
        )
    payload = signatures.canonical(_statement(run, head))
    envelope = signatures.envelope(payload, payload_type=PAYLOAD_TYPE, private=private)
    return iter([signatures.canonical(envelope) + b"\n"])


def _statement(run: Run, head: RunHead) -> dict[str, Any]:
    tree = baseline(run)
    record = {"name": f"run/{run.pk}", "digest": {"svcRecordChain": bytes(head.chain_head).hex()}}
    return {
        "_type": STATEMENT_TYPE,
        "subject": [record, *_seal(run, head), *_image(run), *_tree(tree)],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "runId": str(run.pk),
            "workspaceId": str(run.workspace_id),
            "mode": str(run.mode),
            "harnessId": run.harness_id,
            "createdAt": export_format.moment(run.created_at),
            "status": str(run.status),
            "exitCode": run.exit_code,
            "events": str(head.event_count),
            "lastSequence": str(head.last_sequence),
            "lossSpans": head.loss_count,
            "sealedAt": None if head.sealed_at is None else export_format.moment(head.sealed_at),
            "treeAtStart": tree.get("tree"),
        },
    }


def _seal(run: Run, head: RunHead) -> list[dict[str, Any]]:
    if head.seal is None:
        return []
    digest = {"sha256": signatures.digest(bytes(head.seal))}
    return [{"name": f"run/{run.pk}/seal", "digest": digest}]


def _image(run: Run) -> list[dict[str, Any]]:
    if run.attempt_id is None:
        return []
    jobs = BuildJob.objects.filter(attempt_id=run.attempt_id).exclude(published_digest="")
    job = jobs.order_by("-pk").first()
    found = job and _SHA256.fullmatch(job.published_digest)
    return [{"name": job.repository, "digest": {"sha256": found[1]}}] if job and found else []


def _tree(tree: dict[str, Any]) -> list[dict[str, Any]]:
    # A workspace that is no repository has a manifest, whose digest other tools cannot make.
    end = tree.get("endTree", "")
    if tree.get("method") != "git" or not _GIT_TREE.fullmatch(end):
        return []
    return [{"name": tree["root"], "digest": {"gitTree": end}}]
