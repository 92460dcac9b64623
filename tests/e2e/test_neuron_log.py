#!/usr/bin/env python3
"""The runtime's log in a dump: what the snapshot in the dump's bundle tells of it, whether it was
written before the hook, or after it."""
import glob
import json
import os
import subprocess
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import neuron_sysfs
from agent import BUILD_DIR, INSTANCE, PATIENCE, Agent, cleanup, extract, object_of, wait_for
from make_dump import make_dump
from tap import Skip, main, test

HOOK = os.path.join(BUILD_DIR, "neuron-dump")


def node():
    if not os.path.exists(HOOK):
        raise Skip("neuron-dump is not built")
    a = Agent()
    a.config["sources"][0]["settle"] = "15s"
    a.config["hook"]["deadline"] = "20s"
    neuron_sysfs.tree(a.path("sys"), "v3", 1)
    for name in ("dev", "dumps"):
        os.makedirs(a.path(name), exist_ok=True)
    a.config["snapshot"] = {"sysfs_root": a.path("sys"), "device_directory": a.path("dev")}
    return a.start()


def rank():
    """A process that fails: it lives until its stdin is closed."""
    return subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"],
                            stdin=subprocess.PIPE)


def call_hook(a, unit, pid, **more):
    environment = {**more, "PATH": os.environ["PATH"],
                   "NEURON_COLLECTD_HOOK_SOCKET": a.config["hook"]["socket"],
                   "NEURON_COLLECTD_MAILBOX": a.config["hook"]["mailbox"],
                   "NEURON_COLLECTD_SYSFS": a.path("sys"), "NEURON_COLLECTD_DEADLINE": "20s"}
    subprocess.run([HOOK, "--pid", str(pid), "--tid", str(pid), "--log-id", "1", "--instance-id",
                    INSTANCE, "--error-code", "1200", "--local-output-dir", unit], env=environment,
                   capture_output=True, timeout=60 * PATIENCE, check=True)


def section(a, document):
    """The section runtime_log of that document in the snapshot's bundle; None: not there."""
    for path, m in a.manifests():
        if m["bundle"]["kind"] == "snapshot" and document in [e["path"] for e in m["members"]]:
            with open(os.path.join(extract(object_of(path), "tar"), document),
                      encoding="utf-8") as f:
                found = [s for s in json.load(f)["sections"] if s["name"] == "runtime_log"]
            return found[0] if found else None
    return None


def infodumps(found):
    return [r for r in found["records"] if r["about"] == "infodump"]


@test
def the_log_in_a_dump_is_read_into_the_snapshot_of_its_bundle():
    a = node()
    with rank() as process:
        unit = make_dump(a.path("dumps"), size=1 << 20, pid=process.pid, instance_id=INSTANCE)
        call_hook(a, unit, process.pid)
        process.stdin.close()
    found = wait_for("the snapshot is shipped", lambda: section(a, "snapshot.json"), 90)
    assert found["state"] == "complete", found
    files = {os.path.basename(r["path"]): r for r in found["records"] if r["about"] == "file"}
    assert set(files) == {f"{INSTANCE}-nrt-pid-{process.pid}.log",
                          f"nrt-{INSTANCE}-pid-{process.pid}.log"}, files
    dump = infodumps(found)[0]
    assert dump["whole"] and dump["fields"]["NRT version"].startswith("2.34.10 "), dump
    assert dump["fields"]["Failure"] == "NRT_EXEC_HW_ERR_COLLECTIVES in nrt_execute()" and dump[
        "fields"]["Instance ID"] == INSTANCE, dump
    assert dump["environment"]["NEURON_RT_EXEC_TIMEOUT"] == "600", dump
    assert sorted(found["files"]) == ["runtime-log-0.txt", "runtime-log-1.txt"], found["files"]
    a.stop()


@test
def a_log_that_is_written_after_the_hook_is_read_by_the_second_pass():
    a = node()
    with rank() as process:
        unit = make_dump(a.path("dumps"), size=1 << 20, pid=process.pid, instance_id=INSTANCE)
        later = {}
        for name in os.listdir(unit):
            if name.endswith(".log"):
                with open(os.path.join(unit, name), "rb") as f:
                    later[name] = f.read()
                os.unlink(os.path.join(unit, name))
        call_hook(a, unit, process.pid)
        wait_for("the first snapshot is there",
                 lambda: glob.glob(a.path("state", "snapshots", "*", "snapshot.json")))
        for name, text in later.items():
            with open(os.path.join(unit, name), "wb") as f:
                f.write(text)
        process.stdin.close()
    found = wait_for("the second look is shipped", lambda: section(a, "snapshot-after.json"), 90)
    first = section(a, "snapshot.json")
    assert first["state"] == "skipped" and "no log of the runtime is known" in first[
        "detail"] and not first["records"], first
    assert found["state"] == "complete" and infodumps(found)[0]["fields"]["LNC"] == "2", found
    assert not found["files"], found["files"]  # the bundle has the log itself
    a.stop()


@test
def the_tails_of_a_later_snapshot_do_not_reuse_the_names_of_the_first():
    a = node()
    with rank() as process:
        unit = make_dump(a.path("dumps"), size=1 << 20, pid=process.pid, instance_id=INSTANCE)
        for name in [name for name in os.listdir(unit) if name.endswith(".log")]:
            os.unlink(os.path.join(unit, name))
        for thread, document in ((1, "snapshot.json"), (2, "snapshot-more-1.json")):
            log = a.path(f"nrt-{thread}.log")
            with open(log, "w", encoding="ascii") as f:
                f.write(f"2025-Sep-19 18:57:20.782962 1:1 ERROR TDRV:f thread {thread}\n")
            call_hook(a, unit, process.pid, NEURON_RT_LOG_LOCATION=log)
            wait_for(f"{document} is there",
                     lambda d=document: glob.glob(a.path("state", "snapshots", "*", d)))
        process.stdin.close()
    for document, name in (("snapshot.json", "runtime-log-0.txt"),
                           ("snapshot-more-1.json", "runtime-log-more-1-0.txt")):
        found = wait_for(f"{document} is shipped", lambda d=document: section(a, d), 90)
        assert found["state"] == "complete" and found["files"] == [name], found
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
