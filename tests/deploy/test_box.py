#!/usr/bin/env python3
"""The packages in a booted box: from the installation to the purge, as an operator does it."""
import filecmp
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../harness"))
# pylint: disable=wrong-import-position
import make_dump
import radosgw
from agent import cleanup as cleanup_agents, wait_for
from packages import BOX, Box, VENDOR_HOOK, base, build_package, package, repack, run
from s3tools import new_bucket
from tap import figures, main, notes, test
from tcp_proxy import through

MIB = 1 << 20
UPLOAD_BYTES = make_dump.parse_size(os.environ.get("NC_BOX_BYTES", "2GiB"))
SLOWED_SECONDS = 20  # of that upload at least: a third of it is longer than an upgrade
CONNECTIONS = 3
UNIT = "neuron-collectd.service"
CONFIG = "/etc/neuron-collectd/neuron-collectd.yaml"
NODE = "i-0a1b2c3d4e5f60718"
SOURCES = """version: 1
node: {instance_id: %s}
sources:
  - {name: core-dumps, kind: neuron-core-dump, path: %s/dt-%%d-cid-%%c, settle: %s}
"""
ARCHIVE = """destinations:
  - {name: archive, type: volume, path: /srv/archive/%d-%c}
"""
NOWHERE = """destinations:
  - {name: s3, type: s3, bucket: none, region: us-east-1, endpoint: "http://127.0.0.1:9", prefix: x}
"""
_boxes = {}


def new_box():
    return Box(base())


def write_config(box, destinations=ARCHIVE, directory="/tmp/neuron-core-dump", settle="500ms"):
    box.write(CONFIG, SOURCES % (NODE, directory, settle) + destinations)


def shared_box():
    """One with both packages and a running agent; the watchdog is a short one."""
    if "shared" not in _boxes:
        box = _boxes["shared"] = new_box()
        box.install("neuron-collectd", "neuron-collectd-hook")
        box.write(f"/etc/systemd/system/{UNIT}.d/test.conf",
                  "[Service]\nWatchdogSec=2s\nRestartSec=100ms\n")
        box.shell("systemctl daemon-reload; "
                  "install -d -o neuron-collectd -g neuron-collectd -m 0750 /srv/archive")
        write_config(box)
        box.run("systemctl", "enable", "--now", "--quiet", UNIT)
    return _boxes["shared"]


def end(failed):
    if failed and "shared" in _boxes:
        print(_boxes["shared"].run("journalctl", "--no-pager", "-n", "60", check=False).replace(
            "\n", "\n# "))
    cleanup_agents(failed)


def show(box, name, unit=UNIT):
    return box.run("systemctl", "show", "--value", "-p", name, unit).strip()


def is_up_anew(box, pid):
    return show(box, "MainPID") not in (pid, "0") and show(box, "ActiveState") == "active"


def dump_of_a_user(box, directory="/tmp/neuron-core-dump", **more):
    return make_dump.make_dump(box.path(directory), **({"size": 2 * MIB, "owner": (1000, 1000),
                                                        "mode": 0o600, "instance_id": NODE} | more))


def links(box):
    """@return files in directories of links, anywhere in the box"""
    return box.run("find", "/", "/tmp", "-xdev", "-path", "*/.neuron-collectd/*", "-type",
                   "f").splitlines()


@test
def an_installation_starts_nothing_and_five_lines_are_enough():
    box = _boxes["first"] = new_box()
    try:
        box.install("neuron-collectd", "neuron-collectd-hook")
        assert "neuron-collectd" not in box.run("systemctl", "list-units", "--plain", "--no-legend",
                                                "--state=active", "neuron-collectd*")
        assert not os.path.exists(box.path("/etc/neuron-collectd"))
        assert not box.run("find", "/etc", "-name", "*neuron-collectd*").strip()
        assert box.run("systemctl", "is-enabled", UNIT, check=False).strip() == "disabled"
        box.run("systemctl", "enable", "--now", UNIT)
        assert show(box, "ActiveState") == "inactive" and show(box, "ConditionResult") == "no"
        assert os.path.exists(box.path("/usr/share/doc/neuron-collectd/neuron-collectd.yaml"))
        box.shell("install -d -o neuron-collectd -m 0750 /srv/archive")
        five = ("version: 1\nsources:\n  - {name: dumps, kind: neuron-core-dump, "
                "path: /tmp/neuron-core-dump/dt-%d-cid-%c}\n"
                "destinations:\n"
                "  - {name: archive, type: volume, path: /srv/archive/%d-%c}\n")
        box.write(CONFIG, five)
        box.run("systemctl", "enable", "--now", UNIT)
        assert show(box, "ActiveState") == "active"
        box.run("dpkg", "-V", "neuron-collectd", "neuron-collectd-hook")
    finally:
        _boxes.pop("first").remove()


@test
def it_runs_in_its_whole_sandbox_with_three_capabilities():
    box = shared_box()
    status = box.run("cat", f"/proc/{show(box, 'MainPID')}/status")
    assert re.search(r"^CapEff:\s+000000001000000c$", status, re.M), status
    assert re.search(r"^CapBnd:\s+000000001000000c$", status, re.M), status
    assert show(box, "OOMScoreAdjust") == "-900"
    assert re.search(r"^NoNewPrivs:\s+1$", status, re.M) and "Seccomp:\t2" in status, status
    for unit, most in ((UNIT, "25"), ("neuron-collectd-probe@.service", "30")):
        box.run("systemd-analyze", "security", "--no-pager", "--offline=true",
                f"--threshold={most}", f"/usr/lib/systemd/system/{unit}")


@test
def a_dump_of_another_user_is_delivered_bit_for_bit():
    box = shared_box()
    unit = dump_of_a_user(box)
    wait_for("it is seen", lambda: "neuron-core-dump-" in box.run("neuron-collect", "list"), 20)
    box.run("neuron-collect", "wait", "--all", "--timeout", "60s")
    bundle = box.shell("echo /srv/archive/*/*/*.tar.zst").strip()
    run("tar", "--zstd", "--compare", "-f", box.path(bundle), "-C", unit)
    assert not links(box)


@test
def the_hook_in_the_vendors_place_is_answered():
    box = shared_box()
    directory = "/tmp/neuron-core-dump/dt-20260527-051500-cid-00000000000000cc"
    box.write("/tmp/job", f"""mkdir -p {directory} && echo a log >{directory}/{NODE}-nrt-pid-$$.log
{VENDOR_HOOK} --pid $$ --tid $$ --date-time 20260527-051500 --cluster-id 00000000000000cc \\
  --error-code 1200 --error-location nrt_execute --local-output-dir {directory}
echo $? >/tmp/job.exit
sleep 5
""")
    box.run("setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", "env", "-i",
            "PATH=/usr/bin:/bin", "RANK=3", "LOCAL_RANK=3", "WORLD_SIZE=16", "sh",
            "/tmp/job")
    assert box.read("/tmp/job.exit").strip() == "0"
    wait_for("the note is accepted", lambda: "a hook of uid 1000 reported" in box.run(
        "journalctl", "--no-pager", "-u", UNIT), 10)
    box.run("neuron-collect", "wait", "--all", "--timeout", "60s")
    # What a look after the job's end has found may follow in a supplement.
    manifest, = (m for m in box.shell("echo /srv/archive/*-00000000000000cc/*/*.manifest.json").split()
                 if not re.search(r"-s\d+\.manifest", m))
    job = json.loads(box.read(manifest))["incident"]["job"]
    assert (job["rank"], job["world_size"]) == (3, 16), job


@test
def the_watchdog_ends_a_stopped_agent_and_a_crash_restarts_it():
    box = shared_box()
    for sent in ("STOP", "SEGV", "KILL"):
        pid = show(box, "MainPID")
        box.run("kill", f"-{sent}", pid)
        wait_for(f"a new agent after SIG{sent}", lambda p=pid: is_up_anew(box, p), 30)
    assert int(show(box, "NRestarts")) >= 3


@test
def a_reload_takes_a_good_file_and_refuses_a_faulty_one():
    box = shared_box()
    pid = show(box, "MainPID")
    text = box.read(CONFIG)
    box.write(CONFIG, text + "no_such_key: 1\n")
    assert "failed" in box.run("systemctl", "reload", UNIT, check=False)
    wait_for("status names the fault", lambda: "no_such_key" in box.run("neuron-collect", "status"),
             10)
    box.write(CONFIG, text)
    box.run("systemctl", "reload", UNIT)
    wait_for("the fault is gone", lambda: "no_such_key" not in box.run("neuron-collect", "status"),
             10)
    assert show(box, "MainPID") == pid


@test
def an_upgrade_leaves_a_stopped_agent_stopped_and_the_sockets_alone():
    box = shared_box()
    before = show(box, "ActiveEnterTimestampMonotonic", "neuron-collectd-hook.socket")
    box.run("systemctl", "stop", UNIT)
    box.install_file(repack(package("neuron-collectd"), "+stopped"))
    assert show(box, "ActiveState") == "inactive"
    assert show(box, "ActiveEnterTimestampMonotonic", "neuron-collectd-hook.socket") == before
    box.run("systemctl", "start", UNIT)


def s3_destination(way, bucket):
    return f"""destinations:
  - {{name: s3, type: s3, bucket: {bucket.name}, region: us-east-1, endpoint: "{way.endpoint}",
     prefix: dumps, part_size: 8MiB, connections: {CONNECTIONS}}}
"""


def incompressible_dump(box, n_bytes):
    unit = box.path("/var/dumps/dt-20260527-060000-cid-00000000000000ee")
    os.makedirs(unit)
    with open(os.path.join(unit, f"{NODE}-nd0-nc0-pid-1-tid-1-lid-1"), "wb") as f:
        for _ in range(n_bytes // (4 * MIB)):
            f.write(os.urandom(4 * MIB))
    return unit


def do_not_yield(box):
    """An agent that drains gives way to no other programs: the machine runs other tests."""
    wait_for("the dump is found", lambda: "neuron-core-dump-20260527T060000" in box.run(
        "neuron-collect", "list", check=False), 30)
    box.run("neuron-collect", "drain", "--timeout", "1s", check=False)


def of_dumps(keys):
    """Without those of a snapshot that an earlier test's hook has caused."""
    return [k for k in keys if "/neuron-core-dump-" in k]


@test
def an_upgrade_and_a_downgrade_in_the_middle_of_an_upload_continue_it():
    box = shared_box()
    server = radosgw.shared()
    bucket = new_bucket(server)
    proxy, way = through(server)
    box.write("/etc/neuron-collectd/environment",
              f"AWS_ACCESS_KEY_ID={server.access_key}\n"
              f"AWS_SECRET_ACCESS_KEY={server.secret_key}\nAWS_EC2_METADATA_DISABLED=true\n", 0o600)
    box.shell("mkdir -p /var/dumps")
    unit = incompressible_dump(box, UPLOAD_BYTES)
    write_config(box, s3_destination(way, bucket), "/var/dumps")
    packages = [repack(package("neuron-collectd"), "+upgrade"), package("neuron-collectd")]
    proxy.rate = UPLOAD_BYTES / SLOWED_SECONDS
    begun = time.monotonic()
    box.run("systemctl", "restart", UNIT)
    do_not_yield(box)
    ids, n_restarts = set(), 0
    for third, file in enumerate(packages, 1):
        wait_for("a third of it is sent", lambda n=third: proxy.part_bytes >= UPLOAD_BYTES * n // 3,
                 300)
        pid = show(box, "MainPID")
        ids.update(bucket.uploads())
        box.install_file(file)
        assert is_up_anew(box, pid), "the package has not restarted it"
        ids.update(bucket.uploads())
        assert not of_dumps(bucket.bundles()), "it was over before the package was replaced"
        n_restarts += 1
        do_not_yield(box)
    box.run("neuron-collect", "wait", "--all", "--timeout", "600s")
    took = time.monotonic() - begun
    assert len(ids) == 1 and not bucket.uploads(), (ids, bucket.uploads())
    (archive,), (manifest,) = of_dumps(bucket.bundles()), of_dumps(bucket.manifests())
    manifest = json.loads(bucket.read(manifest))
    sent = sum(sum(tries) for tries in proxy.part_bodies().values())
    largest = max(p["bytes"] for p in manifest["bundle"]["parts"])
    excess = sent - manifest["bundle"]["bytes"]
    figures.append(f"{UPLOAD_BYTES / MIB:.0f} MiB, upgrade and downgrade: {took:.0f} s, "
                   f"{excess / MIB:.1f} MiB sent twice, {len(ids)} upload id")
    assert excess <= n_restarts * CONNECTIONS * largest, (excess, largest)
    same = subprocess.run(["sh", "-c", 'rclone cat "$0" | tar --zstd --compare -f - -C "$1"',
                           bucket.remote(archive), unit], env=bucket.environment,
                          check=False, capture_output=True)
    assert same.returncode == 0, same
    run("rm", "-rf", unit)
    box.run("neuron-collect", "resume")


@test
def a_database_of_another_build_is_put_aside_and_kept():
    box = shared_box()
    write_config(box)
    box.run("systemctl", "stop", UNIT)
    state = "/var/lib/neuron-collectd/state.db"
    files = (state, state + "-wal")

    def replace(directory):
        for file in files:
            run("sh", "-euc", f"cat {directory}/{os.path.basename(file)} >{box.path(file)}")
        box.run("rm", "-f", state + "-shm")

    # Not in place: sqlite3 would follow /proc/PID/root to this machine's own.
    with tempfile.TemporaryDirectory() as top:
        for name in ("old", "new"):
            os.mkdir(f"{top}/{name}")
            run("cp", *map(box.path, files), f"{top}/{name}")
        # Another build's agent that was killed: its version is in the log alone.
        run("python3", "-c", "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1]); "
            "db.executescript('pragma wal_autocheckpoint = 0; pragma user_version = 4711'); "
            "os._exit(0)", f"{top}/new/state.db")
        assert filecmp.cmp(f"{top}/old/state.db", f"{top}/new/state.db", shallow=False)
        replace(f"{top}/new")
        box.run("systemctl", "start", UNIT)
        aside = box.shell(f"ls -d {state}.other-build-* | grep -v -e -wal -e -shm").strip()

        def says_where_it_is():  # the journal has it a moment later
            said = box.run("journalctl", "--no-pager", "-n", "20", "-u", UNIT)
            return f"it was put aside as '{os.path.basename(aside)}'" in said
        wait_for("the journal names the file", says_where_it_is, 20)
        box.run("systemctl", "stop", UNIT)
        for suffix, name in (("", "state.db"), ("-wal", "state.db-wal")):
            assert filecmp.cmp(box.path(aside + suffix), f"{top}/new/{name}", shallow=False), name
        # The other tests continue with the state that they had.
        replace(f"{top}/old")
    box.run("systemctl", "start", UNIT)


@test
def a_removal_keeps_the_state_and_an_installation_goes_on_with_it():
    box = shared_box()
    before = box.run("neuron-collect", "list")
    box.run("dpkg", "-r", "neuron-collectd")
    assert not box.run("pgrep", "neuron-collectd", check=False).strip()
    assert not box.run("find", "/etc/systemd", "-name", "neuron-collectd*.s*").strip().replace(
        f"/etc/systemd/system/{UNIT}.d", "")
    assert os.path.exists(box.path("/var/lib/neuron-collectd/state.db"))
    box.install("neuron-collectd")
    assert show(box, "ActiveState") == "inactive"
    box.run("systemctl", "enable", "--now", "--quiet", UNIT)
    wait_for("the list is what it was", lambda: box.run("neuron-collect", "list") == before, 10)


@test
def a_purge_says_what_was_never_delivered_and_removes_state_and_links():
    box = shared_box()
    box.shell("install -d -m 1777 /srv/dumps; rm -rf /tmp/neuron-core-dump/*")
    write_config(box, NOWHERE, "/srv/dumps")
    box.run("systemctl", "restart", UNIT)
    kept = dump_of_a_user(box, "/srv/dumps", cluster_id="00000000000000a1")
    gone = dump_of_a_user(box, "/srv/dumps", cluster_id="00000000000000a2")
    wait_for("both are held", lambda: len({path.split("/")[-2] for path in links(box)}) == 2, 20)
    run("rm", "-rf", gone)
    # their source is configured no more
    write_config(box, NOWHERE.replace("prefix: x", 'prefix: "${PREFIX}"'))
    box.write("/etc/sysconfig/neuron-collectd", "PREFIX=x\n")
    box.run("systemctl", "restart", UNIT)
    said = box.run("dpkg", "-P", "neuron-collectd")
    assert len(re.findall(r"^  neuron-core-dump-\S+ (settling|ready|shipping) core-dumps$", said,
                          re.M)) == 2, said
    assert not links(box)
    for place in ("/var/lib/neuron-collectd", "/var/lib/neuron-collectd.remains",
                  "/run/neuron-collectd", "/srv/.neuron-collectd", "/srv/dumps/.neuron-collectd",
                  "/tmp/.neuron-collectd", "/tmp/neuron-core-dump",
                  "/var/lib/systemd/.neuron-collectd"):
        assert not os.path.exists(box.path(place)), place
    assert os.path.isdir(kept) and os.path.exists(box.path(CONFIG))
    assert not box.run("dpkg", "--audit").strip()


def as_user(box, text):
    return box.run("setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", "sh", "-euc",
                   text)


@test
def a_purge_follows_no_users_link_and_ends_whatever_stays():
    box = _boxes["purge"] = new_box()
    precious = f"/srv/archive/{NODE}/precious"
    jobs, home = f"/srv/jobs/.neuron-collectd/{NODE}", f"/srv/home/dumps/.neuron-collectd/{NODE}"
    try:
        box.install("neuron-collectd")
        # a user's directories, one of them private, and a path through a link
        box.shell(f"install -d -o 1000 -m 1777 /srv/jobs /srv/jobs/dumps /srv/home/dumps; "
                  f"chown 1000 /srv/home; chmod 0700 /srv/home; ln -s home /srv/link; "
                  f"install -d -o neuron-collectd /srv/archive/{NODE}; "
                  f"install -o neuron-collectd /dev/null {precious}")
        other = "  - {name: jobs, kind: neuron-core-dump, path: /srv/jobs/dumps/dt-%d-cid-%c}\n"
        write_config(box, other + NOWHERE, "/srv/link/dumps")
        box.run("systemctl", "start", UNIT)
        for directory in ("/srv/jobs/dumps", "/srv/home/dumps"):
            dump_of_a_user(box, directory)
        wait_for("both are held", lambda: all(any(path.startswith(place) for path in links(box))
                                              for place in (jobs, home)), 20)
        box.run("dpkg", "-r", "neuron-collectd")
        as_user(box, "cd /srv/jobs; mv .neuron-collectd x; ln -s /srv/archive .neuron-collectd")
        for mounted in (home, "/var/lib/neuron-collectd"):
            box.run("mount", "--bind", mounted, mounted)
        said = box.run("dpkg", "-P", "neuron-collectd")
        assert os.path.exists(box.path(precious)), "a destination is lost"
        assert f"'{jobs}' is not removed" in said and f"'{home}' is not removed" in said, said
        assert "not all of /var/lib/neuron-collectd" in said, said
        assert os.listdir(box.path(home)) == [], "only the mount point itself is busy"
        assert not box.run("dpkg", "--audit").strip()
        assert "neuron-collectd" not in box.run("dpkg-query", "-W")
    finally:
        _boxes.pop("purge").remove()


@test
def a_squatter_in_tmp_breaks_no_installation():
    box = _boxes["squat"] = new_box()
    try:
        as_user(box, "echo mine >/tmp/neuron-core-dump; mkdir /tmp/.neuron-collectd")
        # as a user's mount of FUSE, it refuses what root wants there
        box.run("mount", "-t", "tmpfs", "-o", "ro", "squat", "/tmp/.neuron-collectd")
        box.install("neuron-collectd")
        assert box.run("dpkg-query", "-W", "-f", "${db:Status-Status}",
                       "neuron-collectd") == "installed"
        assert os.path.isdir(box.path("/var/lib/neuron-collectd/mailbox"))
        assert box.read("/tmp/neuron-core-dump") == "mine\n"
    finally:
        _boxes.pop("squat").remove()


def directory_of_links(box, path):
    box.shell(f"install -d -o neuron-collectd -m 0700 {os.path.dirname(path)} {path}; "
              f"install -o neuron-collectd /dev/null {path}/link")


@test
def a_purge_knows_what_the_removal_and_the_agent_wrote_down_and_says_what_it_does_not_know():
    box = _boxes["lists"] = new_box()
    by_both, by_agent, gone = (f"/srv/{n}/.neuron-collectd/{NODE}" for n in ("a", "b", "gone"))
    try:
        for has_remains in (False, True):
            box.install("neuron-collectd")
            for place in (by_both, by_agent):
                directory_of_links(box, place)
            box.write("/var/lib/neuron-collectd/state.db", "")
            box.write("/var/lib/neuron-collectd/link-directories",
                      f"\n{by_both}\n\n{gone}\n\n{by_agent}\n")
            box.run("dpkg", "-r", "neuron-collectd")  # without a configuration
            if has_remains:
                box.write("/var/lib/neuron-collectd.remains", f"{by_both}\n\n")
            said = box.run("dpkg", "-P", "neuron-collectd")
            assert ("directories named .neuron-collectd" in said) != has_remains, said
            assert "is not removed" not in said, "an alarm for what is gone"
            assert not links(box), (has_remains, said)
    finally:
        _boxes.pop("lists").remove()


# A FUSE file system that never answers, as a share whose server is away: each access waits. Mounted
# from outside of the box, which has neither Python nor /dev/fuse.
DEAD_SHARE = """
import ctypes, os, sys, time
pid, path = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
fuse, namespace = os.open("/dev/fuse", os.O_RDWR), os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
assert libc.setns(namespace, 0x20000) == 0, os.strerror(ctypes.get_errno())
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
assert libc.mount(b"dead", path.encode(), b"fuse.dead", 0, options) == 0, os.strerror(
    ctypes.get_errno())
print("mounted", flush=True)
time.sleep(3600)
"""


@test
def a_purge_ends_when_a_share_does_not_answer_and_says_what_stays():
    box = _boxes["dead"] = new_box()
    directory = f"/srv/dead/.neuron-collectd/{NODE}"
    try:
        box.install("neuron-collectd")
        box.write("/var/lib/neuron-collectd/link-directories", directory + "\n")
        box.run("dpkg", "-r", "neuron-collectd")
        box.shell("mkdir /srv/dead; "
                  "sed -i 's/ -k 1 60 / -k 1 2 /' /var/lib/dpkg/info/neuron-collectd.postrm")
        share = subprocess.Popen([sys.executable, "-c", DEAD_SHARE, box.root.split("/")[2],
                                  "/srv/dead"], stdout=subprocess.PIPE)
        try:
            assert share.stdout.readline() == b"mounted\n"
            said = box.run("timeout", "30", "dpkg", "-P", "neuron-collectd")
        finally:
            share.kill()
            share.wait()
        assert f"'{directory}' is not removed" in said, said
        assert not os.path.exists(box.path("/var/lib/neuron-collectd"))
    finally:
        _boxes.pop("dead").remove()


@test
def on_a_full_disk_a_removal_ends_and_a_purge_says_that_it_does_not_know():
    box = _boxes["full"] = new_box()
    try:
        box.install("neuron-collectd")
        write_config(box, NOWHERE)
        box.run("systemctl", "start", UNIT)
        dump_of_a_user(box)
        wait_for("it is held", lambda: links(box), 20)
        # where the removal writes what remains
        box.shell("mkdir /full; mount -t tmpfs -o size=4k full /full; "
                  "head -c 4k /dev/zero >/full/x; "
                  "ln -s /full/remains /var/lib/neuron-collectd.remains.new")
        said = box.run("dpkg", "-r", "neuron-collectd")
        assert "No space left" in said, said
        said = box.run("dpkg", "-P", "neuron-collectd")
        assert "what was never delivered is not known" in said and not links(box), said
    finally:
        _boxes.pop("full").remove()


VENDOR = "#!/bin/sh\n# the vendor's, {}\n"


def vendor_package(version):
    """It has other programs as well: dpkg forgets a package whose files are all in others."""
    return build_package("aws-neuronx-tools", version, {
        VENDOR_HOOK: VENDOR.format(version),
        os.path.dirname(VENDOR_HOOK) + "/neuron-ls": VENDOR.format(version)})


@test
def the_vendors_hook_comes_back_whatever_the_order_of_packages():
    box = _boxes["vendor"] = new_box()
    aside = VENDOR_HOOK + ".vendor"
    try:
        def is_ours():
            return VENDOR_HOOK in box.run("dpkg-divert", "--list") and "neuron-collectd" in box.run(
                VENDOR_HOOK, "--version")
        box.install("neuron-collectd-hook")
        box.install_file(vendor_package("1.0"))
        assert is_ours() and box.read(aside) == VENDOR.format("1.0")
        box.install_file(vendor_package("2.0"))
        assert is_ours() and box.read(aside) == VENDOR.format("2.0")
        box.install_file(repack(package("neuron-collectd-hook"), "+next"))
        assert is_ours() and box.read(aside) == VENDOR.format("2.0")
        os.symlink("neuron-dump.vendor", box.path(VENDOR_HOOK + ".chain"))
        box.run("dpkg", "-r", "neuron-collectd-hook")
        assert box.read(VENDOR_HOOK) == VENDOR.format("2.0")
        assert not any(os.path.lexists(box.path(VENDOR_HOOK + s)) for s in (".vendor", ".chain"))
        # by the command line first, then by the package
        box.install("neuron-collectd")
        box.run("neuron-collect", "hook", "install")
        box.install("neuron-collectd-hook")
        assert is_ours() and box.read(aside) == VENDOR.format("2.0")
        # the command line puts it back behind the package's back
        box.run("neuron-collect", "hook", "remove")
        assert box.read(VENDOR_HOOK) == VENDOR.format("2.0")
        box.run("dpkg", "-P", "neuron-collectd-hook", "neuron-collectd")
        assert box.read(VENDOR_HOOK) == VENDOR.format("2.0")
        # without a package of the vendor's
        box.run("dpkg", "-P", "aws-neuronx-tools")
        box.install("neuron-collectd")
        box.run("mkdir", "-p", os.path.dirname(VENDOR_HOOK))
        box.run("neuron-collect", "hook", "install")
        box.install("neuron-collectd-hook")
        assert is_ours() and not os.path.exists(box.path(aside)), "ours, as if the vendor's"
        box.run("dpkg", "-P", "neuron-collectd-hook", "neuron-collectd")
        assert not os.path.exists(box.path(VENDOR_HOOK)), "ours, an orphan"
        # the command line has put the vendor's aside, which an upgrade brings back
        box.install("neuron-collectd")
        box.install_file(vendor_package("1.0"))
        box.run("neuron-collect", "hook", "install")
        box.install_file(vendor_package("2.0"))
        for _ in range(2):
            box.install("neuron-collectd-hook")
            assert is_ours() and box.read(aside) == VENDOR.format("2.0")
        box.run("dpkg", "-P", "neuron-collectd-hook", "neuron-collectd")
        assert box.read(VENDOR_HOOK) == VENDOR.format("2.0") and not os.path.exists(box.path(aside))
        box.run("dpkg", "-P", "aws-neuronx-tools")
        # by hand
        box.write(VENDOR_HOOK, VENDOR.format("by hand"), 0o755)
        box.install("neuron-collectd-hook")
        assert is_ours()
        box.run("dpkg", "-P", "neuron-collectd-hook")
        assert box.read(VENDOR_HOOK) == VENDOR.format("by hand")
        assert not box.run("dpkg-divert", "--list", "*neuron*").strip()
    finally:
        _boxes.pop("vendor").remove()


def run_and_kill(box, seconds, *command):
    """dpkg and its scripts die together, as when a machine does. @return whether it was killed"""
    process = subprocess.Popen([BOX, "run", box.name, *command], env=box.environment,
                               start_new_session=True, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        wait_for("its last process has ended", lambda: not box.run("pgrep", "-f", "dpkg",
                                                                   check=False).strip(), 10)
        return True


@test
def twenty_kills_of_dpkg_break_no_package():
    seed = int(os.environ.get("NC_SEED", time.time_ns() % 100000))
    notes.append(f"again with NC_SEED={seed}")
    rng = random.Random(seed)
    box = _boxes["kills"] = new_box()
    files = [box.copy(package(n))[0] for n in ("neuron-collectd", "neuron-collectd-hook")]
    names = ["neuron-collectd", "neuron-collectd-hook"]
    commands = {"install": ("dpkg", "-i", *files), "remove": ("dpkg", "-r", *names),
                "purge": ("dpkg", "-P", *names)}
    killed = n_reinstalled = 0
    try:
        box.install_file(vendor_package("1.0"))
        write_config(box, NOWHERE, settle="20m")
        times = {}
        for what, command in commands.items():
            begun = time.monotonic()
            box.run(*command)
            times[what] = time.monotonic() - begun
        for i in range(20):
            what = rng.choice(("install", "remove", "purge"))
            if what != "install":
                box.run(*commands["install"])
                box.shell(f"rm -rf /tmp/neuron-core-dump/*; systemctl start {UNIT}")
                dump_of_a_user(box, cluster_id=f"{i:016x}")
                wait_for("it is held", lambda: links(box), 20)
            killed += run_and_kill(box, rng.uniform(0.02, times[what]), *commands[what])
            said = box.run("dpkg", "--configure", "-a", check=False)
            if "reinstall it" in said:  # killed while it unpacked: dpkg's own words
                box.run(*commands["install"])
                n_reinstalled += 1
            else:
                assert "error" not in said, said
            box.run(*commands[what])
            assert not box.run("dpkg", "--audit").strip(), what
            box.run(*commands["purge"])
            assert not box.run("dpkg", "--audit").strip(), what
            assert box.read(VENDOR_HOOK) == VENDOR.format("1.0")
            assert not box.run("dpkg", "-V", "aws-neuronx-tools").strip()
            assert not os.path.exists(box.path(VENDOR_HOOK + ".vendor"))
            assert not box.run("dpkg-divert", "--list", "*neuron*").strip()
            assert not links(box), what
            assert not os.path.exists(box.path("/var/lib/neuron-collectd"))
        figures.append(f"{killed} of 20 were killed before they ended, {n_reinstalled} had to be "
                       f"installed again; seed {seed}")
        assert killed >= 10
    finally:
        _boxes.pop("kills").remove()


if __name__ == "__main__":
    try:
        STATUS = main(end)
    finally:
        for left in _boxes.values():
            left.remove()
    sys.exit(STATUS)
