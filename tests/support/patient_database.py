"""Connections of the tests to the database, which a busy machine may keep from answering."""

from __future__ import annotations

from django.conf import settings

from tests.support.waiting import LONG_WAIT


def wait_for_connections() -> None:
    """Have this process wait for a connection longer than the 5 seconds of the product.

    Processes that tests start keep to the time of the product, and try again as it does.
    """
    settings.DATABASES["default"]["OPTIONS"]["connect_timeout"] = int(LONG_WAIT)
