#!/usr/bin/env python3
"""Another account is first where everybody may create names: it gets neither the agent's links nor
the dumps of others."""
import os
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import INSTANCE, Agent, check_bundle, cleanup, need, need_root, run, tree, wait_for
from tap import main, test

NOBODY, AGENT_USER = 65534, 65533
RIGHTS = "+dac_read_search,+fowner,+lease"  # what the unit leaves the daemon


def as_user(uid, script):
    subprocess.run(["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "sh", "-ec",
                    script], check=True, timeout=60)


def agent_in_tmp():
    """An agent with the unit's rights, whose source is in a directory like /tmp."""
    need_root()
    need("setpriv")
    a = Agent(owner=AGENT_USER)
    os.makedirs(a.path("tmp"))
    os.chmod(a.path("tmp"), 0o1777)
    only = f"-all,{RIGHTS}"
    a.prefix = ["setpriv", f"--reuid={AGENT_USER}", f"--regid={AGENT_USER}", "--clear-groups",
                f"--inh-caps={only}", f"--ambient-caps={only}", f"--bounding-set={only}", "--"]
    a.config["sources"] = [a.source("core-dumps", "neuron-core-dump",
                                    "tmp/dumps/dt-%d-cid-%c", settle="60s")]
    os.chown(a.dir, AGENT_USER, AGENT_USER)
    return a


def make_root(a, owner=0):
    os.makedirs(a.path("tmp", "dumps"))
    os.chown(a.path("tmp", "dumps"), owner, owner)
    os.chmod(a.path("tmp", "dumps"), 0o1777)


def asides(a):
    return [n for n in os.listdir(a.path("tmp")) if n.startswith(".neuron-collectd-")]


@test
def who_was_first_in_the_place_of_the_links_is_moved_aside_and_they_hold():
    a = agent_in_tmp()
    make_root(a)
    as_user(NOBODY, f"mkdir -m 777 '{a.path('tmp')}/.neuron-collectd'; "
                    f"echo mine >'{a.path('tmp')}/.neuron-collectd/file'")
    a.start()
    links = a.path("tmp", ".neuron-collectd")
    wait_for("the links' directory is the agent's", lambda: os.stat(links).st_uid == AGENT_USER)
    assert os.stat(links).st_mode & 0o777 == 0o700
    assert len(asides(a)) == 1, os.listdir(a.path("tmp"))
    with open(a.path("tmp", asides(a)[0], "file"), encoding="ascii") as f:
        assert f.read() == "mine\n"
    wait_for("it is logged", lambda: asides(a)[0] in a.log)
    assert 'bundle_discards_total{reason="squatter"} 1' in a.curl("/metrics").stdout
    unit = a.make_in("tmp/dumps", size=65536, owner=(NOBODY, NOBODY))
    wanted = tree(unit)
    wait_for("all is held", lambda: os.path.isdir(os.path.join(links, INSTANCE)) and
             sum(len([n for n in f if not n.startswith(".unit-")]) for _, _, f in
                 os.walk(os.path.join(links, INSTANCE))) == len(wanted))
    shutil.rmtree(unit)
    a.ask("flush")
    a.wait_all()
    check_bundle(a.only_manifest()[0], wanted, tools=("tar",))
    a.stop()


@test
def who_was_first_inside_a_root_whose_parent_is_not_the_agents_is_moved_aside_too():
    a = agent_in_tmp()
    os.chmod(a.path("tmp"), 0o755)
    make_root(a)
    inside = a.path("tmp", "dumps", ".neuron-collectd")
    as_user(NOBODY, f"mkdir -m 777 '{inside}'")
    a.start()
    wait_for("the links' directory is the agent's", lambda: os.stat(inside).st_uid == AGENT_USER)
    unit = a.make_in("tmp/dumps", size=65536, owner=(NOBODY, NOBODY))
    wanted = tree(unit)
    wait_for("all is held", lambda: len(tree(inside)) == len(wanted))
    shutil.rmtree(unit)
    a.ask("flush")
    a.wait_all()
    check_bundle(a.only_manifest()[0], wanted, tools=("tar",))
    a.stop()


@test
def where_everybody_may_be_first_the_agent_is_at_its_start():
    a = agent_in_tmp()
    a.start()
    wait_for("the links' directory is there", lambda: os.path.isdir(a.path("tmp",
                                                                         ".neuron-collectd")))
    assert os.stat(a.path("tmp", ".neuron-collectd")).st_uid == AGENT_USER
    attempt = run("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "mv",
                  a.path("tmp", ".neuron-collectd"), a.path("tmp", "mine"))
    assert attempt.returncode != 0, "another user can move it away"
    a.stop()


@test
def a_root_that_is_not_roots_is_told_by_readyz_status_and_doctor():
    a = agent_in_tmp()
    as_user(NOBODY, f"mkdir -m 755 '{a.path('tmp', 'dumps')}'")
    a.start()
    wait_for("readyz tells it", lambda: "not root's and sticky" in a.curl("/readyz").stdout)
    assert a.curl("/readyz").returncode != 0
    assert "not root's and sticky" in a.ask("status")["sources"][0]["note"]
    doctor = a.cli("--config", a.config_file, "doctor")
    assert doctor.returncode == 1 and f"uid {NOBODY}" in doctor.stdout, doctor.stdout
    os.rmdir(a.path("tmp", "dumps"))
    make_root(a)
    a.ask("scan")
    wait_for("it is ready again", lambda: a.curl("/readyz").returncode == 0)
    a.stop()


@test
def a_root_where_everybody_may_remove_the_dumps_of_others_is_told():
    a = agent_in_tmp()
    make_root(a)
    os.chmod(a.path("tmp", "dumps"), 0o777)
    a.start()
    wait_for("readyz tells it", lambda: "mode 0777" in a.curl("/readyz").stdout)
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
