"""Reading records: the log as pages, as streams of bytes, as changes, as files to take away.

Nothing here writes, and nothing needs memory in proportion to a record. The log is read with SQL
of its own (``rows``): an object per event would cost more than the database does.
"""
