#!/usr/bin/env python3
"""A second opinion: OpenStack Swift's s3api, which is strict on the region, the order and the
numbers of parts, and knows no conditions."""
import os
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import swift
from agent import Agent, cleanup, wait_for
from s3tools import judge, new_bucket
from tap import main, test
from tcp_proxy import through

MIB = 1 << 20


@test
def bundles_arrive_where_there_are_no_conditional_writes():
    bucket = new_bucket(swift.shared())
    a = Agent()
    a.use_directories()
    a.config["destinations"] = [a.s3("s3", swift.shared(), bucket, part_size="5MiB",
                                     prefix="blank s/ü+%%/%d-%c")]
    units = [a.incompressible(65536, "1"), a.incompressible(23 * MIB, "2")]
    a.start()
    a.wait_known(2)
    a.wait_all()
    judge_without_part_objects(a, bucket, units)
    a.stop()


def judge_without_part_objects(a, bucket, units):
    judge(a, bucket, units)
    others = [k for k in bucket.objects_by_aws() if not k.endswith((".tar.zst", ".manifest.json"))]
    assert not others, others


@test
def an_upload_is_resumed_after_kill_9():
    proxy, way = through(swift.shared())
    bucket = new_bucket(swift.shared())
    a = Agent()
    a.use_directories()
    a.config["destinations"] = [a.s3("s3", way, bucket, part_size="5MiB", connections=3)]
    unit = a.incompressible(33 * MIB)
    proxy.hold_after(18 * MIB)
    a.start(wait=False)
    wait_for("the wire stands still", proxy.is_holding, 60)
    a.kill()
    proxy.cut()
    a.start()
    a.wait_known(1)
    a.wait_all()
    manifest = judge(a, bucket, [unit])[unit]
    assert len({r.query["uploadId"] for r in proxy.requests
                if r.part}) == 1, "another upload was begun"
    sent = sum(sum(tries) for tries in proxy.part_bodies().values())
    assert sent - manifest["bundle"]["bytes"] <= 3 * 8 * MIB, sent
    a.stop()


@test
def a_wrong_region_is_learned_or_named():
    bucket = new_bucket(swift.shared())
    a = Agent()
    a.config["destinations"] = [a.s3("s3", swift.shared().with_region("eu-west-1"), bucket)]
    unit = a.dump(size=65536)
    a.start()
    wait_for("it has arrived, or the right region is named", lambda: a.counts()["delivered"] == 1 or
             "us-east-1" in (a.status()["destinations"][0]["last_error"] or ""))
    if a.counts()["delivered"] == 0:
        a.config["destinations"][0]["region"] = "us-east-1"
        a.write_config()
        a.reload()
        a.wait_all()
    judge(a, bucket, [unit])
    a.stop()


@test
def a_wrong_secret_is_named():
    bucket = new_bucket(swift.shared())
    a = Agent()
    a.config["destinations"] = [a.s3("s3", swift.shared(), bucket)]
    a.environment["AWS_SECRET_ACCESS_KEY"] = "canary-wrong"
    a.dump(size=65536)
    a.start()
    error = wait_for("the destination says so", lambda: a.status()["destinations"][0]["last_error"])
    assert "SignatureDoesNotMatch" in error or "AccessDenied" in error, error
    assert "canary" not in error, error
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
