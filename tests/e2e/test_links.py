#!/usr/bin/env python3
"""The links that hold the sources: kept while anybody may want them, ours whatever is renamed, and
let go in the end."""
import os
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import (DAEMON, INSTANCE, Agent, check_bundle, cleanup, extract, need, need_root,
                   object_of, tree, wait_for)
from tap import Skip, main, test


def link_dir(a):
    return a.path(".neuron-collectd", INSTANCE)


def linked(a):
    """Everything that is linked, by bundle."""
    found = {}
    for path, what in tree(link_dir(a)).items():
        bundle, member = path.split(b"/", 1)
        found.setdefault(os.fsdecode(bundle), {})[member] = what
    return found


def settle(a, seconds):
    for source in a.config["sources"]:
        source["settle"] = seconds


@test
def a_restart_keeps_the_links_of_all_sources_with_one_parent():
    a = Agent()
    a.use_all_kinds()
    settle(a, "60s")
    a.start()
    dump, core = a.dump(size=65536), a.core()
    wanted_dump, wanted_core = tree(dump), os.path.getsize(core)
    wait_for("both are linked",
             lambda: sorted(len(m) for m in linked(a).values()) == [1, len(wanted_dump)])
    held = "SELECT count(*) FROM bundles WHERE links_held"
    wait_for("both rows say so", lambda: a.sql(held) == "2")
    a.kill()
    # Now the links are all there is, and whichever source sweeps first must leave the other's.
    shutil.rmtree(a.path("dumps"))
    shutil.rmtree(a.path("cores"))
    os.makedirs(a.path("dumps"))
    os.makedirs(a.path("cores"))
    settle(a, "300ms")
    a.start()
    a.wait_all()
    assert a.counts()["delivered"] == 2, (a.counts(), a.bundles())
    for path, m in a.manifests():
        if m["source"]["path"].startswith(a.path("dumps")):
            check_bundle(path, wanted_dump, tools=("tar",))
        else:
            assert [e["bytes"] for e in m["members"]] == [wanted_core], m["members"]
    wait_for("the links are let go", lambda: not linked(a))
    assert "unknown links" not in a.log
    a.stop()


def lose_state(a):
    for extra in ("-wal", "-shm"):
        if os.path.exists(a.path("state", "state.db" + extra)):
            os.unlink(a.path("state", "state.db" + extra))
    with open(a.path("state", "state.db"), "wb") as f:
        f.write(b"rubbish" * 4096)


@test
def what_only_links_hold_is_delivered_though_the_database_was_lost():
    a = Agent()
    a.use_all_kinds()
    settle(a, "60s")
    a.start()
    dump, profile, core = a.dump(size=65536), a.profile(), a.core()
    job = a.incompressible(65536)
    kept = a.dump(size=65536, cluster_id="00000000000000aa", pid=7)
    wanted = {unit: tree(unit) for unit in (dump, profile, job)}
    core_bytes = os.path.getsize(core)
    wait_for("all is linked", lambda: len(linked(a)) == 5 and all(
        os.stat(os.path.join(base, n)).st_nlink == 2 for unit in (*wanted, kept)
        for base, _, names in os.walk(unit) for n in names))
    wait_for("and the core", lambda: os.stat(core).st_nlink == 2)
    names = set(linked(a))
    a.kill()
    for unit in wanted:
        shutil.rmtree(unit)
    os.unlink(core)
    lose_state(a)
    settle(a, "300ms")
    a.start()
    a.wait_delivered(5)
    a.wait_all()
    by_path = {m["source"]["path"]: (p, m) for p, m in a.manifests()}
    assert set(by_path) == {dump, profile, job, core, kept}, by_path.keys()
    assert {m["bundle"]["id"] for _, m in by_path.values()} == names
    for unit, members in wanted.items():
        check_bundle(by_path[unit][0], members, tools=("tar",))
    assert [e["bytes"] for e in by_path[core][1]["members"]] == [core_bytes]
    assert by_path[dump][1]["incident"]["cluster_id"] == os.path.basename(dump).rpartition("-")[2]
    assert all(m["bundle"]["complete"] for _, m in by_path.values())
    wait_for("the links are let go", lambda: not linked(a))
    wait_for("nor their records", lambda: not os.listdir(link_dir(a)))
    a.stop()


@test
def links_of_bundles_that_nobody_knows_are_left_alone_and_named():
    """As of an agent that recorded no unit, with a database that was lost."""
    a = Agent()
    a.use_all_kinds()
    settle(a, "60s")
    a.start()
    wanted = tree(a.dump(size=65536))
    wait_for("all is linked", lambda: [len(m) for m in linked(a).values()] == [len(wanted)])
    before = linked(a)
    a.kill()
    shutil.rmtree(a.path("dumps"))
    os.makedirs(a.path("dumps"))
    lose_state(a)
    name, = before
    os.unlink(os.path.join(link_dir(a), ".unit-" + name))
    a.start()
    place = os.path.join(link_dir(a), name)
    wait_for("they are named", lambda: f"unknown links, kept: '{place}" in a.log)
    assert linked(a) == before
    says = f"hard links hold 1 bundle that the state database does not have, such as '{place}'"
    wait_for("status says so", lambda: any(
        says in (s["unseen"] or "") for s in a.status()["sources"]))
    drained = a.cli("drain", "--timeout", "10s")
    assert drained.returncode == 1 and says in drained.stdout, drained
    a.stop()
    once = a.once("--timeout", "10s")
    assert once.returncode == 1 and says in once.stdout, once
    assert linked(a) == before and a.log.count("unknown links") == 1, a.log
    shutil.rmtree(place)
    once = a.once("--timeout", "10s")
    assert once.returncode == 0, once


@test
def links_of_bundles_that_are_through_are_swept_by_the_next_start():
    a = Agent()
    unit = a.dump(size=65536)
    a.start()
    a.wait_delivered(1)
    name = a.bundles()[0]["id"]
    a.stop()
    os.makedirs(os.path.join(link_dir(a), name), mode=0o700, exist_ok=True)
    for member in os.listdir(unit):
        os.link(os.path.join(unit, member), os.path.join(link_dir(a), name, member))
    a.start()
    wait_for("the links are let go", lambda: not linked(a))
    a.stop()


@test
def a_member_that_is_renamed_while_it_is_pinned_is_delivered_under_its_new_name():
    a = Agent()
    settle(a, "2s")
    a.start()
    unit = a.dump(size=65536)
    wait_for("all is linked", lambda: [len(m) for m in linked(a).values()] == [len(tree(unit))])
    members = sorted(os.listdir(unit))
    for old in (members[0], members[-1]):
        os.rename(os.path.join(unit, old), os.path.join(unit, old + ".final"))
    wanted = tree(unit)
    a.wait_all()
    path, m = a.only_manifest()
    check_bundle(path, wanted, tools=("tar",))
    assert "hard-link" not in str(m["bundle"]["reasons"]), m["bundle"]["reasons"]
    wait_for("the links are let go", lambda: not linked(a))
    a.stop()


@test
def a_unit_that_is_renamed_while_it_is_pinned_is_delivered_complete_under_its_new_name():
    a = Agent()
    a.config["sources"] = [a.source("jobs", "directory", "jobs/%t", settle="2s")]
    a.start()
    unit = a.path("jobs", "tmpdump")
    os.makedirs(unit)
    for i in range(5):
        with open(os.path.join(unit, f"part-{i}"), "wb") as f:
            f.write(os.urandom(5000))
    wait_for("all is linked", lambda: [len(m) for m in linked(a).values()] == [5])
    new = a.path("jobs", "dt-final")
    os.rename(unit, new)
    wait_for("the new name is delivered", lambda: [m for _, m in a.manifests()
                                                   if m["source"]["path"] == new], 40)
    a.wait_all()
    path, m = a.only_manifest()  # and not a second time under the old name
    check_bundle(path, new, tools=("tar",))
    assert m["bundle"]["reasons"] == [], m["bundle"]["reasons"]
    wait_for("the links are let go", lambda: not linked(a))
    a.stop()


@test
def a_link_refused_in_the_middle_loses_no_member():
    need_root()
    need("chattr")
    a = Agent()
    settle(a, "2s")
    a.config["sources"][0]["max_wait"] = "10s"
    unit = a.dump(size=65536)
    victim = os.path.join(unit, sorted(os.listdir(unit))[3])
    if subprocess.run(["chattr", "+i", victim], capture_output=True, check=False).returncode != 0:
        raise Skip("no immutable files here")
    try:
        wanted = tree(unit)
        a.start()
        a.wait_known(1)
        wait_for("the refusal is said", lambda: "cannot hold" in a.log)
        a.wait_all()
        path, m = a.only_manifest()
        check_bundle(path, wanted, tools=("tar",))
        assert m["bundle"]["reasons"] == [], m["bundle"]["reasons"]
    finally:
        subprocess.run(["chattr", "-i", victim], check=True)
    a.stop()


@test
def a_removed_source_whose_writer_writes_on_is_waited_for():
    a = Agent()
    a.config["sources"][0]["settle"] = "300ms"
    a.start()
    unit = a.path("dumps", "dt-20260527-051233-cid-d99e36ea74c263ca")
    os.makedirs(unit)
    with open(os.path.join(unit, "nrt-pid-1.log"), "wb") as f:
        f.write(b"first\n")
        f.flush()
        a.wait_known(1)
        wait_for("it is held", lambda: a.bundles()[0]["links_held"])
        shutil.rmtree(unit)
        wait_for("the writer is seen",
                 lambda: "open for writing" in a.cli("explain", a.bundles()[0]["id"]).stdout)
        f.write(b"second\n")
    a.wait_all()
    path, manifest = a.only_manifest()
    assert manifest["bundle"]["complete"], manifest["bundle"]
    bundle = path.replace(".manifest.json", ".tar.zst")
    text = subprocess.run(["tar", "--zstd", "-xOf", bundle, "nrt-pid-1.log"], check=True,
                          stdout=subprocess.PIPE).stdout
    assert text == b"first\nsecond\n", text
    a.stop()


@test
def a_directory_made_anew_under_its_name_is_another_bundle_and_mixes_with_none():
    a = Agent()
    a.use_directories()
    settle(a, "3s")
    os.makedirs(a.path("jobs"))
    unit = a.incompressible(65536)
    old = tree(unit)
    a.start()
    wait_for("it is linked", lambda: [len(m) for m in linked(a).values()] == [len(old)])
    shutil.rmtree(unit)
    a.incompressible(32768)
    with open(os.path.join(unit, "again"), "wb") as f:
        f.write(b"again" * 100)
    new = tree(unit)
    a.wait_delivered(2, 20)  # well before the next scan
    a.wait_all()
    first, second = sorted((m["created"], p) for p,
                           m in a.manifests() if m["source"]["path"] == unit)
    check_bundle(first[1], old, tools=("tar",))
    check_bundle(second[1], new, tools=("tar",))
    a.stop()


def remains(a, expect=0, prefix=(), says="", to=subprocess.PIPE):
    result = subprocess.run([*prefix, DAEMON, "--config", a.config_file, "--remains"], text=True,
                            env=a.whole_environment(), stdout=to, stderr=subprocess.PIPE,
                            check=False)
    assert result.returncode == expect and says in result.stderr, result
    return result.stdout


@test
def what_a_removal_leaves_is_told_when_the_agent_has_stopped():
    a = Agent()
    settle(a, "60s")
    a.start()
    assert remains(a, expect=1) == "\n"  # no links yet, and the agent has the state
    a.dump(size=65536)
    wait_for("it is linked", lambda: os.path.isdir(link_dir(a)) and linked(a))
    (bundle,) = linked(a)
    a.stop()
    said = remains(a)
    links, _, undelivered = said.partition("\n\n")
    with open("/dev/full", "w", encoding="ascii") as full:
        remains(a, expect=1, says="No space left", to=full)
    assert links.splitlines() == [link_dir(a)], said
    assert [line.split()[:2] for line in undelivered.splitlines()] == [[bundle, "settling"]], said
    settle(a, "300ms")
    a.start()
    a.wait_all()
    a.stop()
    assert remains(a).splitlines()[-1] == "", "it is delivered"


@test
def a_database_that_cannot_be_read_does_not_look_like_nothing_that_remains():
    a = Agent()
    settle(a, "60s")
    a.start()
    a.dump(size=65536)
    wait_for("it is linked", lambda: os.path.isdir(link_dir(a)) and linked(a))
    a.stop()
    a.sql("UPDATE bundles SET kind = 'unknown'")
    for _ in range(2):  # to ask changes nothing
        said = remains(a, 1, says="what was not delivered is not known")
        assert said.splitlines()[0] == link_dir(a), said
    assert os.listdir(a.path("state")).count("state.db") == 1
    assert not [n for n in os.listdir(a.path("state")) if "corrupt" in n], os.listdir(a.path("state"))


@test
def late_files_that_only_links_hold_are_shipped_though_another_build_had_the_database():
    a, unit = waiting_for_its_destination(scan_interval="1s")
    base = bytes_of(tree(unit))
    late = come_late(unit)
    wait_held(unit)
    os.unlink(os.path.join(unit, "late"))  # its unit stays, and gets its row by a scan
    a.kill()
    a.sql("PRAGMA user_version = 11")
    a.start()
    assert "another build" in a.log
    assert_late_follows(a, base, late)


@test
def where_links_are_is_told_without_symlinks_and_in_one_line_each():
    a = Agent()
    os.makedirs(link_dir(a), 0o700)
    os.chmod(a.path(".neuron-collectd"), 0o700)
    os.symlink(a.path(), a.path("link"))
    source = a.config["sources"][0]
    source["path"] = source["path"].replace(a.path(), a.path("link"), 1)
    a.write_config()
    assert remains(a).partition("\n\n")[0] == link_dir(a)
    # a user's: the second line would be another place that root cleans
    os.makedirs(a.path("new\n", "srv"))
    os.rename(a.path(".neuron-collectd"), a.path("new\n", "srv", ".neuron-collectd"))
    os.remove(a.path("link"))
    os.symlink(a.path("new\n", "srv"), a.path("link"))
    assert remains(a, 1, says="has more than one line") == "\n"


def leave_links(a):
    """Of a source that is configured no more when this returns."""
    settle(a, "60s")
    a.start()
    a.dump(size=65536)
    wait_for("it is linked", lambda: os.path.isdir(link_dir(a)) and linked(a))
    wait_for("its row says so", lambda: a.sql(
        "SELECT count(*) FROM bundles WHERE links_held") == "1")
    a.stop()
    a.config["sources"] = [a.source("other", "directory", "other/jobs/job-%p")]
    a.write_config()


@test
def links_of_a_source_that_is_configured_no_more_are_told():
    a = Agent()
    leave_links(a)
    assert remains(a).splitlines()[0] == link_dir(a)
    a.start()
    a.stop()
    assert remains(a).partition("\n\n")[0].splitlines().count(link_dir(a)) == 1
    a.config["node"]["instance_id"] = "another"
    a.write_config()
    assert remains(a).splitlines()[0] == link_dir(a)


@test
def what_is_not_known_of_links_is_told():
    need_root()
    a = Agent()
    leave_links(a)
    # where they are is another directory now, or none
    links = a.path(".neuron-collectd")
    os.rename(links, a.path("aside"))
    assert remains(a, 1, says="1 bundles have hard links that are not found, the last of source "
                              "core-dumps").startswith("\n")
    os.symlink("aside", links)
    assert remains(a, 1, says=f"'{link_dir(a)}' may have hard links, which hold disk "
                           "space: it was moved").startswith("\n")
    os.remove(links)
    os.rename(a.path("aside"), links)
    # without the right to go there
    os.chown(a.path(), 1000, 1000)
    os.chmod(a.path(), 0o701)
    os.chmod(a.config_file, 0o644)
    os.chown(links, 1000, 1000)
    os.chmod(links, 0o700)
    powerless = ("setpriv", "--inh-caps=-all", "--bounding-set=-all")
    assert link_dir(a) in remains(a, 1, powerless, f"'{link_dir(a)}' may have hard links, which hold disk "
                                               "space: permission denied; run this as root")
    # as another user than the agent's: root becomes him
    for top, names, files in os.walk(a.path("state")):
        for name in [top, *(os.path.join(top, n) for n in names + files)]:
            os.chown(name, 1001, 1001)
    os.chown(link_dir(a), 1001, 1001)
    assert remains(a).splitlines()[0] == link_dir(a)
    assert not [n for n in os.listdir(a.path("state"))
                if os.stat(a.path("state", n)).st_uid != 1001]
    remains(a, 1, ("setpriv", "--reuid=1000", "--clear-groups"), "belongs to uid 1001")


@test
def links_that_a_crash_left_without_a_mark_in_their_row_are_shipped():
    for what in "all", "some":
        a = Agent()
        settle(a, "60s")
        a.start()
        unit = a.dump(size=65536)
        wanted = tree(unit)
        wait_for("all is held", lambda: [len(m) for m in linked(a).values()] == [len(wanted)])
        held = "SELECT count(*) FROM bundles WHERE links_held"
        wait_for("the row says so", lambda a=a: a.sql(held) == "1")
        a.kill()
        # as if it had been killed after it had made the links, all or some, and before the row
        a.sql("UPDATE bundles SET links_held = 0")
        if what == "some":
            links = os.path.join(link_dir(a), *linked(a))
            lost = sorted(os.listdir(links))[0]
            os.unlink(os.path.join(links, lost))
            del wanted[os.fsencode(lost)]
        shutil.rmtree(unit)
        settle(a, "300ms")
        a.start()
        a.wait_all()
        path, m = a.only_manifest()
        check_bundle(path, wanted, tools=("tar",))
        assert m["bundle"]["complete"] == (what == "all"), m["bundle"]
        assert what == "all" or "held" in str(m["bundle"]["reasons"]), m["bundle"]
        wait_for("the links are released", lambda a=a: not linked(a))
        a.stop()


def waiting_for_its_destination(**source):
    """An agent with a dump that is READY: its destination cannot be written before go(a)."""
    a = Agent()
    a.config["destinations"][0]["path"] = a.path("later", "archive", "%d-%c")
    a.config["sources"][0] |= source
    a.start()
    unit = a.dump(size=65536)
    wait_for("it is ready", lambda: [b["state"] for b in a.bundles()] == ["ready"])
    return a, unit


def go(a):
    os.makedirs(a.path("later"))


def come_late(unit, name="late", size=3000):
    with open(os.path.join(unit, name), "wb") as f:
        f.write(os.urandom(size))
    return tree(unit)[os.fsencode(name)]


def wait_held(unit, name="late"):
    wait_for(f"'{name}' is held", lambda: os.stat(os.path.join(unit, name)).st_nlink > 1)


def shipped(a, where="later"):
    """{name: (size, sha256)} of all members, by the bundle they came in: base, or supplement."""
    found = {False: {}, True: {}}
    for path, m in a.manifests(a.path(where)):
        members = tree(extract(object_of(path), "tar"))
        is_supplement = bool(m["bundle"]["supplement_of"])
        assert not set(found[is_supplement]) & set(members), "shipped twice"
        found[is_supplement] |= members
    return found[False], found[True]


def bytes_of(found):
    return {os.path.basename(name): what for name, what in found.items()}


def assert_late_follows(a, base, late):
    """Once the destination is there it gets the bundle, then the file `late` in a supplement."""
    go(a)
    a.wait_delivered(2)
    a.wait_all()
    first, second = shipped(a)
    assert bytes_of(first) == base and bytes_of(second) == {b"late": late}, (first, second)
    wait_for("the links are released", lambda: not linked(a))
    a.stop()


@test
def what_comes_while_a_bundle_waits_is_held_and_follows_in_a_supplement():
    for how in "events", "scans", "a restart":
        a, unit = waiting_for_its_destination(
            scan_interval="1h" if how == "events" else "1s",
            watch="scan" if how == "scans" else "inotify")
        base = bytes_of(tree(unit))
        late = come_late(unit)
        wait_held(unit)
        shutil.rmtree(unit)
        if how == "a restart":
            a.kill()
            a.start()
        go(a)
        a.wait_delivered(2)
        a.wait_all()
        first, second = shipped(a)
        assert bytes_of(first) == base and bytes_of(second) == {b"late": late}, (how, first, second)
        wait_for("the links are released", lambda a=a: not linked(a))
        assert "unknown links" not in a.log, a.log
        a.stop()


@test
def what_came_late_outlives_a_lost_database_too():
    a, unit = waiting_for_its_destination()
    base = bytes_of(tree(unit))
    late = come_late(unit)
    wait_held(unit)
    shutil.rmtree(unit)
    a.kill()
    for extra in ("", "-wal", "-shm"):
        if os.path.exists(a.path("state", "state.db" + extra)):
            os.unlink(a.path("state", "state.db" + extra))
    a.start()
    assert_late_follows(a, base, late)


@test
def what_comes_while_a_bundle_is_shipped_is_held_and_follows_in_a_supplement():
    a = Agent()
    a.use_directories()
    a.send_slowly()
    unit = a.incompressible(8 << 20)
    a.start()
    wait_for("it is being shipped", lambda: a.counts()["shipping"] == 1)
    late = come_late(unit)
    wait_held(unit)
    shutil.rmtree(unit)
    assert a.counts()["delivered"] == 0, a.counts()
    a.wait_delivered(2)
    a.wait_all()
    _, second = shipped(a, "out")
    assert bytes_of(second) == {b"late": late}, second
    a.stop()


@test
def what_comes_late_and_stays_is_shipped_once_and_what_is_renamed_or_replaced_too():
    a, unit = waiting_for_its_destination()
    base = bytes_of(tree(unit))
    come_late(unit, "late.tmp")
    wait_held(unit, "late.tmp")
    os.rename(os.path.join(unit, "late.tmp"), os.path.join(unit, "late"))
    first = sorted(os.listdir(unit))[0]
    os.unlink(os.path.join(unit, first))
    replaced = come_late(unit, first)
    wait_held(unit, first)
    late = tree(unit)[b"late"]
    wait_for("no name of before is held", lambda: not [
        m for members in linked(a).values() for m in members if m.endswith(b".tmp")])
    go(a)
    a.wait_delivered(2)
    a.wait_all()
    first_members, second = shipped(a)
    assert bytes_of(first_members) == base, first_members
    assert bytes_of(second) == {b"late": late, os.fsencode(first): replaced}, second
    wait_for("the links are released", lambda: not linked(a))
    a.stop()


@test
def what_came_late_is_labelled_removed_only_if_it_is():
    """No lease shows here whether a process still writes it, as on NFS."""
    for is_removed in False, True:
        a = Agent()
        a.config["destinations"][0]["path"] = a.path("later", "archive", "%d-%c")
        a.prefix = ["setpriv", "--bounding-set=-lease", "--inh-caps=-lease"]
        a.start()
        unit = a.dump(size=65536, owner=(1001, 1001))
        wait_for("it is ready", lambda a=a: [b["state"] for b in a.bundles()] == ["ready"])
        come_late(unit)
        os.chown(os.path.join(unit, "late"), 1001, 1001)
        wait_held(unit)
        if is_removed:
            shutil.rmtree(unit)
        go(a)
        a.wait_delivered(2)
        a.wait_all()
        late = next(m["bundle"] for _, m in a.manifests(a.path("later"))
                    if m["bundle"]["supplement_of"])
        assert ("removed at the source before" in str(late["reasons"])) == is_removed, late
        assert late["complete"] != is_removed, late
        a.stop()


@test
def what_changes_between_two_destinations_follows_in_a_supplement_to_both():
    """One id is one content at most: what the second destination gets under it, the first has."""
    for all_change in False, True:
        a = Agent()
        second = a.volume("second", "later") | {"path": a.path("later", "archive", "%d-%c")}
        a.config["destinations"].append(second)
        a.start()
        unit = a.dump(size=65536)
        wait_for("the first has it", a.manifests)
        before = bytes_of(tree(unit))
        changed = sorted(os.listdir(unit))[:None if all_change else 1]
        for name in changed:
            with open(os.path.join(unit, name), "ab") as f:
                f.write(b"written after the first delivery")
        after = bytes_of(tree(unit))
        go(a)
        a.wait_delivered(2)
        a.wait_all()
        for where in "out", "later":
            base, supplement = shipped(a, where)
            same = {p: b for p, b in before.items() if where == "out" or b == after[p]}
            assert bytes_of(base) == same, (all_change, where, base)
            assert bytes_of(supplement) == {os.fsencode(n): after[os.fsencode(n)]
                                            for n in changed}, (where, supplement)
        path, bundle = next((p, m["bundle"]) for p, m in a.manifests(a.path("later"))
                            if not m["bundle"]["supplement_of"])
        assert a.cli("verify", object_of(path)).returncode == 0
        assert not bundle["complete"] and "changed: " in str(bundle["reasons"]), bundle
        assert len(a.bundles()) == 2, a.bundles()
        a.stop()


@test
def of_a_bundle_that_is_cancelled_what_came_late_is_released():
    a, unit = waiting_for_its_destination()
    come_late(unit)
    wait_held(unit)
    assert a.cli("cancel", a.bundles()[0]["id"]).returncode == 0
    wait_for("the links are released", lambda: not linked(a))
    assert a.counts()["discovered"] == 1, a.counts()
    a.stop()


@test
def what_came_late_and_vanished_unheld_is_counted_and_a_reason():
    for gone in "one file", "all":
        a = Agent()
        a.config["destinations"][0]["path"] = a.path("later", "archive", "%d-%c")
        for place in a.path(".neuron-collectd"), a.path("dumps", ".neuron-collectd"):
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "wb"):  # in the way of the links
                pass
        a.start()
        unit = a.dump(size=65536)
        wait_for("it is ready", lambda a=a: [b["state"] for b in a.bundles()] == ["ready"])
        seen = a.log.count("looked at what came late")
        come_late(unit)
        wait_for("it is seen", lambda: a.log.count("looked at what came late") > seen)
        if gone == "all":
            shutil.rmtree(unit)
        else:
            os.unlink(os.path.join(unit, "late"))
        go(a)
        a.wait_delivered(1)
        wait_for("it is counted", lambda a=a: 'discards_total{reason="vanished-file"} 1'
                 in a.curl("/metrics").stdout)
        bundle = a.bundles()[0]
        assert not bundle["complete"] and "vanished: 1 file" in str(bundle["incomplete"]), bundle
        a.wait_all()
        a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
