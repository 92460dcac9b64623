#!/usr/bin/env python3
"""neuron-collect report on a production S3 server: what it tells of documents that other programs
have put there."""
import json
import os
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import incidents
import radosgw
from agent import Agent, cleanup
from s3tools import new_bucket
from tap import main, test
from tcp_proxy import through


def filled(files):
    """@return (agent, bucket) with these files below neuron/, of which the clock is the store's"""
    a, bucket = Agent(), new_bucket(radosgw.shared())
    incidents.write(a.path("there"), files)
    bucket.rclone("copy", a.path("there"), bucket.remote("neuron"))
    a.use_keys(radosgw.shared())
    return a, bucket


def report(a, url, *arguments, server=None):
    server = server or radosgw.shared()
    return a.cli("--json", "report", url, *arguments, "--endpoint-url", server.endpoint, "--region",
                 "us-east-1")


@test
def a_failure_is_folded_from_the_records_in_the_bucket():
    a, bucket = filled(incidents.failure() | {
        f"{incidents.NAME}/incident.json": incidents.dump({"key": incidents.KEY, "n": 1})})
    for place in ("neuron", f"neuron/{incidents.NAME}/", f"neuron/.incidents/{incidents.KEY}",
                  f"neuron/.incidents/{incidents.KEY}/1.json"):
        result = report(a, f"s3://{bucket.name}/{place}")
        assert result.returncode == 1 and not result.stderr, (place, result)
        d = json.loads(result.stdout)
        assert [r["reason"] for r in d["ranks"]] == incidents.REASONS, (place, d)
        assert d["first_failure"]["rank"] == 2 and [s["rank"] for s in d["suspects"]] == [5], d
        assert d["decided_at"] > "2026-05-29", "the time is the store's"
    text = a.cli("report", f"s3://{bucket.name}/neuron", "--endpoint-url",
                 radosgw.shared().endpoint, "--region", "us-east-1", "--html", a.path("page"))
    assert text.returncode == 1 and not text.stdout + text.stderr, text
    with open(a.path("page"), encoding="utf-8") as f:
        assert "unreachable" in f.read()


@test
def records_of_many_nodes_are_read_with_one_request_each():
    nodes = 200
    files = {incidents.decision_name(): incidents.decision(world_size=nodes)}
    for i in range(nodes):
        name = f"i-{i:04x}"
        files[incidents.record_name(name)] = incidents.record(name, [
            incidents.claim(i, boot_id=f"{i:032x}", world_size=nodes)])
    a, bucket = filled(files)
    proxy, way = through(radosgw.shared())
    result = report(a, f"s3://{bucket.name}/neuron", server=way)
    assert result.returncode == 0, result
    ranks = json.loads(result.stdout)["ranks"]
    assert [r["rank"] for r in ranks] == list(range(nodes)), ranks
    assert {r["state"] for r in ranks} == {"present"}, ranks
    assert len(proxy.requests) <= nodes + 4, len(proxy.requests)


@test
def what_cannot_be_read_is_exit_3():
    a, bucket = filled({incidents.decision_name(): incidents.decision(),
                        incidents.record_name("i-0a"): b"{}"})
    result = report(a, f"s3://{bucket.name}/neuron")
    assert result.returncode == 3 and "i-0a.json" in result.stderr, result
    result = report(a, f"s3://{bucket.name}-not/neuron")
    assert result.returncode == 3 and "NoSuchBucket" in result.stderr, result
    result = report(a, f"s3://{bucket.name}/elsewhere")
    assert result.returncode == 3 and "no failures" in result.stderr, result


if __name__ == "__main__":
    sys.exit(main(cleanup))
