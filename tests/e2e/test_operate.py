#!/usr/bin/env python3
"""What an operator does and sees: states, wait, retry, cancel, pin, flush, estimate, metrics, HTTP
manners."""
import json
import os
import pty
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import (CLI, INSTANCE, Agent, check_bundle, cleanup, need, need_root, object_of, run,
                   tree, wait_for)
from servers import free_port
from tap import main, test

NOBODY = 65534


def blocked(a):
    """A destination that cannot work until unblock(): its parent is not there."""
    a.config["destinations"][0]["path"] = a.path("later", "archive", "%d-%c")
    return a


def unblock(a):
    os.makedirs(a.path("later"))


@test
def wait_exits_with_0_when_delivered_and_1_when_given_up():
    a = blocked(Agent())
    a.dump()
    a.start()
    a.wait_known(1)
    bundle = a.bundles()[0]["id"]
    result = a.cli("wait", bundle, "--timeout", "1s")
    assert result.returncode == 1 and bundle in result.stdout + result.stderr, (
        result.returncode, result.stdout, result.stderr)
    assert a.cli("wait", "--all", "--timeout", "300ms").returncode == 1
    unblock(a)
    result = a.cli("wait", bundle, "--timeout", "30s")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "\x1b" not in result.stdout + result.stderr, "colour or progress without a terminal"
    assert a.cli("wait", "--all", "--timeout", "30s").returncode == 0
    assert a.cli("wait", "directory-20200101T000000-000000000000", "--timeout",
                 "1s").returncode == 1
    a.stop()


@test
def the_command_line_tool_keeps_its_exit_codes():
    a = Agent()
    assert a.cli("status").returncode == 3
    assert run(CLI, "--no-such-option").returncode == 2
    assert run(CLI, "no-such-command").returncode == 2
    assert run(CLI).returncode == 2
    result = run(CLI, "--help")
    assert result.returncode == 0 and "status" in result.stdout and not result.stderr
    a.start()
    assert a.cli("status").returncode == 0
    assert a.cli("list", "--state", "nonsense").returncode == 2
    assert a.cli("show").returncode == 2
    a.stop()
    assert a.cli("status").returncode == 3


@test
def explain_gives_the_reason_and_what_happens_next_in_every_state():
    a = blocked(Agent())
    a.config["sources"][0]["settle"] = "10m"
    a.dump()
    a.start()
    a.wait_known(1)
    bundle = a.bundles()[0]["id"]
    assert a.bundles()[0]["state"] == "settling"
    text = a.cli("explain", bundle).stdout
    assert "quiet" in text or "settle" in text, text
    a.ask("flush")
    wait_for("it has settled", lambda: a.bundles()[0]["state"] != "settling")
    wait_for("explain names the destination and its fault",
             lambda: "archive" in a.cli("explain", bundle).stdout
             and a.path("later") in a.cli("explain", bundle).stdout)
    unblock(a)
    a.wait_all()
    text = a.cli("explain", bundle).stdout
    assert "delivered" in text and "proof" in text, text
    assert ".tar.zst" in a.cli("show", bundle).stdout
    a.stop()


@test
def cancel_is_final_and_leaves_the_source_alone():
    a = blocked(Agent())
    unit = a.dump()
    wanted = tree(unit)
    a.start()
    a.wait_known(1)
    bundle = a.bundles()[0]["id"]
    assert a.cli("cancel", bundle).returncode == 0
    assert a.bundles("?state=cancelled")[0]["id"] == bundle
    wait_for("the pins are released", lambda: not [f for f in tree(a.dir)
                                                   if b".neuron-collectd/" in f])
    assert a.assert_sum()["cancelled"] == 1
    assert tree(unit) == wanted
    unblock(a)
    kept = a.dump(cluster_id="00000000000000bb", pid=5)
    a.wait_delivered(1)
    assert [m["source"]["path"] for _, m in a.manifests(a.path("later"))] == [kept]
    assert a.cli("wait", bundle, "--timeout", "2s").returncode == 1
    result = a.cli("retry", bundle)
    assert result.returncode == 1 and "cancelled" in result.stdout + result.stderr, result
    result = a.cli("cancel", a.bundles("?state=delivered")[0]["id"])
    assert result.returncode == 1 and "delivered" in result.stdout + result.stderr, result
    a.assert_sum()
    a.stop()


@test
def a_cancelled_bundle_stays_cancelled_over_a_restart():
    a = blocked(Agent())
    a.dump()
    a.start()
    a.wait_known(1)
    bundle = a.bundles()[0]["id"]
    assert a.cli("cancel", bundle).returncode == 0
    a.stop()
    unblock(a)
    a.start()
    assert a.bundles()[0]["state"] == "cancelled"
    assert a.counts()["discovered"] == 1
    a.stop()


@test
def pin_and_unpin_are_kept_and_shown():
    a = Agent()
    a.dump()
    a.start()
    a.wait_known(1)
    a.wait_all()
    bundle = a.bundles()[0]["id"]
    assert a.cli("pin", bundle).returncode == 0
    assert a.bundles()[0]["pinned"] is True
    a.stop()
    a.start()
    assert a.bundles()[0]["pinned"] is True
    assert a.cli("unpin", bundle).returncode == 0
    assert a.bundles()[0]["pinned"] is False
    a.stop()


@test
def flush_ships_now_what_is_still_settling():
    a = Agent()
    a.config["sources"][0]["settle"] = "10m"
    unit = a.dump()
    a.start()
    a.wait_known(1)
    assert a.cli("flush").returncode == 0
    a.wait_all()
    check_bundle(a.only_manifest()[0], unit, tools=("tar",))
    a.stop()


@test
def a_different_bundle_in_the_way_is_kept_and_ours_is_quarantined_until_retry():
    a = Agent()
    a.config["retry"]["quarantine_after"] = 2
    unit = a.dump()
    a.start()
    a.wait_known(1)
    a.wait_all()
    path, _ = a.only_manifest()
    a.stop()
    # The state is lost, the source is not what it was, and what was delivered is damaged: which of
    # the two is worth keeping only a person can tell.
    with open(object_of(path), "ab") as f:
        f.write(b"more than was written")
    run("rm", "-rf", a.path("state"))
    os.mkdir(a.path("state"))
    with open(os.path.join(unit, sorted(os.listdir(unit))[0]), "ab") as f:
        f.write(b"more of it")
    there = tree(a.out)
    a.start()
    wait_for("it is quarantined", lambda: a.counts()["quarantined"] == 1, 30)
    assert tree(a.out) == there, "what was delivered before has been touched"
    bundle = a.bundles("?state=quarantined")[0]["id"]
    text = a.cli("explain", bundle).stdout
    assert os.path.basename(path) in text and "retry" in text, text
    assert a.cli("wait", bundle, "--timeout", "5s").returncode == 1
    assert a.cli("wait", "--all", "--timeout", "5s").returncode == 1
    run("rm", "-rf", a.out)
    os.mkdir(a.out)
    assert a.cli("retry", bundle).returncode == 0
    a.wait_all()
    check_bundle(a.only_manifest()[0], unit, tools=("tar",))
    a.assert_sum()
    a.stop()


@test
def explain_says_of_a_renamed_dump_where_it_is_and_not_that_its_files_were_removed():
    a = Agent()
    a.config["sources"][0]["settle"] = "3s"
    a.start()
    unit = a.dump(size=4096)
    wait_for("it is held", lambda: [b for b in a.bundles() if b["links_held"]])
    renamed = unit.replace("cid-", "cid-0")[:-1]
    os.rename(unit, renamed)
    bundle = wait_for("it ends", lambda: [b for b in a.bundles() if b["state"] == "vanished"])[0]
    said = a.cli("explain", bundle["id"]).stdout
    assert "There was nothing to ship" in said and "under its new name" in said, said
    assert "removed" not in said, said
    a.wait_delivered(1)
    assert a.only_manifest()[1]["source"]["path"] == renamed
    a.stop()


@test
def a_source_that_vanishes_before_it_is_held_is_counted_as_vanished():
    need_root()
    a = Agent()
    a.config["sources"][0]["settle"] = "2s"
    a.start()
    # Nothing to hold: the unit is empty of regular files by the time anybody looks. It must not be
    # counted at all, or as vanished.
    unit = a.dump(size=4096)
    run("rm", "-rf", unit)
    kept = a.dump(size=4096, cluster_id="00000000000000bb", pid=5)
    wait_for("the other one is delivered", lambda: any(m["source"]["path"] == kept for _,
                                                       m in a.manifests()))
    wait_for("nothing is under way", lambda: not any(a.counts()[s]
                                                     for s in ("settling", "ready", "shipping")))
    counts = a.assert_sum()
    assert counts["delivered"] + counts["vanished"] == counts["discovered"] and counts[
        "delivered"] >= 1, counts
    a.stop()


@test
def estimate_prints_what_would_be_collected_how_big_and_under_which_names():
    a = Agent()
    a.use_all_kinds()
    units = [a.dump(size=3 << 20), a.profile()]
    a.write_config()
    result = a.cli("--config", a.config_file, "estimate")
    assert result.returncode == 0, result.stderr
    for unit in units:
        assert os.path.basename(unit) in result.stdout, result.stdout
    a.start()
    a.wait_known(2)
    a.wait_all()
    for path, m in a.manifests():
        assert m["bundle"]["id"] in result.stdout, "the estimate names the bundle differently"
        assert os.path.relpath(path, a.out).split("/")[0] in result.stdout
    a.stop()


@test
def metrics_are_what_prometheus_reads():
    a = Agent()
    a.dump(size=2 << 20)
    a.start()
    a.wait_known(1)
    a.wait_all()
    text = a.curl("/metrics").stdout
    values = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            values[name] = float(value)
    p = "neuron_collectd_"
    assert values[p + 'bundles_total{state="delivered"}'] == 1, text
    assert values[p + 'bundles{state="delivered"}'] == 1
    assert values[p + 'destination_up{destination="archive"}'] == 1
    object_bytes = os.path.getsize(a.only_manifest()[0].removesuffix(".manifest.json") + ".tar.zst")
    assert values[p + 'bytes_delivered_total{destination="archive"}'] >= object_bytes
    assert values[p + "bytes_read_total"] >= 2 << 20
    assert values[p + "delivery_seconds_count"] == 1
    assert any(k.startswith(p + "build_info{") for k in values)
    for name in ("watch_overflows_total", "buffer_bytes", "scan_duration_seconds",
                 "bytes_sent_total"):
        assert any(k.startswith(p + name) for k in values), name
    need("promtool")
    import subprocess  # pylint: disable=import-outside-toplevel
    lint = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True,
                          text=True, check=False)
    assert lint.returncode in (0, 3) and "error" not in lint.stderr.lower(), lint.stderr
    a.stop()


@test
def the_api_has_good_manners():
    a = Agent()
    a.dump()
    a.start()
    a.wait_known(1)
    a.wait_all()

    def code(path, *options):
        return a.curl(path, "-o", a.path("body"), "-w", "%{http_code}", *options).stdout[-3:]

    def error():
        with open(a.path("body"), encoding="utf-8") as f:
            return json.load(f)["error"]

    assert code("/healthz") == "200" and code("/readyz") == "200"
    assert code("/v1/nothing") == "404" and set(error()) >= {"code", "message"}
    assert code("/v1/bundles/directory-20200101T000000-000000000000") == "404" and error()
    assert code("/v1/bundles/..%2f..%2fetc%2fpasswd") in ("400", "404") and error()
    assert code("/v1/bundles?state=nonsense") == "400" and "nonsense" in error()["message"]
    assert code("/v1/bundles?limit=minus") == "400"
    assert code("/v1/status", "-X", "DELETE") == "405" and error()
    assert code("/v1/flush") == "405"
    assert code("/v1/flush", "-X", "POST") in ("200", "202")
    with open(a.path("big"), "wb") as f:
        f.write(b"x" * 3_000_000)
    assert code("/v1/flush", "--data-binary", "@" + a.path("big")) in ("400", "413", "000")
    assert code("/" + "a" * 20_000) in ("400", "404", "414", "431")
    assert code("/healthz") == "200"
    s = a.status()
    assert s["agent"]["instance_id"] == INSTANCE and s["agent"]["pid"] == a.pid and s["agent"][
        "state"] == "running"
    assert s["config"]["file"] == a.config_file and not s["config"]["last_error"]
    assert os.stat(a.socket).st_mode & 0o777 == 0o660
    a.stop()


@test
def long_lists_come_in_pages():
    a = Agent()
    for i in range(25):
        a.dump(size=4096, cluster_id=f"{i:016x}", pid=100 + i)
    a.start()
    a.wait_known(25)
    a.wait_all()
    seen, after = [], ""
    while True:
        page = a.bundles(f"?limit=10{after}")
        seen += [b["id"] for b in page]
        if len(page) < 10:
            break
        after = "&after=" + page[-1]["id"]
    assert len(seen) == 25 and len(set(seen)) == 25
    assert len(a.cli("list").stdout.strip().splitlines()) >= 25
    assert a.bundles("?source=core-dumps&limit=3") and not a.bundles("?source=nothing")
    a.stop()


@test
def the_status_page_on_tcp_only_reads():
    port = free_port()
    a = Agent()
    a.config["api"]["listen"] = f"127.0.0.1:{port}"
    a.dump()
    a.start()
    base = f"http://127.0.0.1:{port}"
    assert run("curl", "-sSf", base + "/healthz").returncode == 0
    assert "neuron_collectd_build_info" in run("curl", "-sSf", base + "/metrics").stdout
    assert run("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-X", "POST",
               base + "/v1/flush").stdout == "405"
    a.stop()


@test
def on_a_directory_shared_by_hosts_a_host_name_id_collects_what_has_no_ec2_owner():
    a = Agent()
    a.config["node"]["instance_id"] = "build-host-7"
    a.dump(size=65536)  # names carry i-…; ours is no such id and the file system is local: taken
    a.start()
    a.wait_known(1)
    a.wait_all()
    path, m = a.only_manifest()
    assert m["node"]["instance_id"] == "build-host-7" and os.path.basename(
        os.path.dirname(path)) == "build-host-7"
    a.stop()


@test
def a_list_of_a_source_that_does_not_exist_is_an_error():
    a = Agent().start()
    result = a.cli("list", "--source", "typo")
    assert result.returncode == 1 and "'typo'" in result.stderr and "core-dumps" in result.stderr, \
        result
    assert a.cli("list", "--source", "core-dumps").returncode == 0
    a.stop()


def everyone_says_no(a, said):
    """A source that the agent cannot see: each answer says so, for the reason `said`."""
    once = a.once("--timeout", "20s")
    assert once.returncode == 1, (once.returncode, once.stdout, once.stderr)
    assert f"source {a.config['sources'][0]['name']}: " in once.stdout, once.stdout
    assert said in once.stdout, once.stdout
    a.start()
    wait_for("it has scanned", lambda: a.status()["idle"])
    ready = a.curl("/readyz", "-w", "%{http_code}")
    assert ready.returncode != 0 and "503" in ready.stdout and said in ready.stdout, ready
    note = a.status()["sources"][0]["unseen"]
    assert said in note, note
    text = a.cli("status").stdout
    assert said in text and "can deliver: no" in text, text
    for command in ("wait", "--all"), ("drain",):
        result = a.cli(*command, timeout=30)
        assert result.returncode == 1 and said in result.stdout, (command, result)
        assert "everything is delivered" not in result.stdout, result
    assert "not safe to terminate" in result.stdout, result
    result = a.cli("doctor", "--config", a.config_file)
    assert result.returncode == 1 and said in result.stdout, result
    result = a.once("--timeout", "20s")  # through the daemon
    assert result.returncode == 1 and said in result.stdout, result


def everyone_says_yes(a):
    a.start()
    assert a.cli("drain", timeout=60).stdout == "safe to terminate\n"
    a.cli("resume")
    assert a.cli("wait", "--all", "--timeout", "30s").returncode == 0
    assert a.curl("/readyz").returncode == 0
    assert a.status()["sources"][0]["unseen"] is None
    a.stop()
    assert a.once().returncode == 0


def unprivileged(a):
    a.prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
                "--bounding-set=-all", "--inh-caps=-all"]
    return a


@test
def a_source_behind_another_users_symlink_is_not_called_delivered():
    need_root()
    a = Agent()
    a.dump()
    os.rename(a.path("dumps"), a.path("elsewhere"))
    os.symlink(a.path("elsewhere"), a.path("dumps"))
    os.lchown(a.path("dumps"), NOBODY, NOBODY)
    everyone_says_no(a, "symlink")
    assert not a.manifests()
    os.lchown(a.path("dumps"), 0, 0)  # a drain notices when it can be seen
    result = wait_for("it is seen", lambda: "safe" in a.cli("drain", timeout=60).stdout)
    a.stop()
    everyone_says_yes(a)


@test
def a_source_that_is_a_file_is_not_called_delivered():
    a = Agent()
    with open(a.path("dumps"), "wb"):
        pass
    everyone_says_no(a, "not a directory")
    a.stop()


@test
def a_source_that_another_user_has_closed_is_not_called_delivered():
    need_root()
    need("setpriv")
    a = unprivileged(Agent(owner=NOBODY))
    a.dump()
    os.chmod(a.path("dumps"), 0o700)
    everyone_says_no(a, "CAP_DAC_READ_SEARCH")
    a.stop()


@test
def a_source_with_one_dump_that_cannot_be_read_is_not_called_delivered():
    need_root()
    need("setpriv")
    a = unprivileged(Agent(owner=NOBODY))
    a.dump(pid=1)
    closed = a.dump(pid=2, cluster_id="000000000000000b")
    os.chmod(closed, 0o700)
    everyone_says_no(a, "CAP_DAC_READ_SEARCH")
    assert os.path.basename(closed) in a.cli("status").stdout
    assert len(a.manifests()) == 1
    a.stop()
    os.chmod(closed, 0o755)
    everyone_says_yes(a)
    assert len(a.manifests()) == 2


@test
def a_source_that_is_not_there_yet_is_no_fault():
    a = Agent()
    everyone_says_yes(a)
    a.config["sources"][0]["path"] = a.path("not", "there", "yet", "%d-%c")
    everyone_says_yes(a)


@test
def more_units_than_a_minute_takes_do_not_make_it_unable_to_deliver():
    a = Agent()
    a.use_all_kinds()
    for i in range(1500):  # beyond 1,000 one each 60 ms is taken, and a slow agent takes its time
        os.makedirs(a.path("jobs", f"job-{i}"))
        with open(a.path("jobs", f"job-{i}", "log"), "w", encoding="ascii") as f:
            f.write("x")
    a.start()
    wait_for("some wait for their turn",
             lambda: "some wait for their turn" in (a.status()["ready_note"] or ""))
    a.wait_delivered(1)
    status = a.status()
    assert status["ready"] is True, status["ready_note"]
    assert a.curl("/readyz").returncode == 0
    assert "can deliver: yes, there are more units" in a.cli("status").stdout
    a.stop()


@test
def what_a_bundle_waits_for_is_named_with_the_reason():
    a = Agent()
    a.config["destinations"].append(a.volume("fsx", "later/fsx"))
    a.dump(size=65536)
    a.start()
    bundle = wait_for("one destination has it", lambda: [
        b["id"] for b in a.bundles() for d in b["deliveries"] if d["state"] == "delivered"])[0]
    wait_for("the reason names the other one",
             lambda: a.bundles()[0]["reason"] == "waits for fsx")
    for command in (("wait", bundle, "--timeout", "0"), ("wait", "--timeout", "0"),
                    ("drain", "--timeout", "0")):
        said = a.cli(*command)
        line = [x for x in said.stdout.splitlines() if bundle in x][0]
        assert said.returncode == 1 and "fsx" in line and "is it mounted?" in line, (command, said)
    text = a.cli("explain", bundle).stdout
    assert "failed 0 times" not in text and "is it mounted?" in text, text
    a.stop()


@test
def one_is_not_spelled_as_many():
    a = blocked(Agent())
    a.dump(size=65536)
    a.start()
    a.wait_known(1)
    a.config["destinations"].append(a.volume("second", "second"))
    a.config["sorces"] = []
    a.write_config()
    a.reload()
    wait_for("the log has it", lambda: "1 error in the configuration" in a.log)
    a.config["spurces"] = []
    a.write_config()
    a.reload()
    wait_for("the log has both", lambda: "2 errors in the configuration" in a.log)
    for text in (a.cli("status").stdout,
                 a.cli("--config", a.config_file, "doctor").stdout):
        assert "\\x0a" not in text, text
    lines = a.cli("status").stdout.splitlines()
    at = [i for i, x in enumerate(lines) if "the last reload failed" in x][0]
    assert "sorces" in lines[at + 1] and "spurces" in lines[at + 2], lines
    del a.config["sorces"], a.config["spurces"]
    unblock(a)
    a.write_config()
    a.reload()
    a.wait_all()
    a.config["destinations"].append(a.volume("third", "third"))
    a.write_config()
    a.reload()
    wait_for("it is in force", lambda: len(a.status()["destinations"]) == 3)
    assert a.cli("redeliver").stdout.startswith("1 bundle is retried; ")
    a.stop()


@test
def a_cancelled_bundle_is_asked_for_on_a_terminal_and_a_copy_is_delivered():
    a = blocked(Agent())
    unit = a.dump(size=65536)
    a.start()
    a.wait_known(1)
    bundle = a.bundles()[0]["id"]
    def cancel(*options, answer=b""):
        leader, follower = pty.openpty()
        with subprocess.Popen([CLI, "--socket", a.socket, "cancel", bundle, *options],
                              stdin=follower, stdout=subprocess.PIPE, stderr=follower) as process:
            os.write(leader, answer)
            out = process.stdout.read().decode()
            code = process.wait()
        os.close(follower)
        said = os.read(leader, 65536).decode() if answer else ""
        os.close(leader)
        return code, out + said
    for answer in (b"n\n", b"\n"):
        code, said = cancel(answer=answer)
        assert code == 1 and "cannot be undone" in said and "not cancelled" in said, (code, said)
        assert a.bundles()[0]["state"] != "cancelled"
    code, said = cancel("--yes")
    assert code == 0 and "cancelled" in said, (code, said)
    wait_for("it is cancelled", lambda: a.bundles()[0]["state"] == "cancelled")
    assert "another name" in a.cli("explain", bundle).stdout
    unblock(a)
    copy = os.path.join(os.path.dirname(unit), "dt-20260527-051234-cid-00000000000000cc")
    shutil.copytree(unit, copy + ".new")
    os.rename(copy + ".new", copy)
    a.wait_delivered(1)
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
