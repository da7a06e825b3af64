"""From frame contents to rows: pure, so that the store only has to hold the transaction.

``batch`` walks over contents and yields what ``COPY`` wants, ``rows`` packs it, ``derived`` collects
what the events tell of processes, losses, changes and coverage, ``meta`` reads what a hostile
workspace may have written.
"""
