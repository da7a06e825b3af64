"""The Django app ``runs``."""

from django.apps import AppConfig

from runs import checks as checks  # importing them registers them


class RunsConfig(AppConfig):
    """Registers the app with Django, and its system checks."""

    name = "runs"
    verbose_name = "Runs"
