"""E2B's wire format before this service: its SDKs work unmodified, and all they do is recorded.

A process of its own (``manage.py e2bfacade``), off by default. It has no database and no way into
workspaces: it is a client of the public API through ``clients/python``, so whatever it does is done
as anybody could do it, and stands in the record. It keeps nothing but open watches of folders.

``facade_settings`` what it may be told · ``releases`` which SDKs it serves · ``http_call`` one
request and its answer · ``connect_protocol`` the RPCs' envelopes · ``refused`` errors ·
``sandbox_access`` for whom, and which sandbox · ``templates`` blueprints by name ·
``sandbox_calls``, ``process_calls``, ``file_calls``, ``watches``, ``transfers`` the calls ·
``facade`` the whole.
"""
