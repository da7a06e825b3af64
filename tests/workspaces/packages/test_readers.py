"""What package managers print becomes the offers of an index, and nothing else does.

``package_listings/dnf.txt`` and ``pacman.txt`` were recorded from the scripts of
``workspaces/packages/readers`` with dnf 4.14 and pacman 6.0 on small repositories; ``apk.txt``
follows the description of ``APKINDEX`` in apk-package(5). Debian's is read for real in
``test_package_sync``.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from workspaces.families import FAMILIES
from workspaces.packages.readers import (
    READERS,
    MalformedIndexError,
    Offer,
    read_listing,
    reading_script,
)

LISTINGS = Path(__file__).parent / "package_listings"


def offers(package_manager: str, text: str | None = None) -> list[Offer]:
    lines = (text or (LISTINGS / f"{package_manager}.txt").read_text()).splitlines(keepends=True)
    _, found = read_listing(package_manager, lines)
    return list(found)


def test_apt_gives_its_candidates_and_then_the_other_versions() -> None:
    assert offers("apt") == [
        Offer("jq", "1.6-2.1+deb12u1", "main"),
        Offer("gawk", "1:5.2.1-2", "main", ("awk", "gawk-doc", "libawk")),
        Offer("fonts-dejavu", "2.37-6"),
        Offer("jq", "1.6-2.1"),
    ]


def test_dnf_gives_the_newest_and_then_the_other_versions() -> None:
    found = offers("dnf")
    assert found[:4] == [
        Offer("ImageMagick", "7.1.1-2.fc43", "tests", ("magick",)),
        Offer("bind-utils", "32:9.18.28-1.fc43", "tests", ("dig",)),
        Offer("fonts-test", "1.0-1", "tests"),
        Offer("httpd", "2.4.62-1.fc43", "tests", ("webserver",)),
    ]
    assert [(offer.name, offer.version) for offer in found if offer.name == "jq"] == [
        ("jq", "1.7.1-9.fc43"),
        ("jq", "1.7-1.fc43"),
    ]
    # What only libraries and build tools ask for is no name of a package.
    assert Offer("ripgrep", "14.1.1-3.fc43", "tests", ("rg",)) in found


def test_dnf_5_separates_what_is_provided_differently() -> None:
    text = (LISTINGS / "dnf.txt").read_text()
    joined = text.replace("\nhttpd(x86-64) = 2.4.62-1.fc43\n", ", httpd(x86-64) = 2.4.62-1.fc43, ")
    assert joined != text
    assert offers("dnf", joined) == offers("dnf")


def test_pacman_gives_each_package_from_the_first_repository_that_has_it() -> None:
    found = {offer.name: offer for offer in offers("pacman")}
    assert found["bind"] == Offer("bind", "1:9.20-1", "core", ("dnsutils", "bind-tools"))
    assert found["vim"] == Offer(
        "vim", "9.1-1", "extra", ("xxd", "vim-minimal", "vim-plugin-runtime")
    )
    assert found["openssh"] == Offer("openssh", "10.0p1-1", "core")
    assert len(found) == 5


def test_apk_gives_the_packages_of_the_architecture() -> None:
    assert offers("apk") == [
        Offer("nodejs", "22.16.0-r2", "", ("nodejs-lts",)),
        Offer("jq", "1.8.0-r0"),
        Offer("tzdata", "2025b-r0"),
        Offer("jq", "1.7.1-r0"),
    ]


@pytest.mark.parametrize("package_manager", READERS)
def test_a_listing_that_was_cut_off_is_none(package_manager: str) -> None:
    text = (LISTINGS / f"{package_manager}.txt").read_text()
    with pytest.raises(MalformedIndexError, match="cut off"):
        offers(package_manager, text.removesuffix("svc:end\n"))


@pytest.mark.parametrize("package_manager", READERS)
@pytest.mark.parametrize(
    "text",
    ["", "\n", "Package: jq\n", "svc:end\n", "svc:architecture \nsvc:end\n"],
    ids=["nothing", "blank", "no-beginning", "end-only", "no-architecture"],
)
def test_a_listing_without_its_beginning_is_none(package_manager: str, text: str) -> None:
    with pytest.raises(MalformedIndexError, match="architecture"):
        offers(package_manager, text or "\n")


@pytest.mark.parametrize("package_manager", READERS)
def test_marks_that_nobody_knows_are_refused(package_manager: str) -> None:
    with pytest.raises(MalformedIndexError, match="mark"):
        offers(package_manager, "svc:architecture x\nsvc:surprise\nsvc:end\n")


@pytest.mark.parametrize("package_manager", READERS)
def test_noise_between_the_marks_is_no_package(package_manager: str) -> None:
    noise = "svc:architecture x\nsvc:section candidates\n\n\0\n: : :\n |\nsvc:end\n"
    try:
        assert offers(package_manager, noise) == []
    except MalformedIndexError as error:
        assert package_manager == "dnf", error  # its script prints nothing but what it asked for


@pytest.mark.parametrize("package_manager", READERS)
def test_each_script_is_sound_shell(package_manager: str) -> None:
    script = reading_script(package_manager)
    done = subprocess.run(["sh", "-n"], input=script, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"\nset -eu\n" in script


def test_every_family_has_a_reader() -> None:
    assert {family.package_manager for family in FAMILIES.values()} == set(READERS)
