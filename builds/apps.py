"""The Django app ``builds``."""

from django.apps import AppConfig


class BuildsConfig(AppConfig):
    """Registers the app with Django."""

    name = "builds"
    verbose_name = "Builds"
