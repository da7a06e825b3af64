"""What the pages show is typed into a shell, page by page, against the real service."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import page_paths, read_page
from tests.docs.site import Site
from tests.docs.transcript import difference

RUN = [path for path in page_paths() if any(not one.not_run for one in read_page(path).commands)]


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.parametrize("path", RUN, ids=[read_page(path).name for path in RUN])
def test_the_commands_of_a_page_print_what_it_shows(site: Site, path: Path) -> None:
    page = read_page(path)
    known: dict[str, str] = {}
    with site.shell() as shell:
        for command in page.commands:
            if command.not_run is not None:
                continue
            code, printed = shell.run(site.typed(command.text))
            told = f"{page.name}:{command.line}: {command.text}"
            assert code == 0, f"{told}\nexit code {code}\n{printed}"
            assert not (differs := difference(command.printed, site.shown(printed), known)), (
                f"{told}\n{differs}"
            )


def test_most_pages_have_commands_that_run() -> None:
    assert "docs/users/first-workspace.md" in {read_page(path).name for path in RUN}
