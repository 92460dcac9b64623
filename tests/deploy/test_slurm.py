#!/usr/bin/env python3
"""deploy/slurm with a real Slurm: what a failed job leaves is delivered before its node gets the
next job, and nothing that happens to the agent or the store drains the node."""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
HARNESS = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness")
sys.path.insert(0, HARNESS)
# pylint: disable=wrong-import-position
# The programs and scripts of the package, where there is one.
tempfile.tempdir = "/var/tmp"  # below /tmp a job that has its own would not see the scripts
_unpacked = tempfile.TemporaryDirectory(prefix="neuron-slurm-package.")
ROOT = _unpacked.name
if os.environ.get("NC_DEB_DIR"):
    subprocess.run(["sh", "-c", 'dpkg-deb -x "$1"/neuron-collectd_*.deb "$2"', "sh",
                    os.environ["NC_DEB_DIR"], ROOT], check=True)
    os.environ |= {"NEURON_COLLECTD": f"{ROOT}/usr/sbin/neuron-collectd",
                   "NEURON_COLLECT": f"{ROOT}/usr/bin/neuron-collect"}
import slurm
from agent import (BUILD_DIR, DAEMON, INSTANCE, SOURCE_DIR, Agent, check_bundle, cleanup,
                   need_root, run, wait_for)
from servers import Home
from slurm import Slurm
from tap import figures, in_time, main, test

DUMPS = "/var/lib/neuron-dumps"
SCRIPTS = f"{ROOT}/usr/share/neuron-collectd/slurm"
HOOK = f"{ROOT}/usr/libexec/neuron-collectd/neuron-dump"
if not os.path.exists(HOOK):
    SCRIPTS, HOOK = f"{SOURCE_DIR}/deploy/slurm", f"{BUILD_DIR}/neuron-dump"
LIMIT = 8

# A rank that fails: the runtime expands %d and %c, writes, and calls the hook.
FAIL = f"""
[ -n "$NEURON_RT_LOCAL_CORE_DUMP_DIRECTORY" ] || exit 9
unit=$(echo "$NEURON_RT_LOCAL_CORE_DUMP_DIRECTORY" |
	sed -e s/%d/20260527-051233/ -e s/%c/d99e36ea74c263ca/)
echo "$unit" >unit.$SLURM_JOB_ID
python3 {HARNESS}/make_dump.py dump "${{unit%/*}}" --directory "${{unit##*/}}" --size "$SIZE" \\
	--pid $$
{HOOK} --pid $$ --tid $$ --log-id 1 --date-time 20260527-051233 \\
	--cluster-id d99e36ea74c263ca --instance-id {INSTANCE} --error-location nrt_execute \\
	--error-code 1200 --local-output-dir "$unit"
exit 1
"""

_home = []
_clusters = []


def home():
    if not _home:
        need_root()
        _home.append(Home("slurm"))
        slurm.enter(_home[0])
        _home[0].write("log", "")
        logger = _home[0].write(
            "logger", "#!/bin/sh\nshift 4\nif [ $# -gt 0 ]; then echo $*; else cat; fi "
            f">>{_home[0].path('log')}\n")
        os.chmod(logger, 0o755)
        slurm.place(_home[0], logger, "/usr/local/bin/logger")
    return _home[0]


def clean_up(failed=False):
    try:
        if failed:
            for s in _clusters:
                print("# " + s.words().replace("\n", "\n# "))
        for s in _clusters:
            s.stop()
        cleanup(failed)
    finally:
        _clusters.clear()
        if _home:
            run("sh", "-c", f"rm -rf {DUMPS}/* /var/lib/.neuron-collectd "
                "/var/lib/neuron-collectd/* /run/neuron-collectd/*")
            _home[0].write("log", "")


def logged():
    """What the Epilog has said, lines"""
    with open(home().path("log"), encoding="utf-8") as f:
        return f.read().splitlines()


def install(name, limit=None, dumps=DUMPS):
    """As an operator does it: a copy, with another limit and directory."""
    with open(os.path.join(SCRIPTS, name), encoding="utf-8") as f:
        text = f.read()
    if limit:
        assert "\nlimit=240\n" in text
        text = text.replace("\nlimit=240\n", f"\nlimit={limit}\n")
    path = home().write(name, text.replace(f"={DUMPS}", f"={dumps}"))
    os.chmod(path, 0o755)
    return path


def cluster(limit=LIMIT, epilog=None, **more):
    s = Slurm(home(), TaskProlog=install("task-prolog"),
              Epilog=epilog or install("epilog", limit), **more)
    _clusters.append(s)
    return s.start()


class SystemAgent(Agent):
    @property
    def socket(self):
        return "/run/neuron-collectd/api.sock"


def agent(**more):
    """At the paths that the scripts know."""
    home()
    a = SystemAgent(**more)
    a.config |= {
        "sources": [{"name": "core-dumps", "kind": "neuron-core-dump",
                     "path": f"{DUMPS}/job-%l-dt-%d-cid-%c", "settle": "10s"}],
        "api": {"socket": "/run/neuron-collectd/api.sock"},
        "hook": {"socket": "/run/neuron-collectd/hook.sock"},
        "snapshot": {"enabled": False}}
    return a


def configure(a):
    """For a sweep: all that the installed program finds."""
    a.config["state_directory"] = "/var/lib/neuron-collectd"
    a.config["hook"]["mailbox"] = "/var/lib/neuron-collectd/mailbox"
    a.write_config()
    os.chmod(a.out, 0o777)
    configured = re.search(r"--config FILE +.*default: (\S+)\)", run(DAEMON, "--help").stdout)[1]
    slurm.place(home(), a.config_file, configured)


def leave(directory, uid=0):
    """What a job leaves."""
    os.makedirs(f"{DUMPS}/{directory}")
    with open(f"{DUMPS}/{directory}/{INSTANCE}-nrt-pid-1.log", "w", encoding="ascii") as f:
        f.write("x")
    os.chown(f"{DUMPS}/{directory}", uid, uid)


def run_epilog(job, limit=60, uid=0):
    """As slurmd runs it. @return seconds"""
    begun = time.monotonic()
    result = run("env", "-i", f"SLURM_JOB_ID={job}", f"SLURM_JOB_UID={uid}",
                 install("epilog", limit))
    assert result.returncode == 0, result
    return time.monotonic() - begun


def wait_idle(s, job, a):
    """@return what was delivered when the node was free again, and the node's state then"""
    s.wait_ended(job)
    while True:
        manifests = a.manifests()  # before the state: this was there when the node was free
        state = s.state()
        if state in slurm.DONE:
            return manifests, state
        time.sleep(0.02)


def unit_of(job):
    with open(home().path("job", f"unit.{job}"), encoding="utf-8") as f:
        return f.read().strip()


@test
def a_dump_of_1_gib_is_delivered_before_the_node_is_idle():
    a = agent().start()
    s = cluster(limit=120)
    begun = time.monotonic()
    job = s.submit(FAIL, SIZE="1GiB")
    manifests, state = wait_idle(s, job, a)
    figures.append(f"1 GiB: idle {time.monotonic() - begun:.1f} s after sbatch")
    assert state == "idle", (state, s.output(job))
    assert len(manifests) == 1, manifests
    assert unit_of(job).startswith(f"{DUMPS}/job-{job}-dt-"), unit_of(job)
    check_bundle(manifests[0][0], unit_of(job), tools=("tar",))


@test
def without_the_epilog_the_node_is_idle_first():
    a = agent().start()
    s = cluster(epilog=shutil.which("true"))
    manifests, state = wait_idle(s, s.submit(FAIL, SIZE="1GiB"), a)
    assert state == "idle" and not manifests
    a.wait_delivered(1)


def bounded(s, a, job):
    """The node comes back within the bound, with 2 s for Slurm itself."""
    s.wait_ended(job)
    begun = time.monotonic()
    _, state = wait_idle(s, job, a)
    took = time.monotonic() - begun
    figures.append(f"idle {took:.1f} s after the end of the job, {LIMIT} s are the bound")
    assert state == "idle", (state, s.run("sinfo", "-R").stdout)
    in_time(took, LIMIT + 2, "the node")
    return took


@test
def with_the_store_down_the_node_is_idle_within_the_bound():
    a = agent()
    a.config["destinations"][0]["path"] = "/proc/nowhere/%d-%c"
    a.start()
    s = cluster()
    took = bounded(s, a, s.submit(FAIL, SIZE="1MiB"))
    assert took > LIMIT - 5, "it did not wait"
    assert len(logged()) == 1 and "not delivered: " in logged()[0], logged()
    # A job that leaves nothing does not wait for what another one has left.
    begun = time.monotonic()
    s.wait_idle(s.submit("exit 0\n"))
    in_time(time.monotonic() - begun, LIMIT - 4, "another job")
    assert a.counts()["delivered"] == 0 and a.counts()["ready"] + a.counts()["shipping"] == 1
    assert len(logged()) == 1, logged()


@test
def the_bound_is_one_for_all_bundles_of_a_job():
    a = agent()
    a.config["destinations"][0]["path"] = "/proc/nowhere/%d-%c"
    a.start()
    s = cluster()
    job = s.submit(f"""
for n in $(seq 10 29); do
	unit={DUMPS}/job-$SLURM_JOB_ID-dt-20260527-0512$n-cid-aa
	mkdir $unit && echo x >$unit/{INSTANCE}-nrt-pid-1.log
done
""")
    bounded(s, a, job)
    assert len(logged()) == 20 and all(f"job {job}: " in w for w in logged()), logged()


@test
def an_agent_that_hangs_does_not_drain_the_node():
    a = agent().start()
    s = cluster()
    os.kill(a.pid, signal.SIGSTOP)
    bounded(s, a, s.submit(FAIL, SIZE="1MiB", NEURON_COLLECTD_DEADLINE="200ms"))
    assert len(logged()) == 1 and "no answer within 8 s" in logged()[0], logged()
    os.kill(a.pid, signal.SIGCONT)
    a.wait_delivered(1)


@test
def an_agent_that_hangs_is_logged_also_when_neuron_collect_gives_up_first():
    a = agent(owner=64101)
    a.prefix = ["setpriv", "--reuid", "64101", "--regid", "64101", "--clear-groups"]
    configure(a)
    a.start()
    os.kill(a.pid, signal.SIGSTOP)
    try:
        leave("job-7-dt-20260527-051233-cid-aa")
        took = run_epilog(7, limit=36)
    finally:
        os.kill(a.pid, signal.SIGCONT)
    assert 30 <= took < 36 + 5, took
    assert any("another agent has the state directory" in w for w in logged()), logged()


@test
def what_the_agent_has_not_seen_is_logged():
    a = agent()
    a.config["sources"][0]["path"] = a.path("elsewhere", "dt-%d-cid-%c")
    a.start()
    leave("job-7-dt-20260527-051233-cid-aa")
    os.makedirs(f"{DUMPS}/job-8-dt-20260527-051233-cid-aa")
    run_epilog(8)
    assert not logged(), "an empty directory"
    run_epilog(7)
    assert len(logged()) == 1 and "has not seen" in logged()[0], logged()


@test
def a_directory_of_another_user_that_bears_the_id_is_not_waited_for():
    a = agent()
    a.config["sources"][0]["settle"] = "10m"
    a.start()
    leave("job-7-dt-20260527-051233-cid-aa", uid=64102)
    a.wait_known(1)
    took = run_epilog(7, limit=40, uid=64103)
    assert took < 15 and not logged(), (took, logged())
    leave("job-7-dt-20260527-051234-cid-bb", uid=64103)  # beside it, the job's own
    a.wait_known(2)
    run_epilog(7, limit=12, uid=64103)
    own = [b["id"] for b in a.bundles() if b["path"].endswith("cid-bb")]
    assert len(logged()) == 1 and own[0] in logged()[0], (own, logged())


@test
def without_programs_the_epilog_exits_0():
    path = install("epilog", LIMIT)
    leave("job-7-dt-20260527-051233-cid-aa")
    result = run("env", "-i", "SLURM_JOB_ID=7", "unshare", "--mount", "sh", "-c",
                 "mount -t tmpfs none /usr/local && mkdir /usr/local/bin && "
                 f"cp {home().path('logger')} /usr/local/bin && exec {path}")
    assert result.returncode == 0 and not logged(), (result, logged())
    assert run("env", "-i", path).returncode == 0, "no job id"


@test
def a_killed_epilog_exits_0_at_once_and_leaves_nothing_running():
    a = agent()
    a.config["destinations"][0]["path"] = "/proc/nowhere/%d-%c"
    a.start()
    leave("job-7-dt-20260527-051233-cid-00")
    a.wait_known(1)
    with subprocess.Popen(["env", "-i", "SLURM_JOB_ID=7", install("epilog", 60)]) as epilog:
        wait_for("it waits for a bundle", waiting)
        begun = time.monotonic()
        epilog.terminate()  # it alone, as an operator does it
        status = epilog.wait()
    in_time(time.monotonic() - begun, 1, "a killed Epilog")
    assert status == 0, status
    wait_for("its programs have ended", lambda: not waiting(), 5)


def waiting():
    """@return whether an Epilog's neuron-collect waits for a bundle"""
    return run("pgrep", "--ns", str(os.getpid()), "--nslist", "mnt", "-f", "-x",
               "neuron-collect wait .* --timeout [0-9]*s").returncode == 0


@test
def an_epilog_that_fails_drains_the_node():
    """So an idle node shows that ours has not."""
    home()
    s = cluster(epilog=shutil.which("false"))
    s.wait_idle(s.submit("exit 0\n"))
    wait_for("the node is drained", lambda: s.state() == "drained")
    assert "Epilog error" in s.run("sinfo", "-h", "-R").stdout


@test
def without_an_agent_a_sweep_delivers():
    a = agent()
    a.config["sources"][0]["settle"] = "500ms"
    configure(a)
    s = cluster(limit=60)
    job = s.submit(FAIL, SIZE="16MiB", NEURON_COLLECTD_DEADLINE="200ms")
    manifests, state = wait_idle(s, job, a)
    assert state == "idle" and len(manifests) == 1, (state, manifests)
    check_bundle(manifests[0][0], unit_of(job), tools=("tar",))
    assert os.stat("/var/lib/neuron-collectd/state.db").st_uid == 64101, "it belongs to root"
    assert not logged(), logged()
    # A sweep that fails is logged; where a job has left nothing there is none.
    a.config["destinations"][0]["path"] = "${ARCHIVE}/%d-%c"
    configure(a)
    run_epilog(job + 1)
    assert not logged(), logged()
    run_epilog(job, uid=64102)
    assert "not delivered" in logged()[0] and any("ARCHIVE" in w for w in logged()), logged()


@test
def a_private_tmp_is_gone_before_the_epilog_and_the_dump_directory_is_not():
    """Why the dump directory is not in /tmp."""
    a = agent().start()
    base = home().path("job-container")
    found = f"find {base} -name in-tmp"
    look = home().write("look", f"#!/bin/sh\nexec >{home().path('job')}/in-epilog\n{found} /tmp\n"
                        f"ls -d {DUMPS}/job-$SLURM_JOB_ID-*\nexec {install('epilog', 60)}\n")
    os.chmod(look, 0o755)
    home().write("job_container.conf", f"AutoBasePath=true\nBasePath={base}\n")
    s = cluster(epilog=look, JobContainerType="job_container/tmpfs", PrologFlags="Contain")
    unit = f"{DUMPS}/job-%s-dt-20260527-051233-cid-d99e36ea74c263ca"
    job = s.submit("echo evidence >/tmp/in-tmp && cat /tmp/in-tmp\n" + FAIL, SIZE="1MiB")
    manifests, state = wait_idle(s, job, a)
    assert "evidence" in s.output(job), s.output(job)
    with open(home().path("job", "in-epilog"), encoding="utf-8") as f:
        assert f.read().split() == [unit % job]
    assert state == "idle" and len(manifests) == 1, (state, manifests)


@test
def a_directory_of_the_users_own_is_kept():
    home()
    s = cluster()
    script = 'echo "${NEURON_RT_LOCAL_CORE_DUMP_DIRECTORY-unset}"\n'
    name = "NEURON_RT_LOCAL_CORE_DUMP_DIRECTORY"
    outer = f"{DUMPS}/job-1000-dt-%d-cid-%c"  # handed on by an sbatch in a job
    jobs = [s.submit(script, **v) for v in ({}, {name: "/fsx/mine"}, {name: ""}, {name: outer})]
    for job in jobs:
        s.wait_idle(job)
    assert [s.output(job).strip() for job in jobs] == [
        f"{DUMPS}/job-{jobs[0]}-dt-%d-cid-%c", "/fsx/mine", "",
        f"{DUMPS}/job-{jobs[3]}-dt-%d-cid-%c"]


PRINT = 'echo "${NEURON_RT_LOCAL_CORE_DUMP_DIRECTORY-unset}"; exit 3\n'


@test
def nodes_that_nobody_has_set_up_run_jobs_as_before():
    s = Slurm(home(), TaskProlog=install("task-prolog", dumps="/nowhere"),
              Epilog=install("epilog", LIMIT, "/nowhere"))
    _clusters.append(s)
    job = s.start().submit(PRINT)
    assert s.wait_idle(job) == "idle"
    assert s.output(job) == "unset\n", s.output(job)
    assert "ExitCode=3:0" in s.run("scontrol", "show", "job", str(job)).stdout
    assert not logged(), logged()


@test
def a_task_prolog_that_is_not_there_fails_each_job():
    """Why the documentation puts it where all nodes have it."""
    s = Slurm(home(), TaskProlog="/nowhere/task-prolog")
    _clusters.append(s)
    job = s.start().submit(PRINT)
    s.wait_idle(job)
    assert "unset" not in s.output(job) and "TaskProlog failed" in s.output(job), s.output(job)


if __name__ == "__main__":
    try:
        status = main(clean_up)
    finally:
        for h in _home:
            h.close()
    sys.exit(status)
