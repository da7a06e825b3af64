"""The page of the admin that belongs to no model: erasing an owner."""

from django.contrib import admin
from django.urls import path

from builds.erasure_page import erase_owner_page

urlpatterns = [
    path("admin/erase-owner/", admin.site.admin_view(erase_owner_page), name="erase_owner"),
]
