"""The Django app ``registries``."""

from django.apps import AppConfig


class RegistriesConfig(AppConfig):
    """Registers the app with Django."""

    name = "registries"
    verbose_name = "Registries"
