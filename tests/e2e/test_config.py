#!/usr/bin/env python3
"""Configuration as an operator meets it: --check, --print-config, reload."""
import os
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import DAEMON, Agent, check_bundle, cleanup, run, wait_for
from s3_server import S3Server
from tap import main, test


def check(a, text=None):
    a.write_config(text)
    return run(DAEMON, "--config", a.config_file, "--check")


@test
def a_good_file_passes_and_check_names_it():
    a = Agent()
    a.use_all_kinds()
    result = check(a)
    assert result.returncode == 0 and not result.stderr, result.stderr
    assert result.stdout == f"'{a.config_file}': no faults\n", result.stdout


@test
def an_address_that_cannot_be_listened_on_is_a_fault_of_the_configuration():
    for listen in ("node7:9733", "127.0.0.1:http", "[::1", "127.1:9733", "0x7f000001:9733"):
        a = Agent()
        a.config["api"]["listen"] = listen
        result = check(a)
        assert result.returncode == 2 and "api.listen" in result.stderr, (listen, result)
    a = Agent()
    a.config["api"]["listen"] = "203.0.113.1:9733"  # only the start finds out
    assert check(a).returncode == 0
    result = run(DAEMON, "--config", a.config_file, env=a.whole_environment(), cwd=a.dir)
    assert result.returncode == 2 and "an address of this node" in result.stderr, result


@test
def a_variable_between_braces_gets_the_advice_to_quote_it():
    a = Agent()
    result = check(a, "version: 1\nnode: {instance_id: ${ID}}\n")
    assert result.returncode == 2 and "quotes, as in \"${NAME}\"" in result.stderr, result.stderr


@test
def every_error_is_reported_in_one_run_with_file_line_key_and_remedy():
    a = Agent()
    text = f"""version: 1
state_directory: {a.path("state")}
sorces: []
sources:
  - name: core-dumps
    kind: neuron-core-dump
    path: {a.path("dumps")}/dt-%d-cid-%c
    settle: 10 parsecs
    destinations: [archiv]
destinations:
  - name: archive
    type: volume
    path: {a.path("out")}/%z
limits:
  memory: 64MiB
  memory: 65MiB
"""
    result = check(a, text)
    assert result.returncode == 2 and not result.stdout
    lines = [line for line in result.stderr.splitlines() if line.startswith(a.config_file + ":")]
    for number, key, word in ((3, "sorces", "sources"), (8, "sources[0].settle", "parsecs"),
                              (9, "sources[0].destinations", "archiv"),
                              (13, "destinations[0].path", "%z"), (16, "limits.memory", "15")):
        hits = [line for line in lines if line.startswith(f"{a.config_file}:{number}: {key}")]
        assert len(hits) >= 1 and any(word in h and ";" in h
                                      for h in hits), (number, key, result.stderr)
    assert not any(line.rstrip().endswith(".") for line in lines), result.stderr


@test
def what_is_not_built_yet_is_refused_by_name():
    a = Agent()
    a.config["limits"] = {"fleet_rate": "1MiB/s"}
    result = check(a)
    assert (result.returncode == 2
            and "not available in this version" in result.stderr), result.stderr
    a = Agent()
    a.config["redaction"] = {"on": True}
    result = check(a)
    assert (result.returncode == 2
            and "not available in this version" in result.stderr), result.stderr


@test
def an_impossible_memory_limit_is_a_fault():
    a = Agent()
    a.config["limits"] = {"memory": "1MiB", "memory_max": "1MiB", "compression_level": 19}
    result = check(a)
    assert result.returncode == 2 and "limits.memory" in result.stderr, result.stderr


@test
def a_missing_file_a_directory_and_binary_rubbish_are_faults_not_crashes():
    a = Agent()
    for make in (lambda p: None, os.mkdir,
                 lambda p: open(p, "wb").write(bytes(
                     range(256)) * 50)):  # pylint: disable=consider-using-with
        path = a.path(f"c{id(make)}")
        make(path)
        result = run(DAEMON, "--config", path, "--check")
        assert result.returncode == 2 and path in result.stderr, (result.returncode, result.stderr)


@test
def environment_names_are_expanded_and_undefined_ones_are_faults():
    a = Agent()
    a.config["node"]["labels"] = {"cluster": "${E2E_CLUSTER}"}
    a.environment["E2E_CLUSTER"] = "from-the-environment"
    a.dump()
    a.start()
    a.wait_known(1)
    a.wait_all()
    assert a.only_manifest()[1]["node"]["labels"] == {"cluster": "from-the-environment"}
    a.stop()
    a.config["node"]["labels"] = {"cluster": "${E2E_NOT_DEFINED_ANYWHERE}"}
    result = check(a)
    assert result.returncode == 2 and "E2E_NOT_DEFINED_ANYWHERE" in result.stderr


@test
def print_config_gives_a_file_that_gives_the_same_again():
    a = Agent()
    a.use_all_kinds()
    a.config["limits"] = {"memory": "100MiB"}
    a.config["retention"] = {"keep_free": "7%"}
    a.write_config()
    first = run(DAEMON, "--config", a.config_file, "--print-config")
    assert first.returncode == 0 and first.stdout, first.stderr
    again = a.path("again.yaml")
    with open(again, "w", encoding="utf-8") as f:
        f.write(first.stdout)
    assert run(DAEMON, "--config", again, "--check").stderr == ""
    second = run(DAEMON, "--config", again, "--print-config")

    def bare(text):
        return [line.split(" #")[0].rstrip() for line in text.splitlines()
                if line.split("#")[0].strip()]

    assert bare(first.stdout) == bare(second.stdout)
    settled = [line for line in first.stdout.splitlines() if line.strip().startswith("settle:")]
    assert any(os.path.basename(a.config_file) + ":" in line for line in settled), settled
    assert any("default" in line for line in first.stdout.splitlines() if "scan_interval" in line)


@test
def a_reload_brings_a_new_source_and_keeps_what_runs():
    a = Agent().start()
    a.dump()
    a.wait_known(1)
    a.wait_all()
    pid = a.pid
    a.config["sources"].append(a.source("jobs", "directory", "jobs/job-%p"))
    a.config["node"]["labels"] = {"cluster": "after-reload"}
    os.makedirs(a.path("jobs", "job-1"))
    with open(a.path("jobs", "job-1", "x"), "w", encoding="ascii") as f:
        f.write("new source")
    a.write_config()
    a.reload()
    a.wait_delivered(2)
    m = next(m for _, m in a.manifests() if m["source"]["name"] == "jobs")
    assert m["node"]["labels"] == {"cluster": "after-reload"}
    assert a.pid == pid and a.process.poll() is None
    a.stop()


@test
def a_faulty_reload_keeps_the_running_configuration_and_names_the_line():
    a = Agent().start()
    good = open(a.config_file, encoding="utf-8").read()  # pylint: disable=consider-using-with
    a.write_config(good + "no_such_key: 1\n")
    n = good.count("\n") + 1
    a.reload()
    error = wait_for("status says the fault", lambda: a.status()["config"]["last_error"])
    assert "no_such_key" in str(error) and f":{n}" in str(error), error
    assert "no_such_key" in a.log and "no_such_key" in a.cli("status").stdout
    unit = a.dump()
    a.wait_delivered(1)
    check_bundle(a.only_manifest()[0], unit, tools=("tar",))
    a.write_config(good)
    a.reload()
    wait_for("the corrected file is in force", lambda: not a.status()["config"]["last_error"])
    a.stop()


@test
def a_reload_names_the_keys_that_need_a_restart():
    a = Agent().start()
    a.config["api"]["socket"] = a.path("run", "other.sock")
    a.write_config()
    a.reload()
    wait_for("the log names api.socket", lambda: "api.socket" in a.log and "restart" in a.log)
    assert a.is_healthy()
    a.stop()


@test
def the_cli_checks_and_shows_as_the_daemon_does():
    a = Agent()
    a.write_config()
    result = a.cli("--config", a.config_file, "config", "check")
    assert result.returncode == 0, result.stderr
    shown = a.cli("--config", a.config_file, "config", "show")
    assert shown.stdout == run(DAEMON, "--config", a.config_file,
                               "--print-config").stdout and shown.stdout
    a.config["sources"][0]["setle"] = "1s"
    a.write_config()
    result = a.cli("--config", a.config_file, "config", "check")
    assert result.returncode == 2 and "settle" in result.stderr, result.stderr


def faults(a, key, value, where=None):
    """What --check and `config check` say of one key that is changed for it."""
    where = a.config if where is None else where
    before = where.get(key)
    where[key] = value
    results = [check(a), a.cli("--config", a.config_file, "config", "check")]
    where.pop(key) if before is None else where.update({key: before})
    assert results[0].returncode == results[1].returncode, results
    assert results[0].stderr == results[1].stderr, results
    return results[0].stderr if results[0].returncode == 2 else ""


@test
def what_people_write_is_refused_with_what_they_meant():
    a = Agent()
    a.rests = True  # limits stay as they are
    source, limits = a.config["sources"][0], a.config.setdefault("limits", {})
    volume = a.config["destinations"][0]
    bucket = {"name": "s3", "type": "s3", "bucket": "bucket", "prefix": "neuron/%d-%c"}
    a.config["destinations"].append(bucket)
    for path in ("/dumps/*", "/dumps/job-*/dt-%d-cid-%c", "/dumps/dt-????", "/dumps/[0-9]*",
                 "/dumps/{a,b}"):
        assert "is not expanded" in faults(a, "path", path, source), path
    assert "is not expanded" in faults(a, "path", "/fsx/*/%d-%c", volume)
    for path in ("/dumps/a[b", "/dumps/{x}/%d-%c"):
        assert not faults(a, "path", path, source), path
    for name in ("logs--use1-az4--x-s3", "table--table-s3", "lambda--ol-s3"):
        assert "is not a general purpose bucket" in faults(a, "bucket", name, bucket), name
    for zone in ("us-east-1a", "us-gov-west-1b", "us-west-2-lax-1a"):
        assert "is an availability zone" in faults(a, "region", zone, bucket), zone
    for mode in ("01777", "1777", "0770", "00777", "777"):
        assert not faults(a, "mode", mode, volume), mode
    for mode in ("017777", "01", "11777", "0677"):
        assert "mode" in faults(a, "mode", mode, volume), mode
    for where, key, wrong, right in (
            (limits, "memory", "64MB", "64MiB"), (limits, "memory", "64 MiB", "64MiB"),
            (limits, "memory", "64mb", "64MiB"), (bucket, "part_size", "1gb", "1GiB"),
            (limits, "upload_rate", "50MB/s", "50MiB/s"),
            (limits, "upload_rate", "50MiB", "50MiB/s"),
            (volume, "min_free", "10GB", "10GiB"),
            (source, "settle", "10sec", "10s"), (source, "max_wait", "5 min", "5m"),
            (source, "scan_interval", "1hour", "1h")):
        assert f"; write {right}" in faults(a, key, wrong, where), (key, wrong)
    assert "; write 50" not in faults(a, "upload_rate", "50Mb/s", limits), "bits are no bytes"
    for where, key, wrong, right in (
            (source, "kind", "neuron-coredump", "neuron-core-dump"),
            (source, "watch", "inotfy", "inotify"), (volume, "type", "Volume", "volume"),
            (bucket, "sse", "aes256", "AES256"), (bucket, "addressing", "paths", "path")):
        assert f"; did you mean '{right}'?" in faults(a, key, wrong, where), (key, wrong)
    assert "did you mean" not in faults(a, "kind", "tarball", source)


@test
def files_that_the_configuration_names_are_looked_at():
    a = Agent()
    key_file = a.path("bus.key")
    a.config["agreement"] = {"key_file": key_file}
    assert key_file in (said := faults(a, "version", 1)) and "No such file" in said, said
    with open(key_file, "w", encoding="ascii") as f:
        f.write(f"a:{'0f' * 32}\n")
    for mode, word in ((0o644, "others may read"), (0o600, ""), (0o440, "")):
        os.chmod(key_file, mode)
        said = faults(a, "version", 1)
        assert (word in said and key_file in said) if word else not said, (oct(mode), said)
    with open(key_file, "w", encoding="ascii") as f:
        f.write("a:0f\n")
    assert "64 hex digits" in faults(a, "version", 1)
    a.config["agreement"] = {"enabled": False}
    a.config["destinations"].append({"name": "s3", "type": "s3", "bucket": "bucket",
                                     "ca_file": a.path("ca.pem")})
    said = faults(a, "version", 1)
    assert "destinations[1].ca_file" in said and "No such file" in said, said


@test
def the_region_comes_from_the_configuration_else_from_the_environment():
    for configured, environment, wanted in (
            (None, {}, "us-east-1"), (None, {"AWS_REGION": "eu-west-1"}, "eu-west-1"),
            (None, {"AWS_DEFAULT_REGION": "eu-west-2"}, "eu-west-2"),
            (None, {"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-2"}, "eu-west-1"),
            ("ap-south-1", {"AWS_REGION": "eu-west-1"}, "ap-south-1")):
        with S3Server(region=wanted) as s:
            a = Agent()
            a.config["destinations"] = [a.s3("s3", s, s.bucket)]
            del a.config["destinations"][0]["region"]
            if configured:
                a.config["destinations"][0]["region"] = configured
            a.environment |= environment
            a.dump(size=65536)
            result = a.once()
            assert result.returncode == 0, result
            assert {r.scope_region for r in s.log} == {wanted}, (environment, s.counts())
            assert not [r for r in s.log if r.status == 400], "it was not learned from an error"


if __name__ == "__main__":
    sys.exit(main(cleanup))
