"""The Django app ``controlplane.logins``: failed logins to the admin."""

from django.apps import AppConfig


class LoginsConfig(AppConfig):
    """Registers the app with Django."""

    name = "controlplane.logins"
    label = "logins"
    verbose_name = "Logins"
