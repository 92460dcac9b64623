#!/usr/bin/env python3
"""Configuration as an operator meets it: --check, --print-config, reload."""
import os
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import DAEMON, Agent, check_bundle, cleanup, run, wait_for
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


if __name__ == "__main__":
    sys.exit(main(cleanup))
