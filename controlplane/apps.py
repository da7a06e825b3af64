"""The Django app ``controlplane``."""

from django.apps import AppConfig


class ControlPlaneConfig(AppConfig):
    """Registers the app with Django."""

    name = "controlplane"
    verbose_name = "Control plane"
