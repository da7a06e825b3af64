"""Forms with files, as clients write them and as enemies do."""

from __future__ import annotations

import pytest

from e2bfacade.refused import Refused
from e2bfacade.transfers import Slice, parts_of

HEAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n\r\n'


def test_the_files_of_a_form_are_found_byte_for_byte() -> None:
    contents = [b"", b"\r\n--", bytes(range(256)), b"\r\n\r\n"]
    form = b"".join(HEAD % b"n" + each + b"\r\n" for each in contents) + b"--b--\r\n"
    found = [Slice(form, part.start, part.end).read() for part in parts_of(form, b"b")]
    assert found == contents


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (b"/a/b c", "/a/b c"),
        ("grüße".encode(), "grüße"),
        (b"say %22hi%22", 'say "hi"'),
        (b'say \\"hi\\"', 'say "hi"'),
        (b"100%", "100%"),
    ],
)
def test_names_are_read_as_clients_write_them(written: bytes, name: str) -> None:
    form = HEAD % written + b"x\r\n--b--"
    assert [part.name for part in parts_of(form, b"b")] == [name]


@pytest.mark.parametrize(
    "form", [b"x", b"--b", b"--b\r\n\r\n", HEAD % b"n" + b"never ends", HEAD % b"n" * 3]
)
def test_a_form_that_is_broken_is_refused(form: bytes) -> None:
    with pytest.raises(Refused):
        list(parts_of(form, b"b"))


def test_a_form_of_too_many_files_is_refused() -> None:
    with pytest.raises(Refused, match="1000"):
        list(parts_of((HEAD % b"n" + b"\r\n") * 1001 + b"--b--", b"b"))
