"""The Django app ``scm``."""

from django.apps import AppConfig

from scm import checks as checks  # importing them registers them


class ScmConfig(AppConfig):
    """Registers the app with Django, and its system checks."""

    name = "scm"
    verbose_name = "Source hosting"
