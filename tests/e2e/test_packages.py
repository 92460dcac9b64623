#!/usr/bin/env python3
"""What is installed where the failing process runs: a real rpm on a real database in a root of the
process's own, through the whole chain of agent, supervisor and confined collector; with the agent
as root, and with the rights of its unit."""
import os
import subprocess
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import test_hook_pids as confined
import test_incident as scene
from agent import PATIENCE, need, need_root, run, wait_for
from tap import Skip, main, test

SPEC = """Name: aws-neuronx-runtime-lib
Version: 2.29.40.0
Release: 1.amzn2023
Summary: stands for the runtime's library
License: none
BuildArch: noarch
%description
Nothing.
%files
"""
RANK = ("import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); print('up', flush=True); "
        "sys.stdin.read()")


def database(a, root):
    """A root with an rpm database, in which one package is."""
    place = os.path.join(root, "var/lib/rpm")
    os.makedirs(place)
    with open(a.path("x.spec"), "w", encoding="ascii") as f:
        f.write(SPEC)
    built = run("rpmbuild", "-bb", "--define", f"_topdir {a.path('rpm')}", "--define",
                f"_rpmdir {a.path('rpms')}", a.path("x.spec"))
    assert built.returncode == 0, built.stderr
    package, = [os.path.join(d, n) for d, _, names in os.walk(a.path("rpms")) for n in names]
    added = run("rpm", "--dbpath", place, "--nodeps", "--noscripts", "--justdb", "-i", package)
    assert added.returncode == 0, added.stderr
    return root


def packages_of(a, root):
    """@return the records of source rpm about a process with that root, after a snapshot for it"""
    unit = a.path("dumps", scene.UNIT)
    with subprocess.Popen([sys.executable, "-c", RANK, root], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as rank:
        assert rank.stdout.readline() == b"up\n"
        scene.state_file(unit, rank.pid)
        command = scene.hook_command(unit, rank.pid)
        subprocess.run(command, env=scene.hook_environment(a), capture_output=True,
                       timeout=60 * PATIENCE, check=True)
        wait_for("its number is in the note's row",
                 lambda: a.sql("SELECT pid FROM notes") == str(rank.pid))
        wait_for("the snapshot",
                 lambda: [d for d in os.listdir(a.path("state", "snapshots"))
                          if os.path.exists(a.path("state", "snapshots", d, "snapshot.json"))])
        rank.stdin.close()
    a.wait_all()
    document = scene.snapshot_of(a)
    section = scene.section(document, "process_packages")
    assert section["state"] == "complete", section
    return [r for r in section["records"] if r["source"] == "rpm"]


def need_rpm():
    scene.need_hook()
    need_root()
    need("rpm", "rpmbuild")
    if not os.path.exists("/usr/bin/rpm"):
        raise Skip("rpm is not where distributions have it")


def judge(records):
    assert len(records) == 1, records
    if "landlock" in records[0].get("unavailable", ""):
        raise Skip("this kernel has no landlock, or has it switched off: "
                   + records[0]["unavailable"])
    assert records[0]["packages"] == [{"name": "aws-neuronx-runtime-lib",
                                       "version": "2.29.40.0-1.amzn2023"}], records


def judge_none(record):
    if "landlock" in record["unavailable"]:
        raise Skip(record["unavailable"])
    assert record["packages"] is None and record["unavailable"] == "rpm did not succeed", record


@test
def the_rpm_packages_of_a_containers_root_are_listed():
    need_rpm()
    a = scene.node(devices=1).start()
    judge(packages_of(a, database(a, a.path("root"))))
    a.stop()


@test
def the_rpm_packages_of_a_containers_root_are_listed_with_the_rights_of_the_unit():
    need_rpm()
    confined.namespaces()
    a = confined.hidden_agent().start()
    judge(packages_of(a, database(a, a.path("root"))))
    a.stop()


@test
def a_file_that_is_no_database_is_reported_as_such():
    need_rpm()
    a = scene.node(devices=1).start()
    os.makedirs(a.path("root", "usr/lib/sysimage/rpm"))
    with open(a.path("root", "usr/lib/sysimage/rpm/rpmdb.sqlite"), "wb") as f:
        f.write(os.urandom(65536))
    record, = packages_of(a, a.path("root"))
    judge_none(record)
    a.stop()


if __name__ == "__main__":
    sys.exit(main(confined.clean_up))
