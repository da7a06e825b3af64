"""The Django app ``accounts``."""

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    """Registers the app with Django."""

    name = "accounts"
    verbose_name = "Accounts"
