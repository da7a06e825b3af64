"""Every row of the page of bad days has a test that makes it happen."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "operators" / "bad-days.md"
API = "workspaces/test_lifecycle_api.py"
ENGINE = "chaos/test_engine_down.py"
DISKS = "builds/images/test_full_disks.py"
CHAOS = "chaos/test_full_disk.py"
SMALL = "workspaces/runtimes/test_docker_full_disk.py"
SPOOL = "runs/agent/test_spool.py"
KEY = "runs/gateway/test_host_key.py"
INSTALL = "deploy/test_install.py"
UP = "deploy/test_up_bad_days.py"
COMPOSE = "deploy/test_compose.py"

SHOWN_BY = {
    "stopping what is being stopped": [
        f"{API}::test_stopping_what_is_being_stopped_changes_nothing"
    ],
    "stopping what has ended": [
        f"{API}::test_stopping_what_has_ended_is_accepted_and_changes_nothing"
    ],
    "deleting what is gone": [
        f"{API}::test_a_delete_is_accepted_in_every_state_and_again",
        f"{API}::test_what_is_deleted_stays_deleted",
    ],
    "starting what is running": [f"{API}::test_what_is_live_is_not_started_again"],
    "starting what is being stopped, is being deleted or is deleted": [
        f"{API}::test_what_is_being_stopped_or_deleted_is_not_started",
        f"{API}::test_what_is_deleted_stays_deleted",
    ],
    "a `ttlSeconds` of 0, or of a century": [
        f"{API}::test_a_time_to_live_that_makes_no_sense_is_refused"
    ],
    "something is stopped or deleted meanwhile": [
        f"{ENGINE}::test_what_is_wanted_of_an_engine_that_is_down_is_done_when_it_is_back"
    ],
    "something is started meanwhile": [
        f"{ENGINE}::test_a_start_while_the_engine_is_down_says_so_and_the_next_one_works"
    ],
    "a build is under way": [
        f"{ENGINE}::test_a_build_from_which_the_engine_goes_away_says_so_and_leaves_nothing",
        f"{DISKS}::test_an_engine_that_is_down_is_called_by_its_name_and_builds_when_it_is_back",
    ],
    "workspaces are running there": [
        f"{ENGINE}::test_workspaces_of_an_engine_that_is_down_are_not_taken_for_lost"
    ],
    "the build worker's, `SVC_DATA_DIR`": [
        f"{DISKS}::test_a_full_disk_of_the_worker_is_named_and_nothing_has_to_be_repaired",
        f"{DISKS}::test_a_disk_that_fills_while_the_context_is_written_is_named",
        f"{CHAOS}::test_a_full_folder_of_builds_fails_builds_and_hinders_no_stop",
    ],
    "the engine's, in a build": [
        f"{DISKS}::test_a_full_disk_of_the_engine_fails_the_build_in_the_engines_words"
    ],
    "the engine's, at a start": [f"{SMALL}::test_it_refuses_to_start_and_still_stops_and_removes"],
    "the registry's": [
        f"{DISKS}::test_a_full_disk_of_the_registry_fails_the_push_and_the_next_one_is_whole"
    ],
    "the broker's, below its `disk_free_limit`": [
        f"{CHAOS}::test_a_broker_that_calls_for_room_hinders_nobody"
    ],
    "the database's": [
        f"{CHAOS}::test_requests_are_refused_while_the_databases_disk_is_full_and_taken_afterwards"
    ],
    "a workspace's, where its record waits": [
        "runs/agent/test_recording.py::test_a_full_disk_makes_a_program_wait_but_not_for_ever",
        (
            f"{SPOOL}::test_a_full_disk_refuses_output_and_takes_the_end_of_the_record_and_goes_on"
            "_with_room"
        ),
    ],
    "a workspace's, before a command": [
        f"{SPOOL}::test_a_run_that_a_full_disk_cannot_record_leaves_nothing_behind"
    ],
    "the gateway's, at its first start": [
        f"{KEY}::test_a_full_disk_is_told_and_leaves_no_half_of_a_key"
    ],
    "the installation's, at `install.sh`": [
        f"{INSTALL}::test_a_full_disk_is_told_and_no_secret_is_lost_to_it"
    ],
    "that of `backups/`": [
        f"{COMPOSE}::test_a_backup_for_which_there_is_no_room_leaves_the_service_as_it_was"
    ],
    "that of `.data`, at `make up`": [
        f"{UP}::test_a_full_disk_is_told_in_one_line_and_leaves_no_half_of_the_secrets"
    ],
    "`SVC_DATA_DIR`, when a build worker starts": [
        "builds/test_worker_folder.py::test_a_data_folder_that_may_only_be_read_is_told_in_one_line"
    ],
    "`SVC_DATA_DIR`, while a build worker runs": [
        (
            f"{CHAOS}::test_a_folder_of_builds_that_may_only_be_read_is_told_and_used_once_it_may_be"
            "_written"
        ),
    ],
    "the folder of the host key": [
        f"{KEY}::test_a_folder_that_may_only_be_read_is_enough_once_the_key_is_there"
    ],
    "all folders of the API": [
        "controlplane/test_gunicorn.py::test_it_serves_where_nothing_can_be_written"
    ],
    "the folder of `install.sh`": [
        f"{INSTALL}::test_a_folder_that_may_only_be_read_is_told_in_one_line"
    ],
    "`.data`, at `make up`": [
        f"{UP}::test_a_data_folder_that_may_only_be_read_is_told_in_one_line"
    ],
    "the manifest of a workspace that is started again": [
        "e2e/test_lifecycle.py::test_an_image_that_the_registry_lost_is_built_again"
    ],
    "a layer of it": [
        "e2e/test_lifecycle.py::test_an_image_of_which_the_registry_lost_a_layer_is_built_again"
    ],
    "an image of the same plan": [
        "e2e/test_reuse.py::test_an_image_that_the_registry_lost_is_built_again"
    ],
    "the image, between push and start, and the engine does not have it": [
        "workspaces/runtimes/runtime_suite.py::test_an_image_that_nobody_has_is_an_image_pull_failure"
    ],
    "the API's, which has `/metrics` too, or the web's": [
        "controlplane/test_gunicorn.py::test_a_port_that_is_taken_is_a_clear_error"
    ],
    "the SSH gateway's": [
        "runs/gateway/test_sessions.py::test_a_port_that_is_taken_is_told_in_one_line"
    ],
    "one of `install.sh`": [
        f"{INSTALL}::test_every_port_that_is_taken_is_told_before_anything_is_started"
    ],
    "one of `make up` that you have not set": [
        "deploy/test_addresses.py::test_a_taken_port_is_replaced_by_a_free_one_that_is_kept"
    ],
    "one of `make up` that you have set": [
        "deploy/test_addresses.py::test_a_taken_port_that_was_asked_for_is_an_error"
    ],
    "others could read `deploy/.env`": [
        f"{INSTALL}::test_wrong_permissions_are_repaired_with_a_word"
    ],
    "`deploy/.env` belongs to somebody else, or is a link": [
        f"{INSTALL}::test_secrets_of_another_account_are_refused",
        f"{INSTALL}::test_secrets_elsewhere_are_refused",
    ],
    "others could read `.data/.env`": [
        f"{UP}::test_secrets_that_others_could_read_are_closed_with_a_word"
    ],
    "others could read the host key": [f"{KEY}::test_one_that_others_may_read_is_refused"],
    "the file of a `…_FILE` setting cannot be read": [
        "controlplane/test_settings.py::test_files_of_another_account_are_named_with_their_settings"
    ],
    "an upgrade is interrupted": [
        f"{COMPOSE}::test_an_upgrade_that_was_interrupted_is_finished_by_the_next_try"
    ],
    "a build is under way at an upgrade, and ends within `SVC_DRAIN_SECONDS`": [
        f"{COMPOSE}::test_a_build_under_way_is_not_lost_by_an_upgrade"
    ],
    "a build takes longer than that": [
        f"{COMPOSE}::test_a_build_under_way_is_not_lost_by_an_upgrade"
    ],
    "an installation was removed with `--keep-data` and is installed again": [
        f"{COMPOSE}::test_what_was_kept_at_removal_is_gone_on_with"
    ],
}


def rows() -> list[list[str]]:
    """Return the rows of the page's tables, without their heads."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if row[0] != "It happens" and not row[0].startswith("---")]


def test_every_row_has_a_test_and_says_everything() -> None:
    found = rows()
    assert [row[0] for row in found] == list(SHOWN_BY)
    for row in found:
        assert len(row) == 4
        assert all(row)


@pytest.mark.parametrize("test", sorted({test for tests in SHOWN_BY.values() for test in tests}))
def test_the_test_is_there(test: str) -> None:
    path, _, name = test.partition("::")
    tree = ast.parse((ROOT / "tests" / path).read_text())
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
