#!/usr/bin/env python3
"""What is evidence by its name: in a directory that others use too, core dumps alone are shipped
and deleted."""
import json
import os
import secrets
import shutil
import socket
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import make_dump
from agent import INSTANCE, PATIENCE, Agent, cleanup, need_root, run, tree, wait_for
from tap import main, test

NOBODY = 65534
OTHER = 65533
STATE = f"{INSTANCE}-nd0-nc4-pid-7-tid-8-lid-9"
LOG = f"{INSTANCE}-nrt-pid-7.log"


def write(path, owner=None, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(os.urandom(2000))
    os.chmod(path, mode)
    if owner is not None:
        os.chown(path, owner, owner)
    return path


def agent_of(path, **retention):
    a = Agent()
    a.config["sources"] = [a.source("core-dumps", "neuron-core-dump", path, scan_interval="1s")]
    a.config["retention"] = {"after_delivery": "delete", "keep_for": "0s", "max_use": "off",
                             "keep_free": "off"} | retention
    return a


def shipped(a):
    """{unit, below the directory of the test: names of its members}, of all its bundles."""
    units = {}
    for _, m in a.manifests():
        unit = units.setdefault(os.path.relpath(m["source"]["path"], a.dir), [])
        assert not set(unit) & {e["path"] for e in m["members"]}, "shipped twice"
        unit += [e["path"] for e in m["members"] if not e["path"].startswith("neuron-collectd/")]
    return {unit: sorted(names) for unit, names in units.items()}


def wait_shipped(a, wanted):
    wait_for(f"{sorted(wanted)} are shipped", lambda: set(shipped(a)) >= set(wanted), 40)
    a.wait_all()
    assert shipped(a) == wanted, shipped(a)


def wait_deleted(a, *paths):
    for path in paths:
        wait_for(f"{path} is deleted", lambda path=path: not os.path.lexists(a.path(path)), 40)


def discarded(a, reason):
    lines = [line for line in a.curl("/metrics").stdout.splitlines()
             if f'discards_total{{reason="{reason}"}}' in line]
    return int(lines[0].split()[-1]) if lines else 0


@test
def a_template_of_variables_alone_takes_dumps_and_nothing_else_that_is_there():
    need_root()
    a = agent_of("base/%d-%c")
    dump = make_dump.make_dump(a.path("base"), size=65536,
                               directory="20260527-051233-d99e36ea74c263ca")
    write(os.path.join(dump, "unknown", "name"))
    wanted = {"base/20260527-051233-d99e36ea74c263ca":
              sorted(os.fsdecode(name) for name in tree(dump))}
    write(a.path("base", "mine", LOG))
    write(a.path("base", "mine", "notes.txt"))
    wanted["base/mine"] = [LOG, "notes.txt"]
    write(a.path("base", f"nrt-{INSTANCE}-pid-9.log"))
    wanted["base"] = [f"nrt-{INSTANCE}-pid-9.log"]
    strange = [write(a.path("base", "krb5cc_1000"), NOBODY, 0o600),
               write(a.path("base", "checkpoint", "step-100", "model.pt"), NOBODY, 0o600),
               write(a.path("base", "checkpoint", "latest"), NOBODY)]
    kept = {path: tree(path) for path in [*strange, a.path("base", "mine", "notes.txt")]}
    os.symlink("/etc", a.path("base", "20260527-051234-d99e36ea74c263ca"))
    os.symlink("/etc", a.path("base", "etc"))
    a.start()
    wait_shipped(a, wanted)
    wait_deleted(a, "base/20260527-051233-d99e36ea74c263ca", f"base/mine/{LOG}",
                 f"base/nrt-{INSTANCE}-pid-9.log")
    time.sleep(3)  # what is to be seen is that nothing happens: three scans
    assert {path: tree(path) for path in kept} == kept, "deleted"
    assert len(a.manifests()) == 3, shipped(a)
    assert discarded(a, "no-dump") == 3, "counted, and named once"
    assert discarded(a, "symlink") == 1, a.curl("/metrics").stdout
    assert a.log.count("no-dump: 3 left out") == 1, a.log
    assert a.log.count("symlink: 1 left out, such as '20260527-051234-") == 1, a.log
    write(a.path("base", "mine", "letter"))  # there is no dump in it any more
    time.sleep(3)  # what is to be seen is that nothing happens: three scans
    assert len(a.manifests()) == 3 and os.path.exists(a.path("base", "mine", "letter")), shipped(a)
    a.stop()
    assert a.once().returncode == 0 and len(a.manifests()) == 3, "nothing is left to be deleted"


@test
def variables_in_several_directories_take_what_matches_in_all_of_them():
    a = agent_of("base/%c/fixed/pid-%p", after_delivery="keep")
    wanted = {}
    for unit in ("00000000000000aa/fixed/pid-7", "not hexadecimal/fixed/dump",
                 "00000000000000bb/other/pid-8/deep"):
        write(a.path("base", unit, STATE))
        write(a.path("base", unit, "sub", "x"))
        wanted["base/" + unit] = [STATE, "sub/x"]
    write(a.path("base/00000000000000aa", LOG))
    write(a.path("base/00000000000000aa/fixed", LOG))
    wanted |= {"base/00000000000000aa": [LOG], "base/00000000000000aa/fixed": [LOG]}
    write(a.path("base/00000000000000cc/fixed/pid-9/of any name"))
    wanted["base/00000000000000cc/fixed/pid-9"] = ["of any name"]
    strange = [write(a.path("base", name)) for name in
               ("x", "00000000000000aa/x", "00000000000000aa/fixed/x",
                "00000000000000aa/fixed/pid-x/x", "00000000000000aa/other/pid-7/x",
                "00000000000000bb/other/pid-8/x", "0x/fixed/pid-7/x")]
    result = a.once()
    assert result.returncode == 0, result
    assert shipped(a) == wanted, shipped(a)
    assert all(os.path.exists(path) for path in strange), strange
    assert f"no-dump: {len(strange)} left out" in result.stderr, result.stderr


@test
def a_directory_becomes_a_dump_when_the_runtime_writes_into_it():
    a = agent_of("base/%d-%c", after_delivery="keep")
    for watch in "inotify", "scan":
        a.config["sources"][0]["watch"] = watch
        a.config["sources"][0]["scan_interval"] = "1h" if watch == "inotify" else "1s"
        write(a.path("base", watch, "sub", "early"))
        a.start()
        wait_for("it has scanned", lambda: a.status()["idle"])
        time.sleep(1.5)  # what is to be seen is that nothing happens; settle is 0.3 s
        assert f"base/{watch}" not in shipped(a), shipped(a)
        write(a.path("base", watch, LOG))
        wait_for("it is shipped",
                 lambda w=watch: shipped(a).get(f"base/{w}") == sorted([LOG, "sub/early"]))
        write(a.path("base", watch, "sub", "late"))
        wait_for("what is new follows",
                 lambda w=watch: shipped(a).get(f"base/{w}") == sorted([LOG, "sub/early",
                                                                       "sub/late"]))
        a.stop()


@test
def a_dump_in_somebodys_directory_does_not_take_that_directory_along():
    a = agent_of("base/%d-%c", after_delivery="keep")
    write(a.path("base", "alice", "dumps", "dt-1", STATE))
    write(a.path("base", "alice", "dumps", "dt-1", "of any name"))
    diary = write(a.path("base", "alice", "diary"))
    write(a.path("base", "alice", "nested", LOG))
    write(a.path("base", "alice", "nested", "beside", "x"))
    write(a.path("base", "alice", "nested", "inner", "dump", LOG))
    assert a.once().returncode == 0
    assert shipped(a) == {"base/alice/dumps/dt-1": [STATE, "of any name"],
                          "base/alice/nested": ["beside/x", LOG],
                          "base/alice/nested/inner/dump": [LOG]}, shipped(a)
    assert os.path.exists(diary)


def send_note(a, directory, as_uid):
    """A hook that has written nothing, of a process of that user. @return the agent's answer"""
    note = {"schema": "neuron-collectd/hook-note/1", "id": secrets.token_hex(16),
            "written_usec": time.time_ns() // 1000, "environment": {},
            "arguments": {"pid": "7", "tid": "7", "log_id": "1", "instance_id": INSTANCE,
                          "error_location": "nrt_execute", "error_code": "5",
                          "local_output_dir": directory}}
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgid(as_uid)
            os.setuid(as_uid)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
                s.settimeout(10 * PATIENCE)
                s.connect(a.config["hook"]["socket"])
                s.send(json.dumps(note).encode())
                os.write(write_end, s.recv(4096))
                s.send(b"finished without record snapshot")
        finally:
            os._exit(0)
    os.close(write_end)
    os.waitpid(pid, 0)
    with os.fdopen(read_end) as f:
        return f.read()


@test
def a_note_makes_a_directory_of_its_sender_a_dump_and_nobody_elses():
    need_root()
    a = agent_of("base/%d-%c")
    for name, owner in ("named", NOBODY), ("others", OTHER):
        write(a.path("base", name, "of any name"), owner)
        os.chown(a.path("base", name), owner, owner)
    a.start()
    wait_for("it has scanned", lambda: a.status()["idle"])
    os.chmod(a.path("run"), 0o755)
    for name in "others", "named":
        assert send_note(a, a.path("base", name), NOBODY).startswith("accepted")
    wait_shipped(a, {"base/named": ["of any name"]})
    write(a.path("base", "named", "late"), NOBODY)
    wait_shipped(a, {"base/named": ["late", "of any name"]})
    time.sleep(2)  # what is to be seen is that nothing happens: two scans
    assert os.path.exists(a.path("base", "named", "late")), "it has no name of the runtime"
    assert set(shipped(a)) == {"base/named"}, shipped(a)
    a.stop()
    a.start()
    write(a.path("base", "named", "later"), NOBODY)
    wait_shipped(a, {"base/named": ["late", "later", "of any name"]})
    a.stop()


@test
def of_other_kinds_too_only_what_has_a_name_is_deleted():
    a = agent_of("base/%d-%c")
    a.config["sources"] = [a.source("jobs", "directory", "jobs/job-%p", scan_interval="1s"),
                           a.source("cores", "process-core", "cores/core.%p", scan_interval="1s",
                                    crash_reports=False),
                           a.source("profiles", "neuron-profile", "profiles", scan_interval="1s")]
    gone = [write(a.path(name)) for name in
            ("jobs/job-1/x", "profiles/run/1_instid_0_vnc_0.ntff",
             f"profiles/{INSTANCE}_pid_7/any")]
    os.makedirs(a.path("cores"), exist_ok=True)
    gone.append(make_dump.make_core(a.path("cores", "core.7"), size=65536))
    kept = [write(a.path(name)) for name in
            ("jobs/private/x", "jobs/x", "cores/letter", "profiles/run/diary")]
    a.start()
    a.wait_known(len(gone) + len(kept) - 1)
    a.wait_all()
    for path in gone:
        wait_for(f"{path} is deleted", lambda path=path: not os.path.exists(path))
    time.sleep(2)  # what is to be seen is that nothing happens
    assert all(os.path.exists(path) for path in kept), kept
    a.stop()


@test
def estimate_and_doctor_name_what_is_left_out():
    a = agent_of("base/%d-%c")
    write(a.path("base", LOG))
    write(a.path("base", "letter"))
    a.write_config()
    result = a.cli("estimate", "--config", a.config_file)
    assert result.returncode == 0 and "no-dump: 1 left out, such as 'letter'" in result.stdout, (
        result)
    assert "letter" in a.cli("doctor", "--config", a.config_file).stdout


if __name__ == "__main__":
    sys.exit(main(cleanup))
