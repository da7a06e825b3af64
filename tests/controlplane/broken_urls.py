"""The real paths, and views that fail the ways views fail."""

from django.db import DataError, connection
from django.http import Http404
from django.urls import path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.urls import handler400, handler403, handler404, handler500
from controlplane.urls import urlpatterns as real

__all__ = ["handler400", "handler403", "handler404", "handler500", "urlpatterns"]


class Broken(APIView):
    """Fails with a text that nobody outside may see."""

    def get(self, request: Request) -> Response:
        """Raise."""
        raise RuntimeError("password=hunter2 in /srv/secret")


class BadSql(APIView):
    """Runs SQL that the database refuses."""

    def get(self, request: Request) -> Response:
        """Raise the driver's error, whose text is the statement."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT secret_column FROM no_such_table")
        return Response()


class BadData(APIView):
    """Fails like a value that does not fit its column."""

    def get(self, request: Request) -> Response:
        """Raise."""
        raise DataError("value too long for type character varying(120): hunter2")


class Gone(APIView):
    """Finds nothing, Django's way."""

    def get(self, request: Request) -> Response:
        """Raise."""
        raise Http404("No Workspace matches the given query: hunter2")


urlpatterns = [
    path("broken", Broken.as_view()),
    path("bad-sql", BadSql.as_view()),
    path("bad-data", BadData.as_view()),
    path("gone", Gone.as_view()),
    *real,
]
