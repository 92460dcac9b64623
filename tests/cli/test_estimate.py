#!/usr/bin/env python3
"""neuron-collect estimate tells the bundles, ids and objects that the daemon then makes, and
nothing else."""
import json
import os
import re
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
# pylint: disable=wrong-import-position
from cli_test import CLI, main, run, test

from agent import INSTANCE, Agent, cleanup, need_root, object_of
from s3_server import S3Server

EARLY = 1_600_000_000


def everything(a):
    """Units of all kinds, with and without what an id can be made of."""
    a.use_all_kinds()
    a.config["sources"].append(a.source("loose", "neuron-core-dump", "flat"))
    a.config["destinations"] = [a.volume("archive", "out"),
                                {"name": "second", "type": "volume",
                                 "path": a.path("out2", "%k", "%n-%u-%h", "%i", "%d-%c"),
                                 "min_free": "0"}]
    a.dump(size=1 << 20)
    a.dump(size=1 << 18, cluster_id="00000000000000bb", pid=77)
    a.profile()
    a.core()
    a.core(name="core.other.1")
    for name in ("job-1", "job-22"):
        os.makedirs(a.path("jobs", name, "sub"))
        with open(a.path("jobs", name, "sub", "log"), "w", encoding="ascii") as f:
            f.write(name)
        os.utime(a.path("jobs", name, "sub", "log"), (EARLY, EARLY))
    with open(a.path("jobs", "not-a-job"), "w", encoding="ascii") as f:
        f.write("a stray file")
    os.makedirs(a.path("flat"))
    with open(a.path("flat", INSTANCE + "-dump"), "w", encoding="ascii") as f:
        f.write("y")


def estimate(a, *options):
    a.write_config()
    return run(CLI, "--config", a.config_file, *options, "estimate")


@test
def ids_and_objects_are_those_that_the_daemon_delivers():
    a = Agent()
    everything(a)
    result = estimate(a, "--json")
    assert result.returncode == 0 and not result.stderr, result
    told = {b["id"]: b for b in json.loads(result.stdout)}
    done = a.once()
    assert done.returncode == 0, done.stdout + done.stderr
    made = {}
    for where in (a.out, a.path("out2")):
        for path, m in a.manifests(where):
            made.setdefault(m["bundle"]["id"], []).append((object_of(path), m))
    assert set(told) == set(made) and len(made) >= 7, (sorted(told), sorted(made))
    for bundle_id, copies in made.items():
        assert sorted(told[bundle_id]["objects"]) == sorted(path for path,
                                                            _ in copies), (told[bundle_id], copies)
        m = copies[0][1]
        assert told[bundle_id]["source"] == m["source"]["name"] and told[bundle_id]["path"] == m[
            "source"]["path"]
        assert told[bundle_id]["files"] == len(m["members"]), bundle_id
        assert told[bundle_id]["bytes"] == sum(e["bytes"] for e in m["members"]), bundle_id
    # and again afterwards: it asks no agent, so what is delivered is still told, under the same
    # names
    assert {b["id"] for b in json.loads(estimate(a, "--json").stdout)} == set(told)


@test
def objects_in_buckets_are_reported_as_urls_and_are_those_that_the_daemon_makes():
    with S3Server() as s:
        a = Agent()
        everything(a)
        bucket = {"type": "s3", "bucket": s.bucket, "endpoint": s.endpoint}
        a.config["destinations"] = [{"name": "one", "prefix": "neuron/%k/%d-%c", **bucket},
                                    {"name": "two", "prefix": "fixed/%n %u+%h", **bucket}]
        a.environment = s.environment()
        told = {o for b in json.loads(estimate(a, "--json").stdout) for o in b["objects"]}
        done = a.once()
        assert done.returncode == 0, done.stdout + done.stderr
        made = {f"s3://{s.bucket}/{key}" for key in s.objects if key.endswith(".tar.zst")}
        assert told == made and len(made) >= 14, (sorted(told), sorted(made))
        result = run(CLI, "--config", a.config_file, "estimate")
        assert sorted(re.findall(r"^  -> (s3://.*)$", result.stdout, re.M)) == sorted(told), result


@test
def text_reports_the_same_as_json():
    a = Agent()
    everything(a)
    result = estimate(a)
    told = json.loads(estimate(a, "--json").stdout)
    assert result.returncode == 0 and not result.stderr, result
    ids = re.findall(r"^(\S+): .* from (.*)$", result.stdout, re.M)
    assert sorted(ids) == sorted((b["id"], b["path"]) for b in told), ids
    objects = re.findall(r"^  -> (.*)$", result.stdout, re.M)
    assert sorted(objects) == sorted(o for b in told for o in b["objects"])
    files = sum(b["files"] for b in told)
    assert result.stdout.splitlines()[-1].startswith(
        f"{len(told)} bundles, {files} files, "), result.stdout


@test
def a_path_with_a_trailing_slash_or_double_ones_makes_no_difference():
    a = Agent()
    a.dump(size=4096)
    a.config["sources"][0]["path"] = a.path("dumps") + "//dt-%d-cid-%c/"
    a.config["destinations"][0]["path"] = a.path("out") + "//x/%d-%c/"
    told = json.loads(estimate(a, "--json").stdout)
    assert a.once().returncode == 0
    path, m = a.only_manifest()
    assert [(b["id"], b["objects"]) for b in told] == [(m["bundle"]["id"],
                                                        [object_of(path)])], (told, path)


@test
def what_is_left_out_is_reported():
    need_root()
    a = Agent()
    unit = a.dump(size=4096)
    os.symlink("/etc/shadow", os.path.join(unit, INSTANCE + "-link"))
    os.mkfifo(os.path.join(unit, INSTANCE + "-fifo"))
    result = estimate(a)
    assert (result.returncode == 0 and "left out, symlink: 1 file, such as" in result.stdout
            and "special-file" in result.stdout), result
    assert json.loads(estimate(a, "--json").stdout)[0]["skipped"] == {
        "symlink": 1, "special-file": 1}


@test
def a_source_that_is_not_there_yet_is_no_failure_one_that_cannot_be_read_is():
    a = Agent()
    result = estimate(a)
    assert result.returncode == 0 and "does not exist yet" in result.stderr, result
    assert result.stdout == "0 bundles, 0 files, 0 B before compression\n"
    with open(a.path("dumps"), "w", encoding="ascii") as f:
        f.write("no directory")
    result = estimate(a)
    assert result.returncode == 1 and "cannot scan" in result.stderr and a.path(
        "dumps") in result.stderr, result


@test
def a_faulty_configuration_exits_2_with_its_faults():
    a = Agent()
    a.config["sources"][0]["kind"] = "core-dump"
    result = estimate(a)
    assert result.returncode == 2 and "core-dump" in result.stderr and not result.stdout, result


@test
def without_the_default_file_it_exits_2_as_the_daemon_does():
    help_text = run(CLI, "--help").stdout
    default = re.search(r"\(default: (/\S*\.yaml)\)", help_text)[1]
    if os.path.exists(default):
        from cli_test import Skip  # pylint: disable=import-outside-toplevel
        raise Skip(f"there is a '{default}' on this machine")
    for command in (["estimate"], ["config", "show"], ["config", "check"]):
        result = run(CLI, *command)
        assert result.returncode == 2 and default in result.stderr and not result.stdout, result


if __name__ == "__main__":
    sys.exit(main(cleanup))
