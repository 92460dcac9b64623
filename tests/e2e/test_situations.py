#!/usr/bin/env python3
"""One situation, and what each command says of it: `--check`, doctor, status, readyz, drain, --once
and the reading commands agree."""
import concurrent.futures
import os
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import Agent, need_root
from tap import in_time, main, test
from test_notes import clean_up, serve_faultfs, stand_still


def hung(a, name):
    """A directory of the agent's on a mount whose server stopped."""
    server = serve_faultfs(a, a.path(name))
    for directory in ("jobs", "out"):
        os.makedirs(a.path(name, directory))
    time.sleep(1.1)  # what the kernel remembers of the directory is over
    stand_still(server)


@test
def a_hung_mount_is_reported_and_no_command_hangs():
    need_root()
    a = Agent()
    hung(a, "share")
    a.config["sources"].append(a.source("shared", "directory", "share/jobs/job-%p"))
    a.config["destinations"].append(a.volume("fsx", "share/out"))
    a.write_config()
    options = ("--config", a.config_file)
    commands = {"doctor": (*options, "doctor"), "estimate": (*options, "estimate")} | {
        name: (name, a.path("share", "out", "x")) for name in ("ls", "report", "verify", "get")}
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        said = {name: pool.submit(a.cli, *command, timeout=100)
                for name, command in commands.items()}
        said = {name: future.result() for name, future in said.items()}
    in_time(time.monotonic() - begun, 60, "all of them")
    for name, result in said.items():
        text = result.stdout + result.stderr
        assert result.returncode == 1 and "did not answer within 10 s" in text, (name, result)
    lines = said["doctor"].stdout.splitlines()
    for what in ("source shared", "destination fsx"):
        assert [x for x in lines if x.startswith(f"FAILED  {what}: ") and "answer" in x], lines
    assert [x for x in lines if x.startswith("ok      destination archive: ")], "the rest is checked"


if __name__ == "__main__":
    sys.exit(main(clean_up))
