#!/usr/bin/env python3
"""neuron-collect snapshot: waits until there is one, and says what it could not bring, why, and
what to do."""
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
# pylint: disable=wrong-import-position
from cli_test import CLI, CannedApi, InTurn, Skip, ask, main, test

NAME = "20260527T051233-1"
DOCUMENT = {"schema": "neuron-collectd/snapshot/1", "name": NAME,
            "sections": [{"name": "neuron_sysfs", "state": "complete", "detail": None},
                         {"name": "kmsg", "state": "timeout", "detail": "it was killed after 5s"}]}
DONE = {"done": True, "directory": "/state/snapshots/" + NAME,
        "files": ["snapshot.json", "../evil", ".hidden"], "document": DOCUMENT}
FILE = f"GET /v1/snapshots/{NAME}/snapshot.json"
ANSWERS = {"POST /v1/snapshot": (202, {"name": NAME}),
           f"GET /v1/snapshots/{NAME}": InTurn([{"done": False}, {"done": False}, DONE]),
           FILE: json.dumps(DOCUMENT).encode()}

_places = []


def place():
    _places.append(tempfile.mkdtemp(prefix="neuron-snapshot."))
    os.chmod(_places[-1], 0o755)
    return _places[-1]


def clean_up(failed=False):  # pylint: disable=unused-argument
    while _places:
        shutil.rmtree(_places.pop())


@test
def it_waits_until_the_snapshot_is_there_and_reports_where_and_what_is_not_complete():
    result, requests = ask(ANSWERS, "snapshot")
    assert result.returncode == 0 and result.stderr == "", result
    assert result.stdout.splitlines()[0] == DONE["directory"], result.stdout
    assert "timeout: it was killed after 5s" in result.stdout, result.stdout
    assert requests == ["POST /v1/snapshot"] + [f"GET /v1/snapshots/{NAME}"] * 3, requests


@test
def with_an_output_directory_it_brings_plain_names_and_no_others():
    to = os.path.join(place(), "made", "anew")
    result, _ = ask(ANSWERS, "snapshot", "-o", to)
    assert result.returncode == 0 and result.stdout.splitlines()[0] == to, result
    assert os.listdir(to) == ["snapshot.json"], os.listdir(to)
    with open(os.path.join(to, "snapshot.json"), encoding="utf-8") as f:
        assert json.load(f) == DOCUMENT
    assert stat.S_IMODE(os.stat(os.path.join(to, "snapshot.json")).st_mode) == 0o600


@test
def what_the_agent_does_not_give_is_named_with_its_reason_and_status():
    for status, body, says in ((404, {"error": {"code": "not_found",
                                                 "message": "there is no such file"}},
                                "there is no such file (HTTP status 404)"),
                               (500, b"<html>", "no reason given (HTTP status 500)")):
        result, _ = ask(ANSWERS | {FILE: (status, body)}, "snapshot", "-o", place())
        assert result.returncode == 1 and result.stdout == "", result
        assert ("'snapshot.json'" in result.stderr and f"'{NAME}'" in result.stderr
                and says in result.stderr), result.stderr
        assert "Input/output" not in result.stderr, result.stderr


@test
def a_directory_that_cannot_be_written_is_named_with_the_remedy():
    if os.getuid() != 0:
        raise Skip("needs root, to be somebody else")
    to = place()  # root's: nobody may list it, and not write there
    with CannedApi(ANSWERS) as api:
        os.chmod(api.path, 0o777)
        os.chmod(os.path.dirname(api.path), 0o755)
        result = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                                 CLI, "--socket", api.path, "snapshot", "-o", to],
                                capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1 and result.stdout == "", result
    assert (f"'{to}': Permission denied; name "
            "another directory with -o" in result.stderr), result.stderr
    assert os.listdir(to) == []


@test
def a_file_in_the_way_of_the_directory_is_named():
    to = os.path.join(place(), "file")
    with open(to, "w", encoding="ascii"):
        pass
    result, _ = ask(ANSWERS, "snapshot", "-o", to)
    assert (result.returncode == 1 and f"cannot write to '{to}'" in result.stderr
            and "-o" in result.stderr), result


@test
def a_name_that_leads_elsewhere_is_not_believed():
    result, requests = ask({"POST /v1/snapshot": (202, {"name": "../../etc"})}, "snapshot")
    assert result.returncode == 1 and "no possible name" in result.stderr, result
    assert requests == ["POST /v1/snapshot"], requests


if __name__ == "__main__":
    sys.exit(main(clean_up))
