"""What tests of several apps share and that is no service: rows, locks, query plans."""
