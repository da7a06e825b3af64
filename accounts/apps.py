"""The Django app ``accounts``."""

from django.apps import AppConfig

from accounts import checks as checks  # importing them registers them


class AccountsConfig(AppConfig):
    """Registers the app with Django, and its system checks."""

    name = "accounts"
    verbose_name = "Accounts"
