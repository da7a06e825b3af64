"""The Django app ``controlplane``, and Django's own for the admin pages."""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.contrib import admin
from django.contrib.admin.apps import SimpleAdminConfig
from django.contrib.admin.checks import check_admin_app, check_dependencies
from django.core.checks import CheckMessage, Tags, register
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from controlplane import checks as checks  # importing them registers them

STATEMENTS_KEPT = 200
"""Prepared statements of one connection; a worker or an API process repeats some hundred."""


class ControlPlaneConfig(AppConfig):
    """Registers the app with Django, and its system checks."""

    name = "controlplane"
    verbose_name = "Control plane"

    def ready(self) -> None:
        """Have each database connection keep more statements prepared than by default."""
        connection_created.connect(_keep_statements)


class AdminConfig(SimpleAdminConfig):
    """Has the pages of all apps read by whoever serves or checks them: workers have none."""

    def ready(self) -> None:
        """Register the checks of Django's admin."""
        register(check_dependencies, Tags.admin)
        register(_check_pages, Tags.admin)


def _keep_statements(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    connection.connection.prepared_max = STATEMENTS_KEPT


def _check_pages(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    admin.autodiscover()
    return list(check_admin_app(app_configs, **kwargs))
