"""Tests of clients that are attached to the command of a run."""
