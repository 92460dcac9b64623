#!/usr/bin/env python3
"""--once: for a Slurm epilog, a preStop hook, a cron job. Its exit status is what scripts rely
on."""
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import (DAEMON, INSTANCE, Agent, check_bundle, need, need_root, run, tree,
                   wait_for)
from s3_server import S3Server
from s3tools import judge_server
from tap import main, test
from test_notes import clean_up, serve_faultfs

NOBODY = 65534


@test
def once_delivers_what_is_there_and_exits_0():
    a = Agent()
    a.use_all_kinds()
    sources = [a.dump(size=3 << 20), a.profile(), a.core()]
    result = a.once()
    assert result.returncode == 0, result.stdout + result.stderr
    by_path = {m["source"]["path"]: path for path, m in a.manifests()}
    assert set(by_path) == set(sources), by_path
    for source in sources:
        check_bundle(by_path[source], source, tools=("tar",))


@test
def once_with_nothing_to_do_exits_0_and_soon():
    a = Agent()
    result = a.once(timeout=20)
    assert result.returncode == 0, result.stdout + result.stderr
    assert not a.manifests()


@test
def once_a_second_time_delivers_nothing_twice():
    a = Agent()
    unit = a.dump()
    assert a.once().returncode == 0
    path, _ = a.only_manifest()
    before = os.stat(path)
    assert a.once().returncode == 0
    assert os.stat(a.only_manifest()[0]).st_mtime_ns == before.st_mtime_ns
    check_bundle(path, unit, tools=("tar",))


@test
def once_reports_what_remains_and_exits_1():
    need_root()
    a = Agent()
    a.dump()
    a.config["destinations"][0]["path"] = "/proc/neuron-e2e-nowhere/%d-%c"
    result = a.once("--timeout", "5s")
    assert result.returncode == 1, (result.returncode, result.stdout, result.stderr)
    left = [line for line in result.stdout.splitlines()
            if "neuron-core-dump-20260527T051233-" in line]
    assert len(left) == 1, result.stdout


@test
def once_outlives_a_store_that_asks_for_less():
    with S3Server() as s3:
        s3.fault("PutObject", status=503, code="SlowDown", times=None)
        a = Agent()
        a.config["destinations"] = [a.s3("s3", s3, "bucket")]
        a.config["retry"] = {"initial": "50ms", "maximum": "200ms"}
        a.dump()
        ends = threading.Timer(15, s3.clear_faults)
        ends.start()
        result = a.once("--timeout", "60s")
        ends.cancel()
        assert result.returncode == 0, result.stdout + result.stderr
        assert len(s3.objects) == 2, list(s3.objects)


@test
def once_outlives_a_store_that_fails_all_writes():
    with S3Server() as s3:
        for operation in ("PutObject", "CreateMultipartUpload"):
            s3.fault(operation, status=500, code="InternalError", times=None)
        a = Agent()
        a.use_directories()
        a.config["destinations"] = [a.s3("s3", s3, "bucket", part_size="5MiB")]
        a.config["retry"] = {"initial": "20ms", "maximum": "100ms"}
        units = [a.incompressible(30000, "1"), a.incompressible(6 << 20, "2")]
        ends = threading.Timer(10, s3.clear_faults)
        ends.start()
        result = a.once("--timeout", "60s")
        ends.cancel()
        assert result.returncode == 0, result.stdout + result.stderr
        judge_server(s3, units)


@test
def once_outlives_a_volume_whose_server_is_away_as_source_and_as_destination():
    need_root()
    for error in ("EIO", "ESTALE"):
        for place, operation in (("share", "write"), ("dumps", "read")):
            a = Agent()
            serve_faultfs(a, a.path(place))
            a.config["destinations"] = [a.volume("archive", "share")]
            a.config["retry"] = {"initial": "20ms", "maximum": "100ms", "quarantine_after": 10000}
            unit = a.dump()
            control = os.path.join(a.path(place), ".faultfs")
            with open(control, "w", encoding="ascii") as f:
                f.write(f"{operation} {error} 0{' .tar.zst' if place == 'share' else ''}\n")

            def clear(control=control):
                with open(control, "w", encoding="ascii") as f:
                    f.write("clear\n")
            ends = threading.Timer(5, clear)
            ends.start()
            result = a.once("--timeout", "60s")
            ends.cancel()
            assert result.returncode == 0, (error, place, result.stdout + result.stderr)
            path, _ = a.only_manifest(a.path("share"))
            check_bundle(path, unit, tools=("tar",))


@test
def a_member_whose_server_is_away_is_waited_for_and_not_called_unreadable():
    need_root()
    a = Agent()
    serve_faultfs(a, a.path("dumps"))
    a.config["retry"] = {"initial": "20ms", "maximum": "100ms", "quarantine_after": 3}
    unit = a.dump()
    member = sorted(os.listdir(unit))[0]
    control = os.path.join(a.path("dumps"), ".faultfs")
    with open(control, "w", encoding="ascii") as f:
        f.write(f"open ETIMEDOUT 0 {member}\n")
    a.start()
    wait_for("the delivery has failed", lambda: a.bundles() and
             "timed out" in str(a.bundles()[0]["deliveries"]))
    time.sleep(1)  # many times what it takes to give up
    with open(control, "w", encoding="ascii") as f:
        f.write("clear\n")
    a.wait_delivered(1)
    _, m = a.only_manifest()
    assert m["bundle"]["complete"] and not m["bundle"]["reasons"], m["bundle"]
    a.stop()


@test
def once_is_not_satisfied_with_a_dump_of_which_nothing_was_collected():
    need_root()
    a = Agent()
    a.use_directories()
    unit = a.path("jobs", "job-1")
    os.makedirs(unit)
    with open(a.path("elsewhere"), "wb") as f:
        f.write(b"x" * 1000)
    os.link(a.path("elsewhere"), os.path.join(unit, "data"))
    os.chown(unit, NOBODY, NOBODY)
    for _ in range(2):
        result = a.once("--timeout", "20s")
        assert result.returncode == 1, (result.returncode, result.stdout, result.stderr)
        assert "hard-link" in result.stdout and unit in result.stdout, result.stdout
    shutil.rmtree(unit)
    assert a.once().returncode == 0


@test
def once_is_not_satisfied_while_abandoned_uploads_are_left():
    with S3Server() as s3:
        a = Agent()
        a.use_directories()
        a.config["destinations"] = [a.s3("s3", s3, "bucket")]
        assert a.once().returncode == 0
        a.sql("INSERT INTO aborts (destination, key, upload_id, since_usec) "
              "VALUES ('s3', 'neuron/a.tar.zst', 'upload-1', 1)")
        s3.fault("AbortMultipartUpload", status=403, times=1000)
        result = a.once("--timeout", "20s")
        assert result.returncode == 1 and "1 abandoned uploads" in result.stdout, result
        s3.clear_faults()
        assert a.once().returncode == 0


@test
def once_does_not_wait_for_what_was_left_at_a_destination_that_is_gone():
    a = Agent()
    a.use_directories()
    assert a.once().returncode == 0
    a.sql("INSERT INTO aborts (destination, key, upload_id, since_usec) "
          "VALUES ('former', 'neuron/a.tar.zst', 'upload-1', 1)")
    result = a.once("--timeout", "20s")
    assert result.returncode == 0, result
    with open(os.path.join(a.out, "file"), "wb"):
        pass
    a.sql("INSERT INTO aborts (destination, key, upload_id, since_usec) "
          "VALUES ('archive', 'file/a.tar.zst', NULL, 1)")
    result = a.once("--timeout", "5s")
    assert result.returncode == 1 and "1 abandoned temporary files" in result.stdout, result
    assert "s3:" not in result.stdout, result


@test
def once_is_satisfied_with_a_lost_answer_to_create_if_listing_found_nothing_left():
    with S3Server() as s3:
        a = Agent()
        a.use_directories()
        a.config["destinations"] = [a.s3("s3", s3, "bucket", part_size="5MiB")]
        a.config["retry"] |= {"initial": "50ms", "maximum": "1s"}
        os.makedirs(a.path("jobs", "job-1"))
        with open(a.path("jobs", "job-1", "data"), "wb") as f:
            f.write(os.urandom(20 << 20))
        s3.fault("CreateMultipartUpload", drop="answer", times=4)  # one attempt
        result = a.once()
        assert result.returncode == 0, (result.returncode, result.stdout, result.stderr)
        assert not s3.uploads
        assert a.sql("SELECT upload_id IS NULL FROM aborts") == "1"
        s3.fault("ListMultipartUploads", status=403, times=1000)
        result = a.once("--timeout", "20s")
        assert result.returncode == 1 and "1 abandoned uploads" in result.stdout, result


@test
def once_waits_until_the_links_of_what_it_delivered_are_removed():
    need("strace")
    a = Agent()
    a.use_directories()
    unit = a.path("jobs", "job-1")
    os.makedirs(unit)
    for i in range(1000):
        with open(os.path.join(unit, f"file-{i}"), "wb") as f:
            f.write(b"x")
    a.environment["ASAN_OPTIONS"] = "detect_leaks=0"  # which does not work below strace
    a.prefix = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=unlinkat", "-e",
                "inject=unlinkat:delay_enter=5000"]
    result = a.once()
    assert result.returncode == 0, (result.returncode, result.stdout, result.stderr)
    pins = [f for f in tree(a.path()) if b".neuron-collectd/" in f]
    assert not pins, f"{len(pins)} links are left"


@test
def links_that_a_slow_run_leaves_have_a_row_and_the_next_run_removes_them():
    need("strace")
    a = Agent()
    a.config["sources"] = [a.source("jobs", "directory", "jobs/job-%p")]
    unit = a.path("jobs", "job-1")
    os.makedirs(unit)
    for i in range(2000):
        with open(os.path.join(unit, f"{i}"), "wb") as f:
            f.write(b"%d" % i)
    wanted = tree(unit)
    a.environment["ASAN_OPTIONS"] = "detect_leaks=0"  # which does not work below strace
    a.write_config()
    place = a.path(".neuron-collectd", INSTANCE)
    for call in ("linkat", "unlinkat"):  # it ends while links are made, and while they go
        run("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e",
            f"inject={call}:delay_enter=10000", DAEMON, "--config", a.config_file, "--once",
            "--timeout", "5s", env=a.whole_environment(), cwd=a.dir)
        assert [n for n in os.listdir(place) if n[0] != "."] == a.sql(
            "SELECT id FROM bundles").split(), os.listdir(place)
        left = len(tree(place))
        assert 0 < left and (left < 2000 or call == "unlinkat"), f"not cut in {call}: {left}"
    result = a.once()
    assert result.returncode == 0, result.stdout + result.stderr
    check_bundle(a.only_manifest()[0], wanted, tools=("tar",))
    assert not tree(place), os.listdir(place)
    assert tree(unit) == wanted


@test
def once_with_a_faulty_configuration_exits_2():
    a = Agent()
    a.config["sources"][0]["kind"] = "neuron-core-dumps"
    result = a.once()
    assert result.returncode == 2, (result.returncode, result.stderr)
    assert "neuron-core-dump" in result.stderr, result.stderr


@test
def once_goes_through_the_daemon_that_holds_the_state():
    a = Agent().start()
    unit = a.dump()
    result = a.once()
    assert result.returncode == 0, result.stdout + result.stderr
    check_bundle(a.only_manifest()[0], unit, tools=("tar",))
    assert a.counts()["delivered"] == 1
    a.stop()


@test
def once_through_the_daemon_ends_when_it_is_told_to():
    a = Agent()
    a.config["sources"][0]["settle"] = "600s"
    a.start()
    a.dump()
    a.wait_known(1)
    with subprocess.Popen([DAEMON, "--config", a.config_file, "--once"], cwd=a.dir,
                          env=a.whole_environment(), stdout=subprocess.DEVNULL) as once:
        link = f"/proc/{once.pid}/exe"
        wait_for("it is the command line that waits",
                 lambda: os.readlink(link).endswith("/neuron-collect"))
        with open(f"/proc/{once.pid}/status", encoding="ascii") as f:
            blocked = [line for line in f if line.startswith("SigBlk")]
        once.terminate()
        once.wait(60)
    assert int(blocked[0].split()[1], 16) == 0, blocked
    assert once.returncode == -signal.SIGTERM, once.returncode
    a.stop()


@test
def once_reports_that_it_waits_for_a_source_that_is_being_written():
    a = Agent()
    unit = a.dump()
    with open(os.path.join(unit, "growing"), "wb") as f:
        f.write(b"begun")
        f.flush()
        a.config["sources"][0]["settle"] = "60s"
        result = a.once("--timeout", "4s")
    assert result.returncode == 1, (result.returncode, result.stdout)
    assert "neuron-core-dump-" in result.stdout, result.stdout


@test
def a_daemon_that_hangs_does_not_outlast_the_timeout():
    a = Agent().start()
    os.kill(a.pid, signal.SIGSTOP)
    for what in (lambda: a.once("--timeout", "2s"), lambda: a.cli("wait", "--all", "--timeout",
                                                                  "2s")):
        begin = time.monotonic()
        result = what()
        took = time.monotonic() - begin
        assert result.returncode in (1, 3) and "neuron-collectd" in result.stderr, result
        assert took < 25, f"{took:.0f} s"  # an answer is waited for 30 s without a --timeout
    os.kill(a.pid, signal.SIGCONT)
    a.stop()


@test
def the_command_line_names_what_it_can_and_what_it_cannot():
    result = run(DAEMON, "--help")
    assert (result.returncode == 0 and "--once" in result.stdout and "--check" in result.stdout
            and not result.stderr)
    result = run(DAEMON, "--version")
    assert result.returncode == 0 and "0." in result.stdout
    result = run(DAEMON, "--one")
    assert result.returncode == 2 and result.stderr and not result.stdout, (
        result.returncode, result.stderr)
    result = run(DAEMON, "--once", "--timeout", "soon")
    assert result.returncode == 2 and "soon" in result.stderr, (result.returncode, result.stderr)


if __name__ == "__main__":
    sys.exit(main(clean_up))
