#!/usr/bin/env python3
"""How long a small dump takes from its last close to its manifest in the bucket.

    builddir=build srcdir=. tests/bench/bench_latency.py [--runs 200] [--assert]

One dump of three files, about 6 KiB, at a time, `settle: 0s`, all else at its default. The bucket
is the programmable server of the tests, in threads of this process, which answers without a delay:
what is measured is the agent, and the server's own time for three requests. The last close is
followed by nothing; the end is when the answer to the manifest's PUT has been sent.
"""
import os
import random
import statistics
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
# pylint: disable=wrong-import-position
import agent
from bench_volume import arguments, bound, measured
from s3_server import S3Server

P50_MAX, P99_MAX = 0.060, 0.250  # seconds


def make_dump(unit, rng):
    """@return when the last of its files was closed"""
    os.mkdir(unit)
    files = [open(os.path.join(unit, name), "wb") for name in ("log", "nc0", "nc1")]
    for f in files:
        f.write(rng.randbytes(2048))
        f.flush()
    for f in files:
        f.close()
    return time.monotonic()


def one_run(a, s3, name, rng):
    n = len(s3.log)
    closed = make_dump(a.path("jobs", f"job-{name}"), rng)
    # when the answer to the manifest's PUT was sent
    return agent.wait_for("its manifest is there", lambda: next(
        (r.ended for r in s3.log[n:] if r.operation == "PutObject" and r.ended
         and r.key.endswith(".manifest.json")), None), 30, every=0.002) - closed


def percentile(values, share):
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def measure(work, runs):
    rng = random.Random(1)
    with S3Server() as s3:
        a = agent.Agent(directory=work)
        a.use_directories(settle="0s")
        a.config["limits"] = {}
        a.config["destinations"] = [a.s3("archive", s3, "bucket")]
        os.makedirs(a.path("jobs"), exist_ok=True)
        a.start()
        agent.wait_for("its bucket can be written", lambda: s3.seen("ListMultipartUploads"))
        waits = []
        for i in range(runs + 5):
            time.sleep(rng.uniform(0.05, 0.25))
            before = len(s3.log)
            waits.append(one_run(a, s3, f"n{i}", rng))
            n_requests = len(s3.log) - before
        del waits[:5]  # connections, caches
        a.stop()
    p50, p99 = percentile(waits, 0.5), percentile(waits, 0.99)
    print(f"\n{runs} dumps, {n_requests} requests each: mean "
          f"{statistics.mean(waits) * 1000:.1f} ms, worst {max(waits) * 1000:.1f} ms\n\n"
          "| last close to manifest | measured | |\n"
          "|---|---|---|")
    bound("p50", p50, P50_MAX, f"{p50 * 1000:.1f} of {P50_MAX * 1000:.0f} ms")
    bound("p99", p99, P99_MAX, f"{p99 * 1000:.1f} of {P99_MAX * 1000:.0f} ms")


def main():
    p = arguments(__doc__)
    p.add_argument("--runs", type=int, default=200)
    options = p.parse_args()
    return measured(options, lambda work: measure(work, options.runs))


if __name__ == "__main__":
    sys.exit(main())
