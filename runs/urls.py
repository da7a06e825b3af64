"""The paths of runs and their records, in the specification's order."""

from django.urls import path

from runs import views

urlpatterns = [
    path("v1/runs", views.RunList.as_view()),
    path("v1/runs/<uuid:run_id>", views.RunDetail.as_view()),
    path("v1/runs/<uuid:run_id>/timeline", views.RunTimeline.as_view()),
    path("v1/runs/<uuid:run_id>/events/<str:sequence>", views.RunEventDetail.as_view()),
    path("v1/runs/<uuid:run_id>/scrollback", views.RunScrollback.as_view()),
    path("v1/runs/<uuid:run_id>/loss", views.RunLosses.as_view()),
    path("v1/runs/<uuid:run_id>/changes", views.RunChanges.as_view()),
    path("v1/runs/<uuid:run_id>/export", views.RunExport.as_view()),
]
