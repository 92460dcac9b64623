#!/usr/bin/env python3
"""A failure from end to end: the runtime calls neuron-dump, the agent inspects the hardware, and
what arrives at the destination says what failed, in which job, and what the devices said. Judged
with tar, zstd and sqlite3."""
import contextlib
import glob
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import neuron_devices
import neuron_sysfs
from agent import (BUILD_DIR, INSTANCE, PATIENCE, Agent, cleanup, extract, object_of, run, slowness,
                   wait_for)
from tap import Late, Skip, figures, in_time, main, test

HOOK = os.path.join(BUILD_DIR, "neuron-dump")
CID = "d99e36ea74c263ca"
UNIT = f"dt-20260527-051233-cid-{CID}"
# seconds that are promised; the agent waits for longer, so that what is late is late and not wrong
DEADLINE = 4


def node(devices=16, architecture="v3", settle="15s", **snapshot):
    """An agent on a machine with these devices, as far as sysfs shows them; nothing of this
    machine's is looked at but its processes.
    @param settle  a dump whose hook is through goes out at once, but waits so long for its
        snapshot"""
    a = Agent()
    a.config["sources"][0]["settle"] = settle
    neuron_sysfs.tree(a.path("sys"), architecture, devices)
    os.makedirs(a.path("dev"), exist_ok=True)
    os.makedirs(a.path("dumps"), exist_ok=True)
    a.config["hook"]["deadline"] = f"{5 * DEADLINE}s"
    a.config["snapshot"] = {"sysfs_root": a.path("sys"), "device_directory": a.path("dev"),
                            **snapshot}
    return a


def failing_process():
    """A process that stands for a rank: it lives until its stdin is closed."""
    return subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"],
                            stdin=subprocess.PIPE, env=rank_environment(0))


def rank_environment(rank, **more):
    return {"PATH": os.environ["PATH"], "RANK": str(rank), "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "128", "TORCHELASTIC_RUN_ID": "run-7",
            "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "41000",
            "NEURON_RT_ROOT_COMM_ID": "10.0.0.1:46820", "PYTHONDONTWRITEBYTECODE": "1", **more}


def state_file(unit, pid, tid=1, lid=1):
    os.makedirs(unit, exist_ok=True)
    with open(os.path.join(unit, f"{INSTANCE}-nd0-nc{tid % 8}-pid-{pid}-tid-{tid}-lid-{lid}"),
              "wb") as f:
        f.write(os.urandom(4096))


def hook_command(unit, pid, tid=1, lid=1, **more):
    flags = {"neff-name": "model.neff", "neff-uuid": "0f" * 16, "date-time": "20260527-051233",
             "pid": pid, "tid": tid, "log-id": lid,
             "instance-id": INSTANCE, "cluster-id": CID, "error-location": "nrt_execute",
             "error-code": 1200, "local-output-dir": unit, **more}
    return [HOOK] + [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def hook_environment(a, rank=0, **more):
    return rank_environment(rank, **{"NEURON_COLLECTD_HOOK_SOCKET": a.config["hook"]["socket"],
                                     "NEURON_COLLECTD_MAILBOX": a.config["hook"]["mailbox"],
                                     "NEURON_COLLECTD_SYSFS": a.path("sys"),
                                     "NEURON_COLLECTD_DEADLINE": a.config["hook"][
                                         "deadline"]} | more)


def wait_for_snapshot(a):
    """Until everything has been collected: a hook ends when the public part is there, a moment
    before the rest."""
    wait_for("the snapshot is there",
             lambda: glob.glob(a.path("state", "snapshots", "*", "snapshot.json")))


def only_manifest(a):
    base = [m for _, m in a.manifests() if m["bundle"]["supplement_of"] is None
            and m["source"]["name"] == "core-dumps"]
    assert len(base) == 1, a.manifests()
    return base[0]


def unpacked(a):
    """Everything at the destination, {bundle's id: (manifest, directory)}."""
    return {m["bundle"]["id"]: (m, extract(object_of(path), "tar")) for path, m in a.manifests()}


def snapshot_of(a, name="snapshot.json"):
    """Of the only snapshot, which is a bundle of its own some time after the dump."""
    found = wait_for("the snapshot has arrived", lambda: [
        d for m, d in unpacked(a).values() if m["bundle"]["kind"] == "snapshot"], 90, every=1)
    assert len(found) == 1, found
    with open(os.path.join(found[0], name), encoding="utf-8") as f:
        return json.load(f)


def section(document, name):
    found = [s for s in document["sections"] if s["name"] == name]
    assert found, [s["name"] for s in document["sections"]]
    return found[0]


def need_hook():
    if not os.path.exists(HOOK):
        raise Skip("neuron-dump is not built")


@test
def what_failed_is_named_in_the_manifest_and_the_devices_are_in_the_bundle():
    need_hook()
    a = node().start()
    unit = a.path("dumps", UNIT)
    with failing_process() as rank:
        state_file(unit, rank.pid)
        begun = time.monotonic()
        result = subprocess.run(hook_command(unit, rank.pid), env=hook_environment(a, 3),
                                capture_output=True, timeout=60 * PATIENCE, check=False)
        took = time.monotonic() - begun
        wait_for_snapshot(a)
        rank.stdin.close()
    assert result.returncode == 0, result
    in_time(took, (DEADLINE + 0.5) * slowness())
    figures.append(f"hook with a snapshot of 16 devices: {took:.2f} s")
    names = sorted(os.listdir(unit))
    assert ([n for n in names if n.endswith("-lid-1.json")]
            and [n for n in names if n.endswith("-snapshot.json")]), names
    a.wait_all()
    m = only_manifest(a)
    failure = m["failure"]
    assert (failure["code"], failure["name"],
            failure["location"]) == (1200, "NRT_EXEC_HW_ERR_COLLECTIVES", "nrt_execute"), failure
    assert failure["neff_name"] == "model.neff" and failure["neff_uuid"] == "0f" * 16, failure
    job = m["incident"]["job"]
    assert ((job["rank"], job["world_size"], job["source"]) == (3, 128, "torchrun")
            and job["key"]), job
    kinds = {member["kind"] for member in m["members"]}
    assert {"nc-state", "hook-record", "snapshot"} <= kinds, kinds
    document = snapshot_of(a)
    assert document["schema"] == "neuron-collectd/snapshot/1", document["schema"]
    sysfs = section(document, "neuron_sysfs")
    assert sysfs["state"] == "complete", sysfs
    assert {r["device"] for r in sysfs["records"]
            if "device" in r} == {f"neuron{i}" for i in range(16)}
    assert str(rank.pid) in json.dumps(section(document, "process")["records"])
    a.stop()


@test
def a_directory_that_the_hook_makes_has_the_snapshot_in_its_bundle_and_the_job_sees_no_output():
    need_hook()
    a = node(devices=2).start()
    unit = a.path("dumps", UNIT)
    with failing_process() as rank:
        result = subprocess.run(hook_command(unit, rank.pid), env=hook_environment(a),
                                capture_output=True, timeout=60 * PATIENCE, check=False)
        wait_for_snapshot(a)
        rank.stdin.close()
    assert result.returncode == 0 and not result.stderr, result
    a.wait_known(1)
    a.wait_all()
    m = only_manifest(a)
    context = snapshot_of(a, "snapshot-context.json")
    assert [(u["path"], u["bundle"]) for u in context["units"]] == [
        (unit, m["bundle"]["id"])], context
    a.stop()


@test
def after_the_process_has_exited_the_counters_are_read_again_and_the_difference_is_shown():
    need_hook()
    a = node(devices=2).start()
    unit = a.path("dumps", UNIT)
    with failing_process() as rank:
        state_file(unit, rank.pid)
        subprocess.run(hook_command(unit, rank.pid), env=hook_environment(a), capture_output=True,
                       timeout=60 * PATIENCE, check=True)
        counter = a.path(
            "sys", "devices/virtual/neuron_device/neuron1/neuron_core0/stats/status/hw_error/total")
        with open(counter, "w", encoding="ascii") as f:
            f.write("4711\n")  # the driver folds the counters in when the process ends
        rank.stdin.close()
    differences = snapshot_of(a, "snapshot-after.json")["differences"]
    assert any("hw_error" in d["path"] and str(d["after"]) == "4711"
               for d in differences), differences
    assert len(differences) == 1, differences
    a.wait_all()
    a.assert_sum()
    a.stop()


@test
def a_hundred_and_twenty_eight_hooks_at_once_are_one_incident():
    need_hook()
    a = node()
    a.config["hook"]["deadline"] = f"{DEADLINE}s"
    a.start()
    unit = a.path("dumps", UNIT)
    with failing_process() as rank:
        for core in range(128):
            state_file(unit, rank.pid, core + 1, core + 1)
        begun = time.monotonic()
        hooks = [subprocess.Popen(hook_command(unit, rank.pid, core + 1, core + 1),
                                  env=hook_environment(a, core), stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT) for core in range(128)]
        spawned = time.monotonic() - begun
        said = [hook.communicate(timeout=60 * PATIENCE)[0] for hook in hooks]
        took = time.monotonic() - begun
        rank.stdin.close()
    assert all(hook.returncode == 0 for hook in hooks), [h.returncode for h in hooks]
    figures.append(f"128 hooks at once: started within {spawned:.2f} s, all ended after {took:.2f} "
                   "s")
    in_time(took, (DEADLINE + 1) * slowness())
    records = [n for n in os.listdir(unit) if "neuron-dump" in n
               and not n.endswith("-snapshot.json")]
    assert len(records) == 128, len(records)
    a.wait_all("120s")
    assert a.sql("SELECT count(*), count(DISTINCT id) FROM notes") == "128|128"
    m = only_manifest(a)
    assert len(m["failures"]) == 128 and {f["log_id"] for f in m["failures"]} in (
        {str(i + 1) for i in range(128)}, set(range(1, 129))), m["failures"][:2]
    told = snapshot_of(a, "snapshot-context.json")
    assert len(set(told["notes"])) == 128, told
    a.stop()


def hook_duration(a, unit, pid):
    begun = time.monotonic()
    result = subprocess.run(hook_command(unit, pid),
                            env=hook_environment(a, NEURON_COLLECTD_DEADLINE="1s"),
                            capture_output=True, timeout=60, check=False)
    took = time.monotonic() - begun
    assert result.returncode == 0, result
    return took


def judge_late_note(a, unit):
    mailbox = a.config["hook"]["mailbox"]
    assert len([n for n in os.listdir(mailbox) if not n.startswith(".")]) == 1, os.listdir(mailbox)
    assert [n for n in os.listdir(unit) if n.endswith("-snapshot.json")], os.listdir(unit)


@test
def without_an_agent_the_hook_reads_sysfs_itself_and_its_note_is_accepted_later():
    need_hook()
    a = node(devices=4, settle="4s")
    # so long a note of the mailbox may have its hook at work
    a.config["hook"]["deadline"] = f"{DEADLINE}s"
    a.start()
    a.stop()
    unit = a.path("dumps", UNIT)
    state_file(unit, 4711)
    took = hook_duration(a, unit, 4711)
    in_time(took, 1.1 * slowness())
    judge_late_note(a, unit)
    a.start()
    a.wait_known(1)
    a.wait_all()
    assert only_manifest(a)["failure"]["code"] == 1200
    wait_for("the mailbox is empty", lambda: not os.listdir(a.config["hook"]["mailbox"]))
    a.stop()


@test
def a_stopped_agent_does_not_hold_the_hook():
    need_hook()
    a = node(devices=4).start()
    unit = a.path("dumps", UNIT)
    state_file(unit, 4711)
    os.kill(a.pid, signal.SIGSTOP)
    try:
        took = hook_duration(a, unit, 4711)
    finally:
        os.kill(a.pid, signal.SIGCONT)
    in_time(took, 1.1 * slowness())
    figures.append(f"hook with a stopped agent and a deadline of 1 s: {took:.3f} s")
    a.wait_known(1)
    a.wait_all()
    assert only_manifest(a)["failure"]["code"] == 1200
    a.stop()


def ends_of(document, name):
    """How a section's devices ended, by their name."""
    return {r["device"]: r for r in section(document, name)["records"] if "device" in r
            and "state" in r}


def fifteen_others_are_complete(document, name, hung, where):
    ends = ends_of(document, name)
    if len(ends) < 16:
        raise Late(f"not all devices were begun with in time: {ends}")
    assert len(ends) == 16 and ends[hung]["state"] == "timeout" and where in ends[hung][
        "detail"], ends.get(hung)
    others = {e["state"] for device, e in ends.items() if device != hung}
    if "timeout" in others:
        raise Late(f"others than {hung} have not ended in time: {ends}")
    assert others == {"complete"}, ends


@contextlib.contextmanager
def hanging(devices, directory):
    """What is opened below the directory does not answer, not even to SIGKILL: the emulator's files
    are mounted over it."""
    shutil.rmtree(directory)
    os.mkdir(directory)
    subprocess.run(["mount", "--bind", devices.directory, directory], check=True)
    devices.control("* open-attached hang")
    try:
        yield
    finally:
        devices.control("release")
        devices.control("* open-attached ok")
        subprocess.run(["umount", "-l", directory], check=True)


@test
def one_device_that_hangs_is_labelled_and_the_other_fifteen_are_complete():
    need_hook()
    devices = neuron_devices.Devices(count=16)
    a = node(probe_timeout="5s", device_directory=devices.directory)
    devices.control("7 0x80084e6a hang")
    unit = a.path("dumps", UNIT)
    with hanging(devices, a.path("sys", "devices/virtual/neuron_device/neuron5/stats/hardware")):
        a.start()
        with failing_process() as rank:
            state_file(unit, rank.pid)
            result = subprocess.run(hook_command(unit, rank.pid), env=hook_environment(a),
                                    capture_output=True, timeout=60 * PATIENCE, check=False)
            rank.stdin.close()
        assert result.returncode == 0 and not result.stderr, result
        names = [n for n in os.listdir(unit) if n.endswith("-snapshot.json")]
        assert len(names) == 1, "the hook had it within its deadline"
        a.wait_all()
        document = snapshot_of(a)
    with open(os.path.join(unit, names[0]), encoding="utf-8") as f:
        fifteen_others_are_complete(json.load(f), "neuron_sysfs", "neuron5", "stats/hardware/")
    fifteen_others_are_complete(document, "neuron_sysfs", "neuron5", "stats/hardware/")
    fifteen_others_are_complete(document, "neuron_device", "neuron7", "device_bdf_ext")
    assert [r for r in section(document, "neuron_device")["records"]
            if r.get("device") == "neuron7" and r.get("query") == "device_basic_info"]
    a.stop()


@test
def secrets_in_environment_command_line_and_note_are_found_nowhere():
    need_hook()
    words = {name: "s3cr3t" + secrets.token_hex(12) for name in (
        "environment", "allowed", "argument", "url", "neff", "unknown", "bearer", "log", "command")}
    command = {"name": "talk", "run": ["/bin/echo", f"--password={words['command']}",
                                       "of the command"], "timeout": "5s"}
    a = node(devices=2, commands=[command]).start()
    unit = a.path("dumps", UNIT)
    log = a.path("nrt.log")
    with open(log, "w", encoding="ascii") as f:
        f.write(f"2025-Sep-19 18:57:20.782962 1:1 ERROR TDRV:f of the log, token={words['log']}\n")
    environment = hook_environment(a, 1, AWS_SECRET_ACCESS_KEY=words["environment"],
                                   HF_TOKEN=words["environment"],
                                   NEURON_API_TOKEN=words["allowed"], NEURON_RT_LOG_LOCATION=log,
                                   SLURM_JOB_COMMENT=f"https://u:{words['url']}@host/x")
    rank = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()", "--api-key",
                             words["argument"], f"--hub=https://u:{words['url']}@hub/",
                             f"--header=Authorization: Bearer {words['bearer']}"],
                             stdin=subprocess.PIPE, env=environment)
    with rank:
        state_file(unit, rank.pid)
        command = hook_command(unit, rank.pid,
                               **{"neff-name": f"https://user:{words['neff']}@host/model.neff",
                                  "auth-token": words["unknown"]})
        subprocess.run(command, env=environment, capture_output=True, timeout=60 * PATIENCE,
                       check=True)
        wait_for_snapshot(a)
        rank.stdin.close()
    snapshot_of(a, "snapshot-after.json")
    a.wait_all()
    brought = [d for _, d in unpacked(a).values()]
    for words_of_its_own in ("of the log", "of the command"):
        assert run("grep", "-rlaF", words_of_its_own, *brought).stdout, words_of_its_own
    found = []
    for name, word in words.items():
        for where in [d for _, d in unpacked(a).values()] + [a.out, a.path("state"), unit]:
            hits = run("grep", "-rlaF", word, where)
            found += [(name, line) for line in hits.stdout.splitlines()]
        if word in a.log:
            found.append((name, "log"))
    assert not found, found
    assert "10.0.0.1:46820" in json.dumps([m for m, _ in unpacked(a).values()]) + run(
        "grep", "-rhaF", "46820", unit).stdout
    a.stop()


HOLDER = """
import mmap, sys
with open(sys.argv[1], "rb") as f:
    held = [mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ), mmap.mmap(-1, 64 << 20)]
print("up", flush=True)
sys.stdin.read()
"""


def seen_process(a, rank):
    """A process that has the runtime mapped, as far as its name tells, from before the agent
    starts: the first look at jobs finds it."""
    library = a.path("libnrt.so.1")
    with open(library, "wb") as f:
        f.write(bytes(4096))
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, library], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, env=rank_environment(rank))
    assert holder.stdout.readline() == b"up\n"
    return holder


def wait_seen(a, pid):
    wait_for("the process is known by the jobs",
             lambda: a.sql(f"SELECT count(*) FROM jobs WHERE pid = {pid}") == "1", 30)


@test
def a_rank_that_dies_without_a_note_is_named_by_who_was_seen_at_the_devices():
    a = node(devices=1, settle="300ms")
    with seen_process(a, 5) as rank:
        a.start()
        wait_seen(a, rank.pid)
        rank.kill()
    state_file(a.path("dumps", UNIT), rank.pid)
    a.wait_known(1)
    a.wait_all()
    m = only_manifest(a)
    job = m["incident"]["job"]
    assert ((job["rank"], job["world_size"], job["source"]) == (5, 128, "torchrun")
            and job["key"]), job
    assert m["failure"] is None, m["failure"]
    assert a.sql(f"SELECT count(*) FROM jobs WHERE pid = {rank.pid}") == "1"
    a.stop()


@test
def a_rank_that_starts_after_the_first_pass_is_found_by_the_next():
    a = node(devices=1)
    with seen_process(a, 5) as first:
        a.start()
        wait_seen(a, first.pid)
        with seen_process(a, 6) as later:
            wait_for("the process is known by the jobs",
                     # every 30 s
                     lambda: a.sql(f"SELECT count(*) FROM jobs WHERE pid = {later.pid}") == "1", 45)
            later.kill()
        first.kill()
    a.stop()


def plant(a, pid, ticks, uid, seen, rank):
    row = json.dumps({"pid": pid, "start_ticks": ticks, "uid": uid, "job": {
        "source": "torchrun", "key": "run-7", "rank": rank, "world_size": 128}})
    a.sql(f"INSERT INTO jobs VALUES ({pid}, {ticks}, {uid}, {int(seen * 1e6)}, CAST('{row}' AS "
          "BLOB))")


@test
def of_many_with_one_pid_the_youngest_of_the_owner_from_before_the_dump_is_meant():
    a = node(devices=1, settle="300ms").start()
    a.stop()
    me, now = os.getuid(), time.time()
    plant(a, 4711, 1, me, now - 3000, 1)
    plant(a, 4711, 2, me, now - 2000, 2)
    plant(a, 4711, 3, me, now + 2000, 3)  # has the number now
    plant(a, 4711, 4, me + 1, now - 1000, 4)
    plant(a, 4712, 5, me, now - 1000, 5)
    a.start()
    state_file(a.path("dumps", UNIT), 4711)
    a.wait_known(1)
    a.wait_all()
    assert only_manifest(a)["incident"]["job"]["rank"] == 2, only_manifest(a)["incident"]
    state_file(a.path("dumps", UNIT.replace("d99e", "0000")), 4713)
    a.wait_known(2)
    a.wait_all()
    other = [m["incident"] for _, m in a.manifests()
             if m["incident"]["cluster_id"].startswith("0000")]
    assert other and other[0].get("job") is None, other
    a.stop()


def is_zombie(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
        return f.read().rpartition(")")[2].split()[0] == "Z"


@test
def a_zombie_that_the_supervisor_finds_is_named_by_who_was_seen():
    need_hook()
    a = node(devices=1)
    with seen_process(a, 6) as rank:
        a.start()
        wait_seen(a, rank.pid)
        rank.kill()
        wait_for("it is a zombie", lambda: is_zombie(rank.pid))
        unit = a.path("dumps", UNIT)
        state_file(unit, rank.pid)
        subprocess.run(hook_command(unit, rank.pid), env=hook_environment(a, 6),
                       capture_output=True, timeout=60 * PATIENCE, check=True)
        # It is no ancestor of the hook: the supervisor alone looks through all processes.
        wait_for("its number is in the note's row",
                 lambda: a.sql("SELECT pid FROM notes") == str(rank.pid))
    a.wait_all()
    told = snapshot_of(a, "snapshot-context.json")
    assert [j["job"]["rank"] for j in told["jobs"]] == [6], told
    a.stop()


@test
def a_log_that_a_later_hook_of_the_same_process_names_is_read_too():
    need_hook()
    a = node(devices=1).start()
    unit = a.path("dumps", UNIT)
    with failing_process() as rank:
        for thread in (1, 2):
            log = a.path(f"nrt-{thread}.log")
            with open(log, "w", encoding="ascii") as f:
                f.write("2025-Sep-19 18:57:20.782962 1:1 ERROR TDRV:f the words of thread "
                        f"{thread}\n")
            state_file(unit, rank.pid, thread, thread)
            subprocess.run(hook_command(unit, rank.pid, thread, thread),
                           env=hook_environment(a, 0, NEURON_RT_LOG_LOCATION=log),
                           capture_output=True, timeout=60 * PATIENCE, check=True)
            wait_for_snapshot(a)  # the second one comes when the first snapshot is over
        rank.stdin.close()
    a.wait_all()

    def words():
        return run("grep", "-rhaoE", "the words of thread [12]",
                   *(d for _, d in unpacked(a).values())).stdout.split("\n")
    wait_for("both logs have come", lambda: {"the words of thread 1",
                                             "the words of thread 2"} <= set(words()), 90)
    a.stop()


def clean_up(failed=False):
    neuron_devices.cleanup()  # what hangs is answered first
    cleanup(failed)


if __name__ == "__main__":
    sys.exit(main(clean_up))
