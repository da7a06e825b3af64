"""The Django app ``runs``."""

from django.apps import AppConfig


class RunsConfig(AppConfig):
    """Registers the app with Django."""

    name = "runs"
    verbose_name = "Runs"
