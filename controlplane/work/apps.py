"""The Django app ``controlplane.work``: the heartbeats of the workers."""

from django.apps import AppConfig


class WorkConfig(AppConfig):
    """Registers the app with Django."""

    name = "controlplane.work"
    label = "work"
    verbose_name = "Workers"
