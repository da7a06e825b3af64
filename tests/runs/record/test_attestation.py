"""Signed statements about records, read and verified by the packages of in-toto itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.conf import settings as django_settings
from google.protobuf import json_format
from in_toto.exceptions import SignatureVerificationError
from in_toto.models.metadata import Envelope
from in_toto_attestation.v1.statement import Statement
from in_toto_attestation.v1.statement_pb2 import Statement as StatementMessage
from pytest_django.fixtures import Settings

from runs.agent.record.frames import Kind
from runs.models import Run, RunHead
from runs.record import signatures
from tests.conftest import Api
from tests.factories import make_job
from tests.runs.record_factory import OWNER, Source, make_run, record

pytestmark = pytest.mark.django_db

TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


def told(api: Api, run: Run) -> dict[str, Any]:
    answer = api.get(f"/v1/runs/{run.pk}/export?format=in-toto")
    assert answer.headers["content-type"] == "application/vnd.dsse.envelope.v1+json"
    envelope: dict[str, Any] = json.loads(answer.content)
    return envelope


def key() -> dict[str, Any]:
    private = signatures.decode_key(django_settings.SVC_RECORD_SIGNING_KEY)
    public = signatures.public_key_of(private)
    kind = {"keytype": "ed25519", "scheme": "ed25519", "keyval": {"public": public.hex()}}
    return {"keyid": signatures.key_id(public), **kind}


def verified(envelope: dict[str, Any]) -> dict[str, Any]:
    """Return the statement once in-toto has verified its signature and its shape."""
    opened = Envelope.from_dict(envelope)
    opened.verify_signature(key())
    message = json_format.Parse(opened.payload, StatementMessage())
    Statement.copy_from_pb(message).validate()
    statement: dict[str, Any] = json.loads(opened.payload)
    return statement


def digests(statement: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {subject["name"]: subject["digest"] for subject in statement["subject"]}


def test_a_statement_covers_record_seal_image_and_tree(api: Api) -> None:
    job = make_job(published_digest="sha256:" + "ab" * 32)
    run = make_run(attempt=job.attempt, owner_user_id=OWNER)
    source = Source(run)
    source.open()
    source.started()
    told_of = {"root": "/workspace/répo\n", "method": "git", "files": 1, "tree": "0" * 40}
    source.event(Kind.FILE_SNAPSHOT_COMPLETED, {"when": "start", **told_of})
    source.event(Kind.FILE_SNAPSHOT_COMPLETED, {**told_of, "when": "end", "tree": TREE})
    source.sealed()
    source.append()
    head = RunHead.objects.get(pk=run.number)

    statement = verified(told(api, run))

    assert digests(statement) == {
        f"run/{run.pk}": {"svcRecordChain": bytes(head.chain_head).hex()},
        f"run/{run.pk}/seal": {"sha256": signatures.digest(bytes(head.seal or b""))},
        job.repository: {"sha256": "ab" * 32},
        "/workspace/répo\n": {"gitTree": TREE},
    }
    assert statement["predicate"]["treeAtStart"] == "0" * 40
    assert statement["predicate"]["lastSequence"] == "4"


def test_a_statement_that_was_changed_is_not_verified(api: Api) -> None:
    run = make_run()
    record(run)
    envelope = told(api, run)
    other = told(api, make_run())
    with pytest.raises(SignatureVerificationError):
        verified({**envelope, "payload": other["payload"]})
    with pytest.raises(SignatureVerificationError):
        verified({**told(api, run), "payloadType": "application/json"})


def test_of_a_record_that_goes_on_the_statement_says_where_it_stands(api: Api) -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    source.append()
    statement = verified(told(api, run))
    assert list(digests(statement)) == [f"run/{run.pk}"]
    assert statement["predicate"]["sealedAt"] is None
    assert statement["predicate"]["lastSequence"] == "1"


@pytest.mark.parametrize(
    "end", [{"method": "manifest", "tree": "ab" * 32}, {"method": "git", "tree": "HEAD\x1b[2J"}, []]
)
def test_what_is_no_git_tree_is_no_subject(api: Api, end: Any) -> None:
    run = make_run()
    source = Source(run)
    source.open()
    for when in ("start", "end"):
        meta = {"root": "/workspace", "when": when, **end} if isinstance(end, dict) else end
        source.event(Kind.FILE_SNAPSHOT_COMPLETED, meta)
    source.append()
    assert list(digests(verified(told(api, run)))) == [f"run/{run.pk}"]


def test_without_a_key_nothing_is_signed(api: Api, settings: Settings) -> None:
    run = make_run()
    record(run)
    settings.SVC_RECORD_SIGNING_KEY = ""
    answer = api.get(f"/v1/runs/{run.pk}/export?format=in-toto", expect=503)
    assert answer.body["code"] == "record-signing-key-unset"
