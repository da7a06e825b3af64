"""What ``deepagents`` demands since 0.7, where the standard tests still demand the opposite."""

from __future__ import annotations

import pytest
from conftest import ABSOLUTE_PATHS

from controlplane_langchain import ControlPlaneSandbox

FOLDER = "/tmp/current_contract"


if ABSOLUTE_PATHS:

    @pytest.fixture(scope="module")
    def tree(made_sandbox: ControlPlaneSandbox) -> ControlPlaneSandbox:
        """Files with and without a dot, and a folder."""
        names = ("file1.txt", "file2.txt", "file10.txt", "fileA.txt", "x.py", ".hidden", "dir/y.py")
        written = made_sandbox.upload_files([(f"{FOLDER}/{name}", b"text") for name in names])
        assert [each.error for each in written] == [None] * len(names)
        return made_sandbox

    # A relative path would get past every rule that denies an agent a path.
    @pytest.mark.parametrize(
        ("pattern", "found"),
        [
            ("*.py", ["dir/y.py", "x.py"]),
            ("/*.py", ["x.py"]),
            ("**/y.py", ["dir/y.py"]),
            ("file?.txt", ["file1.txt", "file2.txt", "fileA.txt"]),
            ("file[1-2].txt", ["file1.txt", "file2.txt"]),
            (".*", [".hidden"]),
            ("dir", []),
        ],
    )
    def test_files_are_found_by_their_absolute_paths_and_folders_are_not(
        tree: ControlPlaneSandbox, pattern: str, found: list[str]
    ) -> None:
        result = tree.glob(pattern, path=FOLDER)
        assert result.error is None
        assert result.matches == [{"path": f"{FOLDER}/{name}", "is_dir": False} for name in found]

    def test_a_file_that_exists_is_written_anew(tree: ControlPlaneSandbox) -> None:
        path = f"{FOLDER}/again/file.txt"
        assert tree.write(path, "first, which is longer").error is None
        assert tree.write(path, "second").error is None
        assert tree.download_files([path])[0].content == b"second"
