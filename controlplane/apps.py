"""The Django app ``controlplane``."""

from django.apps import AppConfig

from controlplane import checks as checks  # importing them registers them


class ControlPlaneConfig(AppConfig):
    """Registers the app with Django, and its system checks."""

    name = "controlplane"
    verbose_name = "Control plane"
