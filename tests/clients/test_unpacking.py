"""What comes out of a workspace as a tar, unpacked on the machine of a client."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from controlplane_client.local_files import unpacked


def entry(name: str, *, link: str = "", kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.mode = kind, link, 0o4777
    return found


@pytest.fixture(params=["with the filter", "without the filter"])
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python as it is, and as Debian 12 has it: without a filter of what is unpacked."""
    if request.param == "without the filter":
        extract = tarfile.TarFile.extract

        def without(self: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
            extract(self, member, path)

        monkeypatch.delattr(tarfile, "data_filter", raising=False)
        monkeypatch.setattr(tarfile.TarFile, "extract", without)


@pytest.mark.usefixtures("python")
def test_what_leads_out_of_the_folder_is_left_out_by_every_python(tmp_path: Path) -> None:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for each in (
            entry("./bin", kind=tarfile.DIRTYPE),
            entry("./bin/tool"),
            entry("./link", link="bin/tool", kind=tarfile.SYMTYPE),
            entry("./outside", link="/etc/passwd", kind=tarfile.SYMTYPE),
            entry("./above", link="..", kind=tarfile.SYMTYPE),
            entry("../beside"),
            entry("./same", link="../secret", kind=tarfile.LNKTYPE),
            entry("./pipe", kind=tarfile.FIFOTYPE),
        ):
            archive.addfile(each)
    (tmp_path / "secret").touch()
    down = tmp_path / "down"
    left_out = ["./outside", "./above", "../beside", "./same", "./pipe"]
    assert unpacked(whole, down) == left_out
    assert sorted(each.name for each in down.iterdir()) == ["bin", "link"]
    assert (down / "bin" / "tool").stat().st_mode & 0o7777 == 0o755
    assert (down / "link").read_bytes() == b""
    assert sorted(each.name for each in tmp_path.iterdir()) == ["down", "secret"]
