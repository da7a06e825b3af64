"""``svc replay``: both versions of a recording are played alike."""

from __future__ import annotations

import json

import pytest

from controlplane_cli import replaying

V2 = [{"version": 2}, [1.0, "o", "a\u2028\x85"], [1.5, "i", "no"], [3.0, "o", "b"]]
V3 = [{"version": 3}, [1.0, "o", "a\u2028\x85"], [0.5, "i", "no"], [1.5, "o", "b"], [0.2, "x", "0"]]


@pytest.mark.parametrize("lines", [V2, V3], ids=["version 2", "version 3"])
def test_a_recording_is_played_with_its_pauses(
    lines: list[object], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    cast = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    replaying.play(cast, speed=2, longest_pause=0.8)
    assert capsys.readouterr().out == "a\u2028\x85b"
    assert pauses == [0.5, 0.8]
