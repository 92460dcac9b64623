#!/usr/bin/env python3
"""neuron-collect key new writes a key for agreement.key_file that nobody else can read, and
overwrites nothing."""
import json
import os
import re
import stat
import sys
import tempfile

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
# pylint: disable=wrong-import-position
from cli_test import CLI, main, run, test

LINE = re.compile(r"\d{8}T\d{6}:[0-9a-f]{64}\n")


def read(path):
    with open(path, encoding="ascii") as f:
        return f.read()


@test
def a_key_is_written_to_a_new_file_that_only_its_owner_can_read():
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "key")
        umask = os.umask(0)
        try:
            result = run(CLI, "key", "new", path)
        finally:
            os.umask(umask)
        assert result.returncode == 0 and not result.stderr, result
        assert LINE.fullmatch(read(path)), read(path)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        key_id, secret = read(path).strip().split(":")
        assert key_id in result.stdout and secret not in result.stdout, result


@test
def a_file_that_is_there_is_not_overwritten():
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "key")
        link = os.path.join(directory, "link")
        os.symlink(path, link)
        assert run(CLI, "key", "new", link).returncode == 1 and not os.path.exists(path)
        assert run(CLI, "key", "new", path).returncode == 0
        before = read(path)
        result = run(CLI, "key", "new", path)
        assert result.returncode == 1 and "not overwritten" in result.stderr, result
        assert not result.stdout and read(path) == before
        assert run(CLI, "key", "new", os.path.join(directory, "no", "key")).returncode == 1


@test
def without_a_file_it_goes_to_stdout_and_no_two_are_the_same():
    lines = {run(CLI, "key", "new").stdout for _ in range(3)}
    secrets = {line.split(":")[1] for line in lines}
    assert len(secrets) == 3 and all(LINE.fullmatch(line) for line in lines), lines


@test
def scripts_get_json():
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "key")
        result = run(CLI, "--json", "key", "new", path)
        answer = json.loads(result.stdout)
        assert answer == {"file": path, "id": read(path).split(":", maxsplit=1)[0]}, answer


if __name__ == "__main__":
    sys.exit(main())
