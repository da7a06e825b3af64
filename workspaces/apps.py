"""The Django app ``workspaces``."""

from django.apps import AppConfig


class WorkspacesConfig(AppConfig):
    """Registers the app with Django."""

    name = "workspaces"
    verbose_name = "Workspaces"
