"""URLs and refs are either understood completely or refused before git sees them."""

from __future__ import annotations

import pytest

from scm.git_urls import SourceError, is_ref, parse_url


@pytest.mark.parametrize(
    ("given", "understood"),
    [
        ("https://GitHub.com/o/r.git", "https://github.com/o/r.git"),
        ("https://github.com:443/o/r", "https://github.com/o/r"),
        ("http://host:8080/a%20b/ü", "http://host:8080/a%20b/%C3%BC"),
        ("git://[2606:4700::1111]/x", "git://[2606:4700::1111]/x"),
        ("file:///srv/repos/x.git", "file:///srv/repos/x.git"),
        ("file://localhost/srv/x", "file:///srv/x"),
    ],
)
def test_a_sound_url_is_understood(given: str, understood: str) -> None:
    assert str(parse_url(given)) == understood


@pytest.mark.parametrize(
    "url",
    [
        *("", "x", "/etc/passwd", "../x", "git@github.com:o/r.git", "ssh://host/x", "ftp://host/x"),
        *("ext::sh -c touch% /tmp/pwned", "ext::sh", "fd::17", "--upload-pack=touch", "-u"),
        *("https://", "https:///x", "https://host", "https:/host/x", "HTTPS://host/x"),
        *("https://user:hunter2@host/x", "https://hunter2@host/x", "https://@host/x"),
        *("https://host/x?token=hunter2", "https://host/x#hunter2", "https://host:0/x"),
        *("https://host:65536/x", "https://host:/x", "https://ho st/x", "https://host/a b"),
        *("https://host/a\nb", "https://host/a\0b", "https://host\\@evil/x", "https://host/%0a"),
        *("https://host/%00", "https://host/%zz", "https://host/%", "https://-host/x"),
        *(
            "https://.host/x",
            "https://host./x",
            "https://a..b/x",
            "https://höst/x",
            "file://host/x",
        ),
        *("file:relative", "https://" + "a" * 64 + ".org/x", "https://host/" + "x" * 2100),
        "https://[::1/x",
    ],
)
def test_a_malformed_or_dangerous_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(SourceError) as caught:
        parse_url(url)
    assert caught.value.code == "source-url-invalid"
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize(
    "ref",
    ["main", "v1.2", "feature/x", "refs/heads/a", "ü", "a;b", "a'b", "$(x)", "a@b", "#1", "a"],
)
def test_a_name_that_git_accepts_is_a_ref(ref: str) -> None:
    assert is_ref(ref)


@pytest.mark.parametrize(
    "ref",
    [
        *("", "-x", "--upload-pack=touch x", "a b", "a..b", "a~1", "a^", "a:b", "a?", "a*", "a[b"),
        *("a\\b", "a\nb", "a\0b", "/a", "a/", "a//b", ".a", "a/.b", "a.", "a.lock", "a.lock/b"),
        *("@", "a@{1}", "x" * 1025),
    ],
)
def test_a_name_that_git_refuses_is_no_ref(ref: str) -> None:
    assert not is_ref(ref)
