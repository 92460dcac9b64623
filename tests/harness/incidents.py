"""The documents of failures at a destination, as agents write them (docs/BUNDLE.md): for tests of
who reads them."""
import datetime
import json
import os

KEY = "0123456789abcdef"
OPENED = 1_780_000_000  # 2026-05-28T20:26:40Z
NAME = "20260528-202630-d99e36ea74c263ca"


def moment(seconds):
    time = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def dump(document):
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def decision(key=KEY, n=1, **more):
    return dump({"schema": "neuron-collectd/decision/1", "key": key, "n": n,
                 "cluster_id": "d99e36ea74c263ca", "date_time": "20260528-202630", "derived": False,
                 "job": "torchrun:job-1", "world_size": 8, "settle_ms": 5000, "agreed": "store",
                 "created_by": "i-0a", **more})


def claim(rank, seen=OPENED, **more):
    """A rank that failed, and whose bundle was delivered."""
    return {"rank": rank, "world_size": 8, "boot_id": "b" * 32, "pid": 1000 + (rank or 0),
            "start_ticks": 77, "cluster_id": "d99e36ea74c263ca", "date_time": "20260528-202630",
            "state": "failed", "bundle": f"neuron-core-dump-20260528T202630-{rank or 0:012x}",
            "bundle_state": "delivered", "error_code": 5, "error_location": "nrt_execute",
            "started": moment(OPENED - 3600), "seen": moment(seen), "revision": 1, **more}


def bundle(claimed, place, instance_id, kind="neuron-core-dump", **more):
    """Where the bundle of a claim is. @param kind  of another bundle, made at the same time"""
    bundle_id = claimed["bundle"].replace("neuron-core-dump", kind)
    return {"id": bundle_id, "kind": kind, "state": "delivered",
            "object": f"{place}/{instance_id}/{bundle_id}.tar.zst", **more}


def record(instance_id, claims, key=KEY, n=1, **more):
    return dump({"schema": "neuron-collectd/claims/1", "key": key, "n": n,
                 "instance_id": instance_id, "revision": len(claims), "uncertainty_ms": 250,
                 "bundles_left_out": 0, "claims": claims, "bundles": [], **more})


def decision_name(key=KEY, n=1):
    return f".incidents/{key}/{n}.json"


def record_name(instance_id, key=KEY, n=1, time="20260528T202640000"):
    return f".incidents/{key}/{n}/{time}-{instance_id}.json"


def failure(key=KEY, n=1, opened=OPENED):
    """{name below the fixed part: bytes} of eight ranks on three nodes, one of each state. A part
    of them is as new as the decision, whose time is the store's: rank 3 is late in any case when
    `opened` is that time."""
    no_dump = {"bundle": None, "bundle_state": "none", "error_code": None, "error_location": None}
    a = [claim(0, opened), claim(1, opened - 1, error_code=1200)]
    b = [claim(2, opened - 1, error_code=1202), claim(3, opened + 60)]
    c = [claim(4, opened, state="alive", **no_dump),
         claim(5, opened - 9, state="ended", **no_dump), claim(6, opened, bundle_state="pending")]
    place = f"s3://bucket/neuron/{NAME}"
    of_a = [bundle(x, place, "i-0a") for x in a] + [
        bundle(a[0], place, "i-0a", "snapshot"),
        bundle(a[1], place, "i-0a", "crash-report", state="quarantined", object=None)]
    of_b = [bundle(x, place, "i-0b") for x in b]
    return {decision_name(key, n): decision(key, n),
            record_name("i-0a", key, n): record("i-0a", a, key, n, bundles=of_a,
                                                bundles_left_out=2),
            record_name("i-0b", key, n): record("i-0b", b, key, n, bundles=of_b),
            record_name("i-0c", key, n): record("i-0c", c, key, n)}


STATES = ["present", "present", "present", "late", "missing", "missing", "missing", "missing"]
REASONS = [None, None, None, None, "no_dump", "no_dump", "undelivered", "unreachable"]


def write(directory, files, time=OPENED):
    """As a volume has them; all were written at that time."""
    for name, body in files.items():
        path = os.path.join(directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(body)
        os.utime(path, (time, time))
