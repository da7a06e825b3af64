"""From frame contents to rows; ``runs.record.store`` holds the transaction around it.

``batch`` walks over contents and yields what ``COPY`` wants, ``rows`` packs it, ``derived`` takes
from the events what they tell of processes, losses, changes and coverage, ``meta`` reads what a
hostile workspace may have written. ``tables`` holds the statements.
"""
