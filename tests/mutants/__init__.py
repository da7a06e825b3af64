"""Mutation tests: does a test fail when one small thing in a module is wrong? ``make mutants``.

``python -m tests.mutants [group…] [--limit N] [--seed N]`` changes the modules of a group
(``groups.py``), one change at a time (``changes.py``), and runs the tests of the group against each
changed module (``session.py``) in a copy of the tree. A change that no test notices has survived: a
test is missing, or the change is equivalent and belongs into ``equivalent.toml`` with the reason.
"""
