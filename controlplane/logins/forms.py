"""The form by which people log in to the admin."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.admin.forms import AdminAuthenticationForm
from django.core.exceptions import ValidationError

from controlplane.logins.services import TooManyLogins, begin_login, login_succeeded
from controlplane.security.addresses import client_address


class LoginForm(AdminAuthenticationForm):
    """Django's form, for a limited number of failures of one address and of one account."""

    def clean(self) -> dict[str, Any]:
        """Look at name and password unless there were too many failures."""
        name = self.cleaned_data.get("username")
        if not name or not self.cleaned_data.get("password"):
            return super().clean()
        meta = self.request.META if self.request else {}
        address = client_address(meta.get("REMOTE_ADDR", ""), meta.get("HTTP_X_FORWARDED_FOR", ""))
        try:
            attempt = begin_login(address=address, name=name)
        except TooManyLogins:
            minutes = -(-settings.SVC_ADMIN_FAILED_LOGIN_WINDOW_MS // 60_000)
            raise ValidationError(
                f"There were too many failed logins. Try again in {minutes} minutes."
            ) from None
        cleaned = super().clean()
        login_succeeded(attempt)
        return cleaned
