"""The columns of models, for statements that are written by hand.

A statement that is prepared must not change its columns: with ``table.*`` it does when a migration
adds one while the process runs, and PostgreSQL refuses it from then on.
"""

from __future__ import annotations

import re
from typing import Final

from django.db import models

ROWS_OF_A_STATEMENT: Final = 500
"""How many rows are inserted at once: a statement has at most 65,535 values."""


def with_columns(sql: str, **tables: type[models.Model]) -> str:
    """Return a statement with all columns of these models in place of ``table.*``.

    Each table has the name that the statement gives it; its columns stand in the order of the
    model's fields.
    """
    for table, model in tables.items():
        names = (f'{table}."{field.column}"' for field in model._meta.local_concrete_fields)
        sql = re.sub(rf"\b{table}\.\*", ", ".join(names), sql)
    return sql
