"""What the two checks of an export say of it: the service's and the client's share no code."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from pytest_django.fixtures import Settings

from controlplane_client import check_export
from runs import offline
from runs.models import RunHead
from runs.record import seal
from runs.record.export_format import seal_line
from tests.runs.record.test_verify import export_of
from tests.runs.record_factory import make_run, record

pytestmark = pytest.mark.django_db

Check = Callable[[list[bytes], bytes | None], tuple[bool, str]]

NO_SEAL = "the record has no seal: the key cannot tell whether it was changed"


def _ours(lines: list[bytes], key: bytes | None) -> tuple[bool, str]:
    found = offline.verify(lines, public_key=key)
    return found.ok, found.message


def _the_clients(lines: list[bytes], key: bytes | None) -> tuple[bool, str]:
    found = check_export(lines, None if key is None else base64.b64encode(key).decode())
    return found.ok, found.message


@pytest.fixture(params=[_ours, _the_clients], ids=["ours", "the client's"])
def check(request: pytest.FixtureRequest) -> Check:
    """Each of the checks."""
    made: Check = request.param
    return made


def forged() -> list[bytes]:
    """An export whose seal was taken away, as whoever writes the whole chain anew has to."""
    run = make_run()
    record(run)
    head = RunHead.objects.get(pk=run.number)
    unsealed = SimpleNamespace(
        seal=None,
        last_sequence=head.last_sequence,
        event_count=head.event_count,
        chain_head=head.chain_head,
    )
    return [*export_of(run)[:-1], seal_line(unsealed)]


def test_with_a_key_a_record_without_a_seal_is_not_sound(check: Check) -> None:
    lines, key = forged(), seal.public_key()
    assert key is not None
    assert check(lines, key) == (False, NO_SEAL)
    sound, told = check(lines, None)
    assert sound
    assert "nothing is signed" in told


def test_with_a_key_a_seal_that_is_not_signed_is_not_sound(
    check: Check, settings: Settings
) -> None:
    key = seal.public_key()
    settings.SVC_RECORD_SIGNING_KEY = ""
    run = make_run()
    record(run)
    lines = export_of(run)
    assert check(lines, None)[0]
    assert check(lines, key) == (False, "the seal is not signed, but it should be")


def test_an_export_without_a_seal_ends_the_command_with_1_when_a_key_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = tmp_path / "record.ndjson"
    export.write_bytes(b"".join(forged()))
    key = base64.b64encode(seal.public_key() or b"").decode()
    assert offline.main([str(export), "--public-key", key]) == 1
    assert capsys.readouterr().out == NO_SEAL + "\n"
    assert offline.main([str(export)]) == 0


@pytest.mark.parametrize(
    "altered",
    [
        b"[" * (10 * sys.getrecursionlimit()) + b"\n",
        b'{"sequence":Infinity,"type":"event"}\n',
        b'{"sequence":NaN,"type":"event"}\n',
    ],
    ids=["brackets", "infinity", "no number"],
)
def test_a_line_that_python_cannot_take_is_an_altered_one(check: Check, altered: bytes) -> None:
    lines = forged()
    lines[1] = altered
    sound, told = check(lines, None)
    assert not sound
    assert "line 2" in told
