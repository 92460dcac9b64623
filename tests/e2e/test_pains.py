#!/usr/bin/env python3
"""What users of comparable tools suffer from, at a store: docs/TESTING.md has the list. A test's
docstring names its pain."""
import json
import os
import random
import re
import sys
import threading

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import radosgw
from agent import (DAEMON, INSTANCE, SOURCE_DIR, STATES, Agent, check_bundle, cleanup,
                   is_instrumented, need, run, tree, wait_for)
from s3_server import S3Server
from s3tools import judge, new_bucket
from tap import Skip, figures, main, notes, plain_test, test
from tcp_proxy import through

MIB = 1 << 20


def server():
    return radosgw.shared()


def metric(a, name):
    """Sum over its labels; None = there is none."""
    found = [float(line.split()[-1]) for line in a.curl("/metrics").stdout.splitlines()
             if line.startswith((name + " ", name + "{"))]
    return sum(found) if found else None


def bundle_of(a, unit):
    return next(b for b in a.bundles() if b["path"] == unit)


# --- nothing is released before it is proven ---

def needs_delete(a):
    a.config["retention"] = {"after_delivery": "delete", "keep_for": "0"}
    a.write_config()
    if "not available" in run(DAEMON, "--config", a.config_file, "--check").stderr:
        raise Skip("this build deletes no sources")


def lost_proof(_request, reply):
    """An answer to HEAD that does not say what was sent."""
    reply.body = reply.body[:7]


FALSE_SUCCESS = [
    ("CompleteMultipartUpload", {"status": 404, "code": "NoSuchUpload"}),
    ("CompleteMultipartUpload", {"status": 500, "code": "InternalError"}),
    ("CompleteMultipartUpload", {"status": 200, "code": "InternalError"}),
    ("CompleteMultipartUpload", {"drop": "answer"}),
    ("PutObject", {"status": 404, "code": "NoSuchBucket"}),
    ("PutObject", {"status": 500, "code": "InternalError"}),
    ("PutObject", {"drop": "answer"}),
    ("HeadObject", {"edit": lost_proof, "when": lambda r: r.key.endswith(".tar.zst")}),
    ("HeadObject", {"status": 404, "when": lambda r: r.key.endswith(".tar.zst")}),
]


@test
def a_source_outlives_every_answer_that_is_no_proof_and_goes_once_there_is_one():
    """1: the local copy is deleted although the remote one does not exist."""
    for operation, fault in FALSE_SUCCESS:
        what = f"{operation} {fault}"
        with S3Server() as s3:
            a = Agent()
            a.use_directories()
            a.config["destinations"] = [a.s3("s3", s3, "bucket", part_size="5MiB")]
            needs_delete(a)
            unit = a.incompressible(11 * MIB if operation != "PutObject" else 65536)
            before = tree(unit)
            s3.fault(operation, times=None, **fault)
            a.start()
            s3.wait_for(f"{what} has been met three times",
                        lambda s3=s3: sum(f.n_hits for f in s3.faults) >= 3, 60)
            assert tree(unit) == before, what
            counts = a.assert_sum()
            assert counts["delivered"] == counts["quarantined"] == counts["evicted"] == 0, (
                what, counts)
            s3.clear_faults()
            a.wait_delivered(1)
            wait_for(f"after {what} was over, the source is let go",
                     lambda unit=unit: not os.path.exists(unit) or not tree(unit))
            assert sorted(len(o.body) > 30000
                          for o in s3.objects.values()) == [False, True], (what, list(s3.objects))
            a.stop()


# --- a failed upload is tried again ---

@test
def an_outage_of_many_tries_and_kinds_needs_no_operator():
    """2: a failed upload is never tried again until restart. A long outage is compressed into short
    waits: without a cap on them the doubling alone would make the hundredth request a matter of
    years."""
    with S3Server() as s3:
        proxy, way = through(s3)
        a = Agent()
        a.config["destinations"] = [a.s3("s3", way, "bucket", request_timeout="1s")]
        a.config["retry"] = {"initial": "1ms", "maximum": "20ms", "quarantine_after": 2}
        a.config["log"]["level"] = "notice"
        units = [a.dump(size=4096, cluster_id=f"{i:016x}", pid=i) for i in range(1, 6)]
        before = {u: tree(u) for u in units}
        fault = s3.fault("*", status=503, code="ServiceUnavailable", times=None)
        a.start()
        s3.wait_for("a hundred requests were answered 503", lambda: fault.n_hits >= 100, 120)
        proxy.refuse()
        wait_for("the refusal is said",
                 lambda: "refused" in (a.status()["destinations"][0]["last_error"] or ""))
        proxy.accept()
        proxy.hold()
        wait_for("the silence is said", lambda: "refused"
                 not in (a.status()["destinations"][0]["last_error"] or "refused"), 30)
        counts = a.assert_sum()
        assert counts["quarantined"] == counts["delivered"] == 0 and counts[
            "discovered"] == 5, counts
        s3.clear_faults()
        proxy.cut()
        a.wait_all()
        assert {u: tree(u) for u in units} == before
        assert len(s3.objects) == 10, list(s3.objects)
        assert a.status()["destinations"][0]["state"] == "ok" and metric(
            a, "neuron_collectd_ready") == 1
        a.stop()
        proxy.close()


# --- a truncated dump is not passed off as a good one ---

@test
def an_incomplete_bundle_shows_its_reason_in_every_view():
    """4: a truncated dump looks like a good one."""
    bucket = new_bucket(server())
    a = Agent()
    a.config["sources"] = [a.source("cores", "process-core", "cores"), a.source(
        "core-dumps", "neuron-core-dump", "dumps/dt-%d-cid-%c", max_wait="2s")]
    a.config["destinations"] = [a.s3("s3", server(), bucket)]
    a.core("core.whole.1")
    a.core("core.cut.2", fault="truncated")
    late = a.dump(size=65536)
    held = open(os.path.join(late, f"{INSTANCE}-nd0-nc8-pid-39738-tid-9-lid-9"),
                "wb")  # pylint: disable=consider-using-with
    stop = threading.Event()

    def write():
        while not stop.wait(0.02):
            held.write(b"still at it\n")
            held.flush()
    writer = threading.Thread(target=write)
    writer.start()
    try:
        a.start()
        wait_for("all three are there",
                 lambda: len([b for b in a.bundles() if b["state"] == "delivered"
                              and b["source"] != "agent" and not b["supplement_of"]]) == 3, 60)
    finally:
        stop.set()
        writer.join()
        held.close()
    a.wait_all()
    manifests = {m["source"]["path"]: m for _, m in a.manifests(bucket.fetch())
                 if not m["bundle"]["supplement_of"]}
    for path, word in ((a.path("cores", "core.cut.2"), "truncated"), (late, "max_wait")):
        m = manifests[path]
        b = next(b for b in a.bundles() if b["path"] == path and not b["supplement_of"])
        said = {"manifest": json.dumps([m["bundle"]["reasons"],
                                        [e.get("verdict") for e in m["members"]]]),
                                        "list": json.dumps(b["incomplete"]),
                "show": a.cli("show", b["id"]).stdout, "explain": a.cli("explain", b["id"]).stdout}
        notes.append(f"{path}: {said}")
        assert not m["bundle"]["complete"] and not b["complete"] and m["bundle"]["reasons"] and b[
            "incomplete"], said
        for where, text in said.items():
            assert word in text, f"{where} of {path} does not say {word}: {text}"
    whole = a.path("cores", "core.whole.1")
    assert manifests[whole]["bundle"]["complete"] and bundle_of(a, whole)["complete"]
    a.stop()


# --- no loss without a number ---

@plain_test
def what_was_discovered_is_the_sum_of_the_rest_at_every_moment_of_a_rough_day():
    """12: silent data loss, uncounted."""
    seed = int(os.environ.get("NC_SEED", "20260527"))
    notes.append(f"again with NC_SEED={seed}")
    rng = random.Random(seed)
    bucket = new_bucket(server())
    proxy, way = through(server())
    a = Agent()
    a.use_all_kinds()
    a.config["destinations"].append(a.s3("s3", way, bucket, part_size="5MiB", request_timeout="1s"))
    a.config["retry"] = {"initial": "1ms", "maximum": "50ms", "quarantine_after": 2}
    a.config["log"]["level"] = "notice"
    made, looks = 0, 0

    def look():
        nonlocal looks
        answer = a.curl("/metrics")
        if answer.returncode:
            return None
        looks += 1
        values = {line.split()[0]: float(line.split()[1]) for line in answer.stdout.splitlines()
                  if line.startswith("neuron_collectd_bundles")}
        known = sum(values[f'neuron_collectd_bundles{{state="{s}"}}'] for s in STATES)
        assert known == values['neuron_collectd_bundles_total{state="discovered"}'], values
        a.assert_sum()
        return values

    def discovered(values):
        return values['neuron_collectd_bundles_total{state="discovered"}']

    last = 0
    for turn in range(6 if not is_instrumented() else 2):
        a.start()
        values = look()
        assert discovered(values) >= last, (f"{last} were discovered before the kill, "
                                            f"{discovered(values)} after it")
        for _ in range(4):
            made += 1
            what = rng.choice(("dump", "dump", "core", "directory", "short"))
            if what == "dump":
                a.dump(size=rng.choice((4096, 300_000)), cluster_id=f"{made:016x}", pid=made)
            elif what == "core":
                a.core(f"core.{made}", size=65536)
            elif what == "directory":
                a.incompressible(6 * MIB, str(made))
            else:  # gone before anybody can be sure of it
                os.unlink(a.core(f"core.{made}", size=4096))
            look()
        action = rng.choice(("refuse", "cut", "cancel", "nothing"))
        if action == "refuse":
            proxy.refuse()
        elif action == "cut":
            proxy.cut()
        elif action == "cancel" and a.bundles():
            a.cli("cancel", rng.choice(a.bundles())["id"])
        for _ in range(rng.randrange(20)):
            values = look()
        if action == "refuse":
            proxy.accept()
        last = discovered(look())
        if turn % 2:
            a.kill()
        else:
            a.stop()
    a.start()
    wait_for("nothing is under way", lambda: look() and a.status()["idle"], 60)
    counts = a.assert_sum()
    figures.append(f"{looks} looks, {made} things made: {counts}")
    assert counts["settling"] == counts["ready"] == counts["shipping"] == 0, counts
    assert counts["discovered"] >= last
    listed = [b["state"] for b in a.bundles("?limit=1000")]
    assert {s: listed.count(s) for s in STATES} == {s: counts[s] for s in STATES}
    assert len(a.manifests()) >= counts["delivered"]
    a.stop()


# --- a store that asks for less ---

def in_flight(s3):
    return sum(r.operation == "UploadPart" and not r.ended for r in s3.log)


@plain_test
def a_store_that_answers_slow_down_gets_fewer_requests_at_once():
    """18: a herd after an incident."""
    if is_instrumented():
        raise Skip("instrumented: what is sent at once means nothing")
    bearable = 2
    storm = []

    def too_many(_request):
        storm.append(in_flight(s3) + 1)  # it is not in the log yet
        return storm[-1] > bearable
    with S3Server() as s3:
        a = Agent()
        a.use_directories()
        a.config["limits"] = {"memory": "256MiB", "compression_level": 0, "compression_threads": 1,
                              "request_rate": 0}
        a.config["destinations"] = [a.s3("s3", s3, "bucket", part_size="5MiB", connections=8)]
        a.config["log"]["level"] = "info"
        s3.fault("UploadPart", stall="answer", times=None)
        a.incompressible(240 * MIB)
        a.start()
        s3.wait_for("in peace eight are sent at once", lambda: in_flight(s3) == 8, 120)
        s3.clear_faults()
        s3.latency = 0.8
        s3.fault("UploadPart", status=503, code="SlowDown", times=None, when=too_many)
        s3.release()
        a.wait_delivered(1, 300)
        assert a.counts()["delivered"] == 1 and len(s3.objects) == 2 and not s3.uploads
        refused = sum(n > bearable for n in storm) / len(storm)
        settled = storm[len(storm) // 3:]
        figures.append(f"a store that bears {bearable} parts at once gets "
                       f"{sum(settled) / len(settled):.1f} of 8 on average; "
                       f"{refused * 100:.0f} % of {len(storm)} were refused")
        assert sum(settled) / len(settled) <= 4, storm
        assert refused <= 0.6, storm  # eight at a time would have three of four refused
        a.stop()


# --- secrets ---

@plain_test
def canaries_in_environment_configuration_and_keys_are_found_nowhere():
    """20: secrets leak through the tool itself. What job's files hold is theirs; this is about what
    the agent says and keeps."""
    need("gcore")
    if is_instrumented():
        raise Skip("the core of a sanitized daemon has terabytes")
    proxy, way = through(server())
    bucket = new_bucket(server())
    a = Agent()
    a.config["destinations"] = [a.s3("s3", way, bucket)]
    a.environment |= {"HF_TOKEN": "canary-of-a-job",
                      "DATABASE_URL": "postgres://u:canary-of-a-base@h/d",
                      "NEURON_RT_SECRET": "canary-of-neuron"}
    unit = a.dump(size=65536)
    proxy.refuse()
    a.start()
    wait_for("the fault is said", lambda: a.status()["destinations"][0]["last_error"])
    texts = {"status of a fault": a.curl("/v1/status").stdout,
             "explain": a.cli("explain", bundle_of(a, unit)["id"]).stdout}
    proxy.accept()
    a.wait_all()
    judge(a, bucket, [unit])
    texts |= {path: a.curl(path).stdout for path in ("/v1/status", "/v1/bundles", "/metrics",
                                                     "/readyz")}
    texts |= {command: a.cli("--config", a.config_file, *command.split()).stdout
              for command in ("status", "list", "doctor", "config show")}
    texts["print-config"] = run(DAEMON, "--config", a.config_file, "--print-config",
                                env=a.whole_environment()).stdout
    with open(f"/proc/{a.pid}/cmdline", encoding="utf-8") as f:
        texts["argv"] = f.read()
    if run("gcore", "-o", a.path("core"), str(a.pid)).returncode:
        raise Skip("gcore cannot")
    a.stop()
    texts["log"] = a.log
    for base, _, names in (*os.walk(a.path("state")), *os.walk(a.path("run")),
                           *os.walk(bucket.fetch())):
        for name in names:
            if os.path.isfile(os.path.join(base, name)) and not name.endswith(".tar.zst"):
                with open(os.path.join(base, name), "rb") as f:
                    texts[os.path.join(base, name)] = f.read().decode("latin-1")
    for request in proxy.requests:
        texts[f"{request.method} {request.target}"] = json.dumps(request.headers)
    for where, text in texts.items():
        assert "canary" not in text and server().secret_key not in text, f"a secret is in {where}"
    with open(next(a.path(n) for n in os.listdir(a.dir) if n.startswith("core.")), "rb") as f:
        core = f.read()
    # The environment of the process is the kernel's copy and belongs to who started it; the key
    # that the agent was given is taken out of it.
    assert server().access_key.encode() in core, "this is no core of it"
    assert server().secret_key.encode() not in core, "the secret key is in a core"


@test
def a_password_in_a_proxys_address_is_not_printed():
    """20, for what stands in the configuration."""
    a = Agent()
    a.config["destinations"] = [a.s3("s3", server(), "some-bucket",
                                     proxy="http://user:canary-of-the-proxy@127.0.0.1:9")]
    a.write_config()
    faults = run(DAEMON, "--config", a.config_file, "--check", env=a.whole_environment())
    texts = {"--check": faults.stdout + faults.stderr,
             "--print-config": run(DAEMON, "--config", a.config_file, "--print-config").stdout}
    if faults.returncode == 0:
        a.dump(size=4096)
        a.start()
        error = wait_for("the fault is said", lambda: a.status()["destinations"][0]["last_error"])
        texts |= {"last_error": error, "status": a.cli("status").stdout,
                  "explain": a.cli("explain", a.bundles()[0]["id"]).stdout,
                  "doctor": a.cli("--config", a.config_file, "doctor").stdout}
        a.stop()
        texts["log"] = a.log
    for where, text in texts.items():
        assert "canary" not in text, f"the proxy's password is in {where}: {text}"


# --- did it work? ---

@test
def readyz_answers_whether_a_bundle_could_be_delivered_now_also_before_there_is_one():
    """24: "did it work?" has no answer."""
    bucket = new_bucket(server(), make=False)
    a = Agent()
    a.config["destinations"] = [a.s3("s3", server(), bucket)]
    a.start()
    answer = wait_for("a bucket that is not there is noticed although nothing is to be delivered",
                      lambda: (r := a.curl("/readyz")).returncode and r.stdout + r.stderr, 30)
    assert "s3" in answer, answer
    doctor = a.cli("--config", a.config_file, "doctor")
    assert doctor.returncode != 0 and bucket.name in doctor.stdout, doctor.stdout
    unit = a.dump(size=65536)
    a.wait_known(1)
    wait_for("explain says the reason",
             lambda: bucket.name in a.cli("explain", bundle_of(a, unit)["id"]).stdout)
    bucket.make()
    a.wait_all()
    assert a.curl("/readyz").returncode == 0
    assert "delivered" in a.cli("explain", bundle_of(a, unit)["id"]).stdout
    assert a.cli("--config", a.config_file, "doctor").returncode == 0
    judge(a, bucket, [unit])
    a.stop()


# --- no orphan upload ---

def to_abort(a):
    return int(a.sql("select count(*) from aborts"))


@test
def an_abort_that_the_network_prevents_is_kept_over_a_kill_and_done_later():
    """25: orphaned multipart uploads cost money and nobody sees them."""
    bucket = new_bucket(server())
    proxy, way = through(server())
    a = Agent()
    a.use_directories()
    a.config["destinations"] = [a.s3("s3", way, bucket, part_size="5MiB", connections=2,
                                     request_timeout="1s")]
    a.incompressible(24 * MIB)
    proxy.hold_after(12 * MIB)
    a.start(wait=False)
    wait_for("the wire stands still in the middle of the upload", proxy.is_holding, 60)
    wait_for("the daemon answers", a.is_healthy)
    proxy.refuse()
    assert a.cli("cancel", a.bundles()[0]["id"]).returncode == 0
    wait_for("it is cancelled", lambda: a.counts()["cancelled"] == 1)
    wait_for("the abort is written down", lambda: to_abort(a) == 1)
    wait_for("the metric shows it", lambda: metric(a, "neuron_collectd_uploads_to_abort") == 1)
    a.kill()
    assert len(bucket.uploads()) == 1
    a.start()  # the network is still down
    wait_for("the metric shows it also after kill -9",
             lambda: metric(a, "neuron_collectd_uploads_to_abort") == 1)
    proxy.accept()
    wait_for("it is aborted by itself", lambda: not bucket.uploads(), 60)
    wait_for("the metric shows that", lambda: metric(a, "neuron_collectd_uploads_to_abort") == 0)
    assert metric(a, "neuron_collectd_aborted_uploads_total") >= 1
    assert not bucket.objects() and to_abort(a) == 0
    a.stop()
    proxy.close()


# --- a bad configuration does no harm ---

@test
def a_reload_is_applied_completely_or_not_at_all_and_a_typo_does_not_touch_what_runs():
    """23: reload and validation lie."""
    a = Agent()
    a.config["log"]["level"] = "info"
    a.start()
    pid = a.pid
    a.config["sources"].append(a.source("jobs", "directory", "jobs/job-%p"))
    a.config["sources"][0]["setle"] = "1s"
    a.write_config()
    with open(a.config_file, encoding="utf-8") as f:
        line = next(n for n, text in enumerate(f, 1) if "setle" in text)
    a.reload()
    error = wait_for("status has the fault", lambda: a.status()["config"]["last_error"])
    assert f"neuron-collectd.yaml:{line}" in str(error) and "setle" in str(error), error
    assert run(DAEMON, "--config", a.config_file, "--check").returncode == 2
    assert [s["name"] for s in a.status()["sources"]] == [
        "core-dumps", "agent"], "half of a faulty file was taken"
    unit = a.dump(size=65536)
    a.wait_delivered(1)
    check_bundle(a.only_manifest()[0], unit, tools=("tar",))
    del a.config["sources"][0]["setle"]
    a.config["api"]["socket"] = a.path("run", "other.sock")
    a.write_config()
    os.kill(pid, 1)
    socket, a.config["api"]["socket"] = a.config["api"]["socket"], a.socket
    wait_for("what needs a restart is said",
             lambda: "api.socket" in str(a.status()["config"]["pending_restart"]))
    status = a.status()
    assert not status["config"]["last_error"] and [s["name"] for s in status["sources"]] == [
        "core-dumps", "jobs", "agent"], status["config"]
    assert not os.path.exists(socket) and a.pid == pid
    default = a.config["agreement"]
    for enabled, waits in ((not default["enabled"], "agreement.enabled"), (default["enabled"], None)):
        a.config["agreement"] = default | {"enabled": enabled}  # api.socket is as before
        a.write_config()
        a.reload()
        wait_for(f"what waits for a restart is {waits}",
                 lambda expected=waits: a.status()["config"]["pending_restart"] == expected)
    a.stop()


# --- the list itself ---

@test
def every_test_that_the_list_names_is_there():
    with open(os.path.join(SOURCE_DIR, "docs", "TESTING.md"), encoding="utf-8") as f:
        table = f.read().split("## What users of comparable tools suffer from")[1]
    rows = re.findall(r"^\| [0-9, ]+ \|.*$", table, re.M)
    assert len(rows) >= 24, len(rows)
    for row in rows:
        named = re.findall(r"`([\w/.]+)`", row)
        assert named or "does not exist yet" in row, f"no test is named in: {row}"
        for file in named:
            path = os.path.join(SOURCE_DIR, "tests", file)
            assert os.path.exists(path), f"{path} is named in docs/TESTING.md and does not exist"


if __name__ == "__main__":
    sys.exit(main(cleanup))
