"""Operators edit overrides and look at the indexes; what they do counts at once."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone

from tests.workspaces.packages.package_index import write_index
from workspaces.models import Package, PackageIndex, PackageOverride
from workspaces.packages.sync import SyncTimes

pytestmark = pytest.mark.django_db

OVERRIDES = "/admin/workspaces/packageoverride/"
INDEXES = "/admin/workspaces/packageindex/"
PACKAGES = "/admin/workspaces/package/"
TIMES = SyncTimes(ttl=timedelta(hours=24), backoff=timedelta(minutes=1))


@pytest.fixture
def staff(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("op", password="password"))
    return client


def test_an_override_is_made_changed_and_removed(staff: Client) -> None:
    given = {"name": " Node ", "family": "debian", "packages": "nodejs-22, npm", "note": "LTS"}
    assert staff.post(f"{OVERRIDES}add/", given).status_code == 302
    row = PackageOverride.objects.get()
    assert (row.name, row.family, row.packages) == ("node", "debian", ["nodejs-22", "npm"])

    changed = {**given, "packages": "", "note": "not here"}
    assert staff.post(f"{OVERRIDES}{row.pk}/change/", changed).status_code == 302
    row.refresh_from_db()
    assert row.packages == []

    assert staff.post(f"{OVERRIDES}{row.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not PackageOverride.objects.exists()
    assert LogEntry.objects.count() == 3


def test_what_is_wrong_is_shown_beside_its_field(staff: Client) -> None:
    given = {"name": "tool", "family": "debian", "packages": "ends-, a b", "note": ""}
    answer = staff.post(f"{OVERRIDES}add/", given)
    assert answer.status_code == 200
    page = answer.content.decode()
    assert "is not a valid package name on Debian" in page
    assert not PackageOverride.objects.exists()


def test_a_package_that_no_blueprint_could_hold_is_refused_beside_its_field(staff: Client) -> None:
    for package in ("a@b", "x" * 129):
        given = {"name": "tool", "family": "arch", "packages": package, "note": ""}
        page = staff.post(f"{OVERRIDES}add/", given).content.decode()
        assert "is not a valid package name on Arch Linux" in page
    assert not PackageOverride.objects.exists()


def test_two_of_one_name_are_refused_with_a_message(staff: Client) -> None:
    given = {"name": "tool", "family": "", "packages": "jq", "note": ""}
    staff.post(f"{OVERRIDES}add/", given)
    answer = staff.post(f"{OVERRIDES}add/", {**given, "name": "TOOL"})
    assert answer.status_code == 200
    assert "There is an override of this name" in answer.content.decode()
    assert PackageOverride.objects.count() == 1


def test_lists_and_searches_work(staff: Client) -> None:
    write_index("debian", {"jq": ["1.6"], "ripgrep": ["13"]}, provides={"jq": ["json"]})
    PackageOverride.objects.create(name="tool", packages=["ripgrep"], note="house")
    for path in (OVERRIDES, INDEXES, PACKAGES):
        assert staff.get(path).status_code == 200
    for asked, found in (("tool", 1), ("ripgrep", 1), ("house", 1), ("nothing", 0)):
        page = staff.get(OVERRIDES, {"q": asked})
        assert page.context["cl"].result_count == found
    assert staff.get(PACKAGES, {"q": "RIP"}).context["cl"].result_count == 1
    assert staff.get(PACKAGES, {"family__exact": "arch"}).context["cl"].result_count == 0


def test_packages_and_indexes_are_read_and_never_written(staff: Client) -> None:
    write_index("debian", {"jq": ["1.6"]})
    row = Package.objects.get()
    assert staff.get(f"{PACKAGES}{row.pk}/change/").status_code == 200
    assert staff.post(f"{PACKAGES}{row.pk}/change/", {"name": "x"}).status_code == 403
    assert staff.get(f"{PACKAGES}add/").status_code == 403
    assert staff.post(f"{INDEXES}debian/delete/", {"post": "yes"}).status_code == 403


def test_sync_makes_an_index_due(staff: Client) -> None:
    write_index("debian", {"jq": ["1.6"]})
    PackageIndex.objects.update(failures=7, tried_at=timezone.now())
    index = PackageIndex.objects.get()
    assert not TIMES.is_due(index, index.base_image)
    answer = staff.post(INDEXES, {"action": "sync", "_selected_action": ["debian"]}, follow=True)
    assert "a build worker will read it" in answer.content.decode()
    index.refresh_from_db()
    assert TIMES.is_due(index, index.base_image)


def test_looking_is_not_enough_to_sync_or_edit(client: Client) -> None:
    write_index("debian", {"jq": ["1.6"]})
    user = get_user_model().objects.create_user("viewer", password="x", is_staff=True)
    codenames = ("view_packageindex", "view_packageoverride")
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client.force_login(user)
    client.post(INDEXES, {"action": "sync", "_selected_action": ["debian"]})
    assert PackageIndex.objects.get().requested_at is None
    given = {"name": "tool", "family": "", "packages": "jq", "note": ""}
    assert client.post(f"{OVERRIDES}add/", given).status_code == 403
