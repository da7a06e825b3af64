"""Guessing a password of the admin comes to an end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.db import connections
from django.db.models import F
from django.test import Client
from pytest_django.fixtures import Settings

from controlplane.logins.models import LoginAttempt

PASSWORD = "correct horse"
REFUSED = "There were too many failed logins"


@pytest.fixture(autouse=True)
def _limits(settings: Settings) -> None:
    settings.SVC_ADMIN_FAILED_LOGINS = 3
    settings.SVC_ADMIN_FAILED_LOGIN_WINDOW_MS = 600_000


def login(password: str, *, name: str = "ada", address: str = "192.0.2.1") -> str:
    """Log in from an address; return what came of it."""
    form = {"username": name, "password": password}
    answer = Client().post("/admin/login/", form, REMOTE_ADDR=address)
    if answer.status_code == 302:
        return "in"
    text = answer.content.decode()
    return "refused" if REFUSED in text else "wrong"


def make_staff(*names: str) -> None:
    for name in names:
        get_user_model().objects.create_superuser(name, password=PASSWORD)


@pytest.mark.django_db
def test_an_account_is_closed_after_failures_from_wherever_until_they_are_old() -> None:
    make_staff("ada", "bob")
    tries = [login("x", address=f"192.0.2.{number}") for number in range(1, 6)]
    assert tries == ["wrong", "wrong", "wrong", "refused", "refused"]
    assert login(PASSWORD, address="192.0.2.9") == "refused"
    assert login(PASSWORD, name=" ADA ", address="192.0.2.9") == "refused"
    assert login(PASSWORD, name="bob", address="192.0.2.9") == "in"
    LoginAttempt.objects.update(at=F("at") - timedelta(minutes=11))
    assert login(PASSWORD, address="192.0.2.9") == "in"


@pytest.mark.django_db
def test_an_address_is_closed_after_failures_at_whatever_account() -> None:
    make_staff("ada")
    tries = [login("x", name=f"user{number}", address="2001:db8::1") for number in range(4)]
    assert tries == ["wrong", "wrong", "wrong", "refused"]
    assert login(PASSWORD, address="2001:db8::2") == "refused"
    assert login(PASSWORD, address="2001:db8:0:1::1") == "in"


@pytest.mark.django_db
def test_who_mistypes_and_then_gets_in_begins_anew() -> None:
    make_staff("ada")
    for _ in range(3):
        assert [login("x"), login("x"), login(PASSWORD)] == ["wrong", "wrong", "in"]


@pytest.mark.django_db
def test_a_success_at_one_account_pays_for_no_failures_at_others() -> None:
    make_staff("eve")
    for number in range(3):
        assert login("x", name=f"user{number}") == "wrong"
    assert login(PASSWORD, name="eve") == "refused"


@pytest.mark.django_db
def test_what_is_kept_shows_no_name_and_goes_when_it_is_old() -> None:
    login("x", name="my password, in the wrong place")
    attempt = LoginAttempt.objects.get()
    assert "password" not in attempt.account
    LoginAttempt.objects.update(at=F("at") - timedelta(minutes=11))
    login("x")
    assert LoginAttempt.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_many_guesses_at_once_are_no_more_than_as_many_in_a_row() -> None:
    make_staff("ada")

    def guess(number: int) -> str:
        try:
            return login("x", address=f"192.0.2.{number}")
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(guess, range(16)))
    assert outcomes.count("wrong") <= 3
