#!/usr/bin/env python3
"""Nothing holds up anything else: small bundles pass large ones, sources take turns, a poisoned
bundle or destination stops nobody."""
import os
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import radosgw
from agent import Agent, cleanup, wait_for
from s3tools import judge, new_bucket
from tap import in_time, main, test
from tcp_proxy import through

MIB = 1 << 20


def server():
    return radosgw.shared()


def order_of_delivery(a, proxy):
    """Names of the units, in the order in which their manifests were written."""
    unit = {b["id"]: os.path.basename(b["path"]) for b in a.bundles()}
    end = ".manifest.json"
    return [unit[os.path.basename(r.key).removesuffix(end)] for r in proxy.requests
            if r.method == "PUT" and r.key.endswith(end)]


def write(a, name, size):
    unit = a.path("jobs", f"job-{name}")
    os.makedirs(unit)
    with open(os.path.join(unit, "file"), "wb") as f:
        f.write(os.urandom(size))
    return unit


@test
def a_small_bundle_is_not_held_up_by_a_large_copy_to_a_volume():
    a = Agent()
    a.use_directories()
    a.send_slowly()
    a.incompressible(96 * MIB, "1")
    a.start()
    wait_for("the large one is being shipped", lambda: a.counts()["shipping"] == 1)
    write(a, "2", 1000)
    wait_for("the small one is delivered", lambda: a.counts()["delivered"] >= 1, 30)
    assert a.counts()["shipping"] == 1, f"the large one was through already: {a.counts()}"
    assert [m["source"]["path"] for _, m in a.manifests()] == [a.path("jobs", "job-2")]


@test
def a_large_upload_makes_room_for_small_bundles_and_resumes_where_it_was():
    proxy, way = through(server())
    bucket = new_bucket(server())
    a = Agent()
    a.use_directories()
    a.config["destinations"] = [a.s3("s3", way, bucket, part_size="5MiB", connections=2)]
    large = a.incompressible(160 * MIB, "1")
    proxy.rate = 6 * MIB  # half a minute
    a.start()
    wait_for("parts are on the wire", lambda: len(proxy.part_bodies()) >= 2, 60)
    small = [write(a, str(n), 1000) for n in (2, 3)]
    wait_for("both small ones are delivered", lambda: a.counts()["delivered"] >= 2, 40)
    assert not any("job-1" in r.key and r.key.endswith(".json") and r.method == "PUT"
                   for r in proxy.requests)
    assert a.counts()["delivered"] == 2, "the large one was through already"
    proxy.rate = None
    a.wait_all("120s")
    judge(a, bucket, [large, *small])
    twice = {part: tries for part, tries in proxy.part_bodies().items() if len(tries) > 1}
    assert not twice, f"parts of the large one were sent again: {twice}"
    a.stop()


@test
def small_ones_go_first_and_sources_alternate():
    proxy, way = through(server())
    bucket = new_bucket(server())
    a = Agent()
    a.config["sources"] = [a.source("one", "directory", "jobs/job-%p"),
                           a.source("two", "directory", "other/job-%p")]
    a.config["destinations"] = [a.s3("s3", way, bucket)]
    proxy.refuse()
    a.incompressible(8 * MIB, "100")
    for n in range(10):
        write(a, str(n), 1000)
    for n in (50, 51):
        os.makedirs(a.path("other", f"job-{n}"))
        with open(a.path("other", f"job-{n}", "file"), "w", encoding="utf-8") as f:
            f.write("late")
    a.start()
    wait_for("all are ready", lambda: a.counts()["ready"] == 13, 30)
    proxy.accept()
    a.wait_all("60s")
    order = order_of_delivery(a, proxy)
    assert order[-1] == "job-100", order
    assert {"job-50", "job-51"} <= set(order[:5]), order
    a.stop()


@test
def a_destination_that_is_away_does_not_hold_up_the_other_one():
    proxy, way = through(server())
    bucket = new_bucket(server())
    a = Agent()
    a.use_directories()
    a.config["destinations"] = [a.s3("s3", way, bucket), a.volume("archive", "out")]
    proxy.refuse()
    units = [write(a, str(n), 1000) for n in range(5)]
    a.start()
    wait_for("all are on the volume", lambda: len(a.manifests()) == 5, 30)
    assert a.counts()["delivered"] == 0
    proxy.accept()
    a.wait_all("60s")
    judge(a, bucket, units)
    a.stop()


@test
def many_nodes_do_not_begin_at_the_same_moment():
    """The first request after a wait comes after a random part of retry.initial."""
    proxy, way = through(server())
    bucket = new_bucket(server())
    waits = []
    for _ in range(4):
        a = Agent()
        a.use_directories()
        a.config["destinations"] = [a.s3("s3", way, bucket)]
        a.config["retry"] = {"initial": "3s", "maximum": "3s"}
        proxy.forget()
        a.start()
        begun = time.monotonic()
        wait_for("its first request", lambda: proxy.requests, 10)
        waits.append(time.monotonic() - begun)
        a.stop()
    assert max(waits) - min(waits) > 0.1, f"all at once: {waits}"
    in_time(max(waits), 8, "the first request")


if __name__ == "__main__":
    sys.exit(main(cleanup))
