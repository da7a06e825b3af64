"""The Django app ``e2bfacade``: it has a command and nothing else."""

from django.apps import AppConfig


class E2BFacadeConfig(AppConfig):
    """Registers the app with Django."""

    name = "e2bfacade"
    verbose_name = "E2B facade"
