"""Paths of the metrics."""

from django.urls import path

from controlplane.metrics import views

urlpatterns = [path("metrics", views.MetricsViewSet.as_view({"get": "retrieve"}))]
