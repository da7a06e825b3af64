"""The Django app ``scm``."""

from django.apps import AppConfig


class ScmConfig(AppConfig):
    """Registers the app with Django."""

    name = "scm"
    verbose_name = "Source hosting"
