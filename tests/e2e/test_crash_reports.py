#!/usr/bin/env python3
"""Crash reports of cores: each a bundle of its own beside the core's, once, whatever happens in
between. The cores are real ones of a program that crashes;
what is delivered is read with tar."""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
_here = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(_here, "..", "harness"))
sys.path.insert(0, os.path.join(_here, "..", "collectors", "crash"))
# pylint: disable=wrong-import-position
import radosgw
from agent import CLI, PATIENCE, Agent, cleanup, extract, family, need_root, object_of, wait_for
from cores import CRASHER, core_of, report
from s3tools import new_bucket
from tap import figures, in_time, main, test

PARTS = {"crash.json", "crash.md"}


def node(settle="2s", **source):
    a = Agent()
    os.makedirs(a.path("cores"))
    a.config["sources"] = [a.source("cores", "process-core", "cores", settle=settle, **source)]
    return a


def crash(a, name="core.crasher.1", how="null", threads=200):
    """A core of a process that crashed, in the source at once."""
    with core_of(CRASHER, how, str(threads)) as core:
        shutil.copyfile(core, a.path("coming"))
    os.rename(a.path("coming"), a.path("cores", name))
    return a.path("cores", name)


def kinds(manifest):
    return {m["path"]: m["kind"] for m in manifest["members"]}


def kinds_name(manifest):
    (name,) = [path for path, kind in kinds(manifest).items() if kind == "elf-core"]
    return name


def report_in(manifest_path):
    directory = extract(object_of(manifest_path), "tar")
    with open(os.path.join(directory, "crash.json"), encoding="utf-8") as f:
        document = json.load(f)
    with open(os.path.join(directory, "crash.md"), encoding="utf-8") as f:
        return document, f.read()


def functions(document):
    return [f["function"] for f in document["threads"]["groups"][0]["frames"]]


def bundles(a):
    """{bundle's id: (path of the manifest, manifest)}"""
    return {m["bundle"]["id"]: (path, m) for path, m in a.manifests()}


def stop_child(a):
    """Stops the process that makes a report. @return its pid"""
    for pid in family(a.pid):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if f.read().endswith(b"--child=crash\0"):
                    os.kill(pid, signal.SIGSTOP)
                    return pid
        except (OSError, ProcessLookupError):
            pass
    return None


def child_of(a):
    return wait_for("a report is being made", lambda: stop_child(a), every=0.0005)


def core_and_report(a):
    """Of the only core. @return (path of the manifest, manifest) of both"""
    found = wait_for("core and report are there", lambda: (lambda m: len(m) == 2 and m)(
        {m["bundle"]["kind"]: (path, m) for path, m in a.manifests()}), timeout=60)
    core, made = found["process-core"], found["crash-report"]
    assert made[1]["bundle"]["related"] == [
        {"kind": "process-core", "id": core[1]["bundle"]["id"]}], made
    assert os.path.dirname(core[0]) == os.path.dirname(made[0]), (core[0], made[0])
    assert kinds(made[1]) == dict.fromkeys(PARTS, "crash-report"), made
    return core, made


def reports(a):
    """{core's id: (path of the manifest, manifest) of its report}"""
    found = [(m["bundle"]["related"][0]["id"], (path, m)) for path, m in a.manifests()
             if m["bundle"]["kind"] == "crash-report"]
    assert len(dict(found)) == len(found), "a core has two reports"
    return dict(found)


def report_named(a, core):
    """@return path of the manifest of the report of the core of that name; None"""
    made = reports(a)
    return next((made[i][0] for i, (_, m) in bundles(a).items()
                 if i in made and m["source"]["path"].endswith("/" + core)), None)


@test
def a_core_is_delivered_with_a_report_that_names_the_function():
    a = node(settle="6s")
    a.start()
    crash(a)
    (_, manifest), (path, _) = core_and_report(a)
    assert kinds(manifest) == {"core.crasher.1": "elf-core"}, manifest
    document, text = report_in(path)
    assert functions(document)[:3] == ["read_through", "crash", "main"], functions(document)
    assert document["signal"]["name"] == "SIGSEGV" and "read_through" in text
    assert document["threads"]["count"] == 201
    assert a.cli("verify", object_of(path)).returncode == 0
    assert a.sql("SELECT count(*) FROM reports_pending") == "0"
    a.stop()


@test
def the_same_crash_is_counted_and_its_report_says_since_when():
    a = node(settle="6s")
    a.start()
    for n in range(3):
        crash(a, f"core.crasher.{n}", threads=2)
        a.wait_delivered(2 * n + 2)
    names = {m["bundle"]["id"]: kinds_name(m) for _, m in a.manifests()
             if m["bundle"]["kind"] == "process-core"}
    seen = {names[core]: report_in(p)[0]["signature"]["seen"]
            for core, (p, _) in reports(a).items()}
    assert seen["core.crasher.0"] is None, seen
    assert [seen[f"core.crasher.{n}"]["count"] for n in (1, 2)] == [1, 2], seen
    assert a.sql("SELECT n FROM signatures") == "3"
    a.stop()


@test
def a_core_waits_for_no_report_and_stays_until_it_is_made():
    a = node(settle="1s")
    a.config["retention"] = {"after_delivery": "delete", "keep_for": "0s", "max_use": "off",
                             "keep_free": "off"}
    a.start()
    core = crash(a)
    child = child_of(a)
    a.wait_delivered(1)
    _, manifest = a.only_manifest()
    assert kinds(manifest) == {"core.crasher.1": "elf-core"}, manifest
    time.sleep(1.5)  # for what must not be
    assert os.path.exists(core), "it was deleted while it was read"
    os.kill(child, signal.SIGCONT)
    _, (path, _) = core_and_report(a)
    assert functions(report_in(path)[0])[0] == "read_through"
    wait_for("the core is deleted", lambda: not os.path.exists(core), timeout=60)
    a.stop()


@test
def a_core_that_its_owner_removes_once_it_is_delivered_has_its_report():
    a = node(settle="1s")
    a.start()
    crash(a, "core.crasher.1", threads=2)
    child = child_of(a)
    core = crash(a, "core.crasher.2", threads=2)
    a.wait_delivered(2)
    os.unlink(core)
    os.kill(child, signal.SIGCONT)
    path = wait_for("its report is there", lambda: report_named(a, "core.crasher.2"), timeout=60)
    assert functions(report_in(path)[0])[0] == "read_through", report_in(path)
    wait_for("no links remain", lambda: not [f for _, _, files in os.walk(a.path(
        "cores", ".neuron-collectd")) for f in files if f.startswith("core.")], timeout=60)
    a.stop()


def assert_kept(a):
    """The core stays, since its report is not made."""
    (core,) = [b["id"] for b in a.bundles() if b["kind"] == "process-core"]
    explained = a.cli("explain", core).stdout
    assert "report is still to be made; its files stay until then" in explained, explained


@test
def a_report_that_cannot_be_written_is_made_when_it_can_and_its_core_stays_until_then():
    a = node(settle="1s")
    a.config["retention"] = {"after_delivery": "delete", "keep_for": "0s", "max_use": "off",
                             "keep_free": "off"}
    a.start()
    place = a.path("state", "evidence.new")
    os.rmdir(place)
    core = crash(a, threads=2)
    wait_for("it cannot be written", lambda: "it is made again when there is space" in a.log, 60)
    a.wait_delivered(1)
    assert_kept(a)
    assert os.path.exists(core)
    os.mkdir(place, 0o700)
    other = a.path("state", "evidence", "snapshot-20260527T051233-1")  # its end is what is awaited
    os.mkdir(a.path("state", "made"))
    with open(a.path("state", "made", "snapshot.json"), "wb") as f:
        f.write(b"{}")
    os.rename(a.path("state", "made"), other)
    a.ask("flush")
    wait_for("the report is there", lambda: reports(a), timeout=60)
    wait_for("the core is deleted", lambda: not os.path.exists(core), timeout=60)
    assert a.log.count("its crash report cannot be written") == 1
    a.stop()


@test
def a_report_for_which_there_is_no_space_is_made_when_others_are_delivered():
    a = node(settle="1s")
    a.config["destinations"][0]["path"] = a.path("later", "archive")
    a.start()
    a.stop()
    waiting = a.path("state", "evidence", "crash-report-process-core-20260527T051233-0123456789ab")
    os.mkdir(waiting, 0o700)
    with open(os.path.join(waiting, "crash.json"), "wb") as f:
        f.truncate((128 << 20) - 4096)  # nearly all that one user may have
    with open(os.path.join(waiting, ".about.json"), "w", encoding="ascii") as f:
        json.dump({"uid": 0, "related": [], "boot": "", "processes": []}, f)
    a.start()
    crash(a, threads=2)
    wait_for("it is refused", lambda: "it is made again when there is space" in a.log, 60)
    assert_kept(a)
    assert a.sql("SELECT count(*) FROM reports_pending") == "1"
    os.makedirs(a.path("later"))
    a.wait_delivered(3)
    (core,) = [b["id"] for b in a.bundles() if b["kind"] == "process-core"]
    assert a.sql(f"SELECT state FROM bundles WHERE subject = '{core}'") == "delivered"
    assert a.sql("SELECT count(*) FROM reports_pending") == "0"
    a.stop()


@test
def a_report_that_dies_costs_only_itself_and_its_bundle_says_so():
    a = node(settle="1s")
    a.start()
    crash(a)
    os.kill(child_of(a), signal.SIGKILL)
    (_, core), (path, _) = core_and_report(a)
    assert core["bundle"]["complete"], core
    document, text = report_in(path)
    assert document["not_made"] == "its reader died by SIGKILL", document
    assert "died by SIGKILL" in text and "No crash report" in text
    crash(a, "core.crasher.2", threads=2)
    a.wait_delivered(4)
    (of,) = [m["bundle"]["id"] for _, m in a.manifests() if "core.crasher.2" in kinds(m)]
    assert functions(report_in(reports(a)[of][0])[0])[0] == "read_through"
    a.stop()


@test
def what_is_no_core_has_a_report_that_says_so():
    a = node(settle="6s")
    with open(a.path("cores", "core.text"), "w", encoding="utf-8") as f:
        f.write("no core\n" * 1000)
    a.start()
    _, (path, _) = core_and_report(a)
    document, _ = report_in(path)
    assert "ELF" in document["not_made"], document
    a.stop()


@test
def a_report_that_is_pending_when_the_agent_is_killed_is_made_once():
    a = node(settle="1s")
    a.start()
    crash(a)
    child_of(a)
    a.wait_delivered(1)
    a.kill()
    a.start()
    _, (path, _) = core_and_report(a)
    assert functions(report_in(path)[0])[0] == "read_through"
    a.kill()
    a.start()
    a.wait_all()
    assert len(bundles(a)) == 2, bundles(a).keys()
    assert a.sql("SELECT n FROM signatures") == "1"
    assert a.sql("SELECT count(*) FROM reports_pending") == "0"
    a.stop()


@test
def a_stop_does_not_wait_for_a_report_and_the_next_agent_makes_it():
    a = node(settle="2s")
    a.start()
    crash(a)
    child_of(a)
    begin = time.monotonic()
    a.stop()
    assert time.monotonic() - begin < 6 * PATIENCE, time.monotonic() - begin
    a.start()
    a.wait_delivered(1)
    wait_for("its report is there", lambda: a.sql("SELECT n FROM signatures") == "1", timeout=60)
    a.stop()


@test
def each_of_two_cores_of_one_name_has_its_own_report():
    a = node(settle="1s")
    a.start()
    crash(a, threads=2)
    child = child_of(a)
    a.wait_delivered(1)
    crash(a, how="abort", threads=2)
    a.wait_known(2)
    os.kill(child, signal.SIGCONT)
    a.wait_delivered(4)
    cores = {i: m for i, (_, m) in bundles(a).items() if m["bundle"]["kind"] == "process-core"}
    first, second = sorted(cores, key=lambda i: cores[i]["created"])
    made = {core: report_in(path)[0]["signal"]["name"] for core, (path, _) in reports(a).items()}
    assert made == {first: "SIGSEGV", second: "SIGABRT"}, made
    a.stop()


@test
def an_agent_killed_at_any_time_leaves_one_report():
    a = node(settle="1s")
    for delay in (0.3, 0.6, 0.9, 1.1, 1.3):
        a.start()
        crash(a, f"core.crasher.{delay}", threads=2)
        time.sleep(delay * PATIENCE)
        a.kill()
    a.start()
    a.wait_delivered(10)
    wait_for("nothing is pending", lambda: a.sql("SELECT count(*) FROM reports_pending") == "0")
    a.wait_all()
    assert len(reports(a)) == 5 and len(bundles(a)) == 10, bundles(a).keys()
    assert all(kinds(m).keys() == PARTS for _, m in reports(a).values()), reports(a)
    a.stop()


@test
def a_core_that_is_gone_before_its_report_is_made_has_one_that_says_so():
    a = node(settle="1s")
    a.start()
    core = crash(a)
    child_of(a)
    a.wait_delivered(1)
    a.kill()
    os.unlink(core)
    shutil.rmtree(a.path(".neuron-collectd"), ignore_errors=True)
    a.start()
    _, (path, _) = core_and_report(a)
    assert report_in(path)[0]["not_made"] == "its core was removed before the report was made"
    a.stop()


def put(a, name, uid):
    with open(a.path("coming"), "w", encoding="ascii") as f:
        f.write("no core of " + name)
    os.chown(a.path("coming"), uid, uid)
    os.rename(a.path("coming"), a.path("cores", name))


def pending(a):
    return int(a.sql("SELECT count(*) FROM reports_pending"))


def open_cores(a):
    n = 0
    for fd in os.listdir(f"/proc/{a.pid}/fd"):
        with contextlib.suppress(OSError):
            n += a.path("cores", "core.") in os.readlink(f"/proc/{a.pid}/fd/{fd}")
    return n


@test
def a_user_with_many_cores_has_a_bounded_number_of_reports_and_a_drain_does_not_wait_for_all():
    need_root()
    a = node(settle="1s")
    for path in (a.path(".neuron-collectd"), a.path("cores", ".neuron-collectd")):
        os.mkdir(path, 0o700)
        os.chown(path, 2001, 2001)  # no links: cores are held open
    a.start()
    put(a, "core.0", 2001)
    child_of(a)
    for n in range(1, 70):
        put(a, f"core.{n}", 2001)
    a.wait_delivered(70)
    assert pending(a) == 64, pending(a)
    assert open_cores(a) <= 17, open_cores(a)  # the child's, too
    wait_for("it is logged", lambda: "crash reports were refused" in a.log)
    draining = subprocess.Popen([CLI, "--socket", a.socket, "drain", "--timeout", "100s"],
                                stdout=subprocess.DEVNULL)
    begin = time.monotonic()
    while draining.poll() is None:
        stop_child(a)
        time.sleep(0.001)
    assert draining.returncode == 0 and time.monotonic() - begin > 25
    a.kill()


@test
def users_take_turns():
    need_root()
    a = node(settle="1s")
    a.start()
    put(a, "core.a.0", 2001)
    child = child_of(a)
    for n in range(1, 4):
        put(a, f"core.a.{n}", 2001)
        put(a, f"core.b.{n}", 2002)
    a.wait_known(7)
    put(a, "core.c.1", 2003)
    a.wait_delivered(8)
    os.kill(child, signal.SIGCONT)
    wait_for("all are made", lambda: pending(a) == 0, timeout=60)
    names = dict(line.split("|") for line in a.sql(
        "SELECT id, path FROM bundles WHERE supplement_of=''").splitlines())
    made = [os.path.basename(names[i])[5] for line in a.log.splitlines()
            if "crash report is made" in line for i in names if i in line]
    assert "".join(made).index("c") <= 2, made
    a.stop()


def stop_reader_of(a, uid, stopped):
    """Stops the reader of a core of this user. A reader may end before it is seen: then another
    core is put there."""
    for i in range(10):
        put(a, f"core.{uid}.{i}", uid)
        deadline = time.monotonic() + 5 * PATIENCE
        while time.monotonic() < deadline:
            pid = stop_child(a)
            if pid and pid not in stopped:
                return pid
            time.sleep(0.0005)
    raise AssertionError(f"no reader of a core of {uid} was seen")


@test
def cores_that_are_costly_hold_up_no_other_user_for_long():
    need_root()
    a = node(settle="1s")
    a.start()
    stopped = []
    for uid in (2001, 2002, 2003):
        stopped.append(stop_reader_of(a, uid, stopped))
    begin = time.monotonic()
    put(a, "core.victim", 2004)
    wait_for("the victim's report is there", lambda: report_named(a, "core.victim"), 60)
    seconds = time.monotonic() - begin
    figures.append(f"beside three costly cores: {seconds:.1f} s")
    in_time(seconds, 30, "the report")  # a reader alone may take 60
    a.kill()


@test
def a_program_that_the_owner_of_the_core_may_not_read_is_not_opened():
    need_root()
    a = node()
    home = a.path("home-of-2002")
    os.mkdir(home)
    program = shutil.copy(CRASHER, home)
    names = {}
    for mode in (0o755, 0o700):
        with core_of(program, "null", "3") as core:
            shutil.copyfile(core, a.path("coming"))
        os.chown(home, 2002, 2002)
        os.chmod(home, mode)
        os.chown(a.path("coming"), 2001, 2001)
        a.start()
        os.rename(a.path("coming"), a.path("cores", f"core.crasher.{mode:o}"))
        path = wait_for("its report is delivered",
                        lambda m=mode: report_named(a, f"core.crasher.{m:o}"), 60)
        names[mode] = functions(report_in(path)[0])
        a.stop()
    assert names[0o755][:3] == ["read_through", "crash", "main"], names
    assert not any(names[0o700]), names


@test
def a_pending_report_is_made_though_its_device_has_another_number_now():
    a = node(settle="1s")
    a.start()
    crash(a, threads=2)
    child_of(a)
    a.wait_delivered(1)
    a.kill()
    a.sql("UPDATE bundles SET unit_dev = unit_dev + 1")
    a.start()
    wait_for("nothing is pending", lambda: pending(a) == 0, timeout=60)
    assert "core was removed" not in a.log, a.log
    a.stop()


@test
def a_pending_report_of_a_source_that_is_configured_no_more_is_not_made():
    a = node(settle="1s")
    a.start()
    crash(a, threads=2)
    child_of(a)
    a.wait_delivered(1)
    a.kill()
    a.config["sources"][0]["name"] = "others"
    a.start()
    wait_for("nothing is pending", lambda: pending(a) == 0)
    a.stop()


@test
def the_job_is_found_by_the_pid_in_the_name_of_the_core():
    a = node(settle="4s")
    a.start()
    a.stop()
    now, job = int(time.time()), {"source": "torchrun", "rank": 3}
    a.sql(f"INSERT INTO jobs VALUES (4711, 1, {os.getuid()}, {now - 60}000000, "
          f"'{json.dumps({'job': job, 'container': None})}')")
    a.start()
    crash(a, f"core.crasher.4711.{now}", threads=2)
    _, (path, _) = core_and_report(a)
    document, text = report_in(path)
    assert document["job"] == job and "torchrun" in text, document["job"]
    a.stop()


KILLED = ("Memory cgroup out of memory: Killed process 4711 (python3) total-vm:9kB, anon-rss:9kB, "
          "file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:1kB oom_score_adj:0")
CONSTRAINT = ("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,mems_allowed=0,"
              "oom_memcg=/slurm,task_memcg=/slurm/job_7,task=python3,pid=4711,uid=1000")


def log_as_kernel(a, *lines):
    """By what stands for /dev/kmsg."""
    with open(a.path("devices", "kmsg"), "a", encoding="ascii") as f:
        for line in lines:
            log_as_kernel.seq += 1
            f.write(f"6,{log_as_kernel.seq},1,-;{line}\n")


log_as_kernel.seq = 0


def wait_for_follower(a):
    def is_followed():
        for pid in family(a.pid):
            with contextlib.suppress(OSError):
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    if os.readlink(f"/proc/{pid}/fd/{fd}") == a.path("devices", "kmsg"):
                        with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii") as f:
                            return f.readline().split()[1] == str(
                                os.path.getsize(a.path("devices", "kmsg")))
        return False
    wait_for("the kernel log is followed", is_followed)


@test
def what_the_kernel_logged_of_the_process_stands_in_its_report():
    a = node(settle="4s")
    log_as_kernel(a, "boot")
    a.start()
    wait_for_follower(a)
    path = crash(a, threads=2)
    pid = report(path)["process"]["pid"]
    wanted = [f"crasher[{pid}]: segfault at 0 ip 1 sp 2 error 4 in crasher[1+2]",
              "mce: [Hardware Error]: Machine check events logged"]
    log_as_kernel(a, wanted[0], f"bash[{pid}]: segfault at 0", wanted[1], "usb 1-1: new device")
    document, text = report_in(core_and_report(a)[1][0])
    assert [line["text"] for line in document["kernel"]] == wanted, document["kernel"]
    assert "Machine check events logged" in text
    a.stop()


def of_kind(a, kind):
    """@return path of the manifest and manifest; None"""
    return next(((p, m) for p, m in a.manifests() if m["bundle"]["kind"] == kind), None)


@test
def a_process_that_the_oom_killer_has_killed_has_a_record_without_a_core():
    a = node()
    log_as_kernel(a, "boot")
    a.start()
    wait_for_follower(a)
    log_as_kernel(a, CONSTRAINT, KILLED)
    path, manifest = wait_for("it is delivered", lambda: of_kind(a, "oom"), timeout=60)
    assert kinds(manifest) == dict.fromkeys(PARTS, "crash-report"), manifest
    assert manifest["source"]["uid"] == 1000, manifest["source"]
    document, text = report_in(path)
    assert document["process"] == {"pid": 4711, "command": "python3", "cgroup": "/slurm/job_7"}
    assert document["verdicts"][0]["rule"] == "out-of-memory"
    assert [line["text"] for line in document["kernel"]] == [CONSTRAINT, KILLED]
    assert "/slurm/job_7" in text
    _, taken = wait_for("so is a snapshot", lambda: of_kind(a, "snapshot"), timeout=90)
    assert taken["bundle"]["related"] == [{"kind": "oom", "id": manifest["bundle"]["id"]}], taken
    a.stop()


@test
def one_user_has_sixty_records_of_the_oom_killer_in_an_hour():
    a = node()
    log_as_kernel(a, "boot")
    a.start()
    wait_for_follower(a)
    log_as_kernel(a, *(KILLED.replace("4711", str(5000 + n)) for n in range(70)),
                  KILLED.replace("4711", "6000").replace("UID:1000", "UID:1001"))

    def recorded():
        return [m["source"]["uid"] for _, m in a.manifests() if m["bundle"]["kind"] == "oom"]
    wait_for("the other user's, too, is delivered", lambda: recorded().count(1001) == 1, timeout=60)
    wait_for("sixty are delivered", lambda: recorded().count(1000) == 60, timeout=60)
    wait_for("what is beyond is logged", lambda: "records of the OOM killer" in a.log)
    a.stop()


@test
def an_operators_snapshot_that_a_kill_joins_is_delivered():
    a = node()
    log_as_kernel(a, "boot")
    a.start()
    wait_for_follower(a)
    asking = subprocess.Popen([CLI, "--socket", a.socket, "snapshot"], stdout=subprocess.DEVNULL)
    wait_for("it is begun", lambda: "taking a snapshot" in a.log)
    log_as_kernel(a, CONSTRAINT, KILLED)
    assert asking.wait(60 * PATIENCE) == 0
    wait_for("it is delivered", lambda: of_kind(a, "snapshot"), timeout=90)
    a.stop()


@test
def a_source_can_go_without():
    a = node(settle="1s", crash_reports=False)
    a.start()
    crash(a, threads=2)
    a.wait_delivered(1)
    assert kinds(a.only_manifest()[1]) == {"core.crasher.1": "elf-core"}
    a.stop()


@test
def once_waits_for_the_report():
    a = node(settle="6s")
    crash(a, threads=2)
    result = a.once()
    assert result.returncode == 0, result.stdout + result.stderr
    core_and_report(a)


@test
def a_bundle_in_a_bucket_has_its_report():
    server = radosgw.shared()
    bucket = new_bucket(server)
    a = node(settle="6s")
    a.config["destinations"] = [a.s3("s3", server, bucket)]
    a.start()
    crash(a, threads=20)
    a.wait_delivered(2)
    path = {m["bundle"]["kind"]: p for p, m in a.manifests(bucket.fetch())}["crash-report"]
    assert functions(report_in(path)[0])[:2] == ["read_through", "crash"]
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
