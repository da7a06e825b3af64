"""How often somebody may try to log in to the admin.

Kept in the database: every process counts the same, and a restart forgets nothing.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta

import structlog
from django.conf import settings
from django.db.models.functions import Now

from controlplane.logins.models import LoginAttempt
from controlplane.security.addresses import network_of

log = structlog.get_logger(__name__)


class TooManyLogins(Exception):
    """An address or an account has as many failed logins as it may have in the time."""


def begin_login(*, address: str, name: str) -> LoginAttempt:
    """Count a login before its password is looked at; raise ``TooManyLogins`` past the limit.

    Counted first, so that of many logins at once no more are looked at than of as many in a row.
    One that is refused does not count: whoever waits long enough may try again.
    """
    window = timedelta(milliseconds=settings.SVC_ADMIN_FAILED_LOGIN_WINDOW_MS)
    LoginAttempt.objects.filter(at__lt=Now() - window).delete()
    account = hashlib.sha256(name.strip().casefold().encode()).hexdigest()
    attempt = LoginAttempt.objects.create(address=network_of(address), account=account)
    recent = LoginAttempt.objects.filter(at__gte=Now() - window)
    counts = {
        "address": recent.filter(address=attempt.address).count(),
        "account": recent.filter(account=attempt.account).count(),
    }
    full = [what for what, count in counts.items() if count > settings.SVC_ADMIN_FAILED_LOGINS]
    if full:
        attempt.delete()
        log.warning("login_refused", address=address, limit_of=full)
        raise TooManyLogins
    return attempt


def login_succeeded(attempt: LoginAttempt) -> None:
    """Forget what failed before for this account at this address."""
    LoginAttempt.objects.filter(address=attempt.address, account=attempt.account).delete()
