#!/usr/bin/env python3
"""What delivering to S3 costs, against the AWS CLI in the same run, on a radosgw in memory on
loopback.

    builddir=build srcdir=. tests/bench/bench_s3.py [--runs 3] [--scale 1.0] [--directory DIR]
    [--assert] [PART...]

Parts, default all:
  tree    64 files of 32 MiB, half compressible, against `tar | zstd -3 -T2 | aws s3 cp -`
  file    2 GiB of noise against `aws s3 cp` with parts of 32 MB, 4 at a time
  large   a dump of 4 GiB with defaults: memory, what is read and written; then one member of 2 MiB
  out of it
  kill    2 GiB of noise, kill -9 at every tenth: what is sent twice
  sparse  1 TiB with 512 MiB of data in it: parts and memory

Runs alternate with the rival's, each against a fresh server, the source in the page cache. CPU is
user + system of all processes of the client; a run during which somebody else used more than 15 %
of the time is repeated, at most twice. Client and server share the machine's cores, so wall time
mixes both. With --assert the exit is 1 when a bound of the project is broken. Needs about 7 GiB
below --directory and 8 GiB of memory for the server.
"""
import functools
import os
import random
import shutil
import struct
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
# pylint: disable=wrong-import-position
import agent
import make_dump
import s3tools
from bench_volume import (Run, arguments, bound, let_settle, measured, median, parsed,
                          state_size, warm)
from make_dump import GIB, MIB
from radosgw import Radosgw
from tcp_proxy import through

POOL_BYTES = 48 * MIB  # far longer than the window of zstd -3 (2 MiB): its repetition is not found


# --- data -----------------------------------------------------------------------------------------

def _words(rng, n, letters):
    return ["".join(rng.choices(letters, weights=range(len(letters), 0, -1), k=rng.randint(3, 9)))
            for _ in range(n)]


@functools.lru_cache(maxsize=1)
def mixed_pool():
    """Of each MiB about 70 % log lines with fresh numbers, 15 % records, 15 % noise: zstd -3 makes
    1 of 2.4."""
    rng = random.Random(7)
    words = _words(rng, 3000, "etaoinshrdlucmfwypvbgkjqxz")
    phrases = [" ".join(rng.choices(words, k=7)) for _ in range(800)]
    out, now = bytearray(), 1_700_000_000_000
    for block in range(POOL_BYTES // MIB):
        lines, n = [], 0
        while n < MIB * 70 // 100:
            now += rng.randrange(1, 40)
            line = (f"{now // 1000}.{now % 1000:03d} "
                    f"{rng.choice(('INFO', 'INFO', 'INFO', 'WARN', 'DEBUG', 'ERROR'))} "
                    f"[{words[rng.randrange(200)]}/{words[rng.randrange(200)]}] "
                    f"id={rng.getrandbits(40):010x} {words[rng.randrange(60)]}="
                    f"{rng.randrange(100000)} {phrases[rng.randrange(800)]} "
                    f"{words[rng.randrange(3000)]} {words[rng.randrange(3000)]}\n")
            lines.append(line)
            n += len(line)
        out += "".join(lines).encode()[:MIB * 70 // 100]
        counter = rng.getrandbits(31)
        for i in range(MIB * 15 // 100 // 16):
            counter += rng.randrange(1, 9)
            out += struct.pack("<IIHHf", counter & 0xFFFFFFFF, block, i & 0xFF, rng.getrandbits(9),
                               rng.randrange(1000) / 8)
        out += rng.randbytes((block + 1) * MIB - len(out))
    return bytes(out)


def make_tree(root, scale):
    pool, at = mixed_pool(), 0
    os.makedirs(root)
    for i in range(64):
        with open(os.path.join(root, f"f{i:02d}.{'log' if i % 4 else 'bin'}"), "wb") as f:
            left = max(int(32 * scale), 1) * MIB
            while left:
                n = min(left, len(pool) - at, 4 * MIB)
                f.write(pool[at:at + n])
                left -= n
                at = (at + n) % len(pool)
    return root


def make_noise(root, n_bytes):
    os.makedirs(root)
    rng = random.Random(42)
    with open(os.path.join(root, "random.bin"), "wb") as f:
        for _ in range(n_bytes // MIB):
            f.write(rng.randbytes(MIB))
    return root


# --- runs -----------------------------------------------------------------------------------------

def busy_seconds():
    """Of the whole machine: all but idle and waiting for disks."""
    with open("/proc/stat", encoding="ascii") as f:
        fields = [int(x) for x in f.readline().split()[1:8]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def quiet_run(prepare, one_run):
    """Does a run on a fresh server; again when somebody else was at work, and then the quietest one
    counts.
    @param prepare  called before each run, and not measured
    @param one_run  function(server, bucket) -> Run"""
    runs = []
    for attempt in range(3):
        server = Radosgw(bytes_=7 << 30, fast=True)
        try:
            bucket = s3tools.new_bucket(server)
            prepare()
            before = busy_seconds(), server.cpu_seconds()
            run = one_run(server, bucket)
            run.server = server.cpu_seconds() - before[1]
            run.other = max(busy_seconds() - before[0] - run.cpu - run.server, 0)
            run.size = sum(n for k, n in bucket.objects().items()
                           if not k.endswith(".manifest.json"))
            assert not bucket.uploads(), bucket.uploads()
        finally:
            server.close()
        runs.append(run)
        if run.other <= 0.15 * run.wall + 0.3:
            break
        print(f"# somebody else used {run.other:.1f} s of CPU in {run.wall:.1f} "
              f"s{', again' if attempt < 2 else ''}", flush=True)
    return min(runs, key=lambda r: r.other / r.wall)


def daemon(work, server, bucket, source, name, limits=None, **destination):
    """@return an Agent with defaults, but for what is given; its configuration is not yet
    written"""
    place = os.path.join(work, f"ours-{name}")
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(place)
    a = agent.Agent(directory=place)
    a.config["sources"] = [source]
    a.config["limits"] = limits or {}
    a.config["log"] = {"format": "text"}
    del a.config["retry"]
    a.config["destinations"] = [a.s3("archive", server, bucket, **destination)]
    return a


def directory_source(unit):
    return {"name": "bench", "kind": "directory", "path": unit}


def once(a):
    """One --once as a measured Run; .peak_watched is the largest that state.db with its companions
    was."""
    a.write_config()
    with open(a.path("log"), "wb") as log:
        run = Run([agent.DAEMON, "--config", a.config_file, "--once"],
                  watch=lambda: state_size(a.path("state")), stdout=log, stderr=log,
                  env=a.whole_environment())
    run.place = a.dir
    return run


def ours(work, unit):
    def prepare():
        warm(unit)
        let_settle(unit)

    def one_run(server, bucket):
        a = daemon(work, server, bucket, directory_source(unit), "run")
        run = once(a)
        agent.cleanup()
        assert len(bucket.manifests()) == 1, bucket.objects()
        return run
    return quiet_run(prepare, one_run)


def aws_run(work, bucket, command, tuned):
    """A rival's pipeline in sh; "$AWS" is the AWS CLI with the bucket's keys."""
    config = os.path.join(work, "aws-config")
    with open(config, "w", encoding="ascii") as f:
        f.write("[default]\ns3 =\n  addressing_style = path\n" + (
            "  max_concurrent_requests = 4\n  multipart_chunksize = 32MB\n" if tuned else ""))
    environment = bucket.environment | {"AWS_CONFIG_FILE": config}
    environment["BUCKET"] = bucket.name
    text = command.replace("AWS", f"{s3tools.AWS} --endpoint-url {bucket.server.endpoint} s3 cp "
                                  "--only-show-errors")
    return Run(["bash", "-o", "pipefail", "-c", text], env=environment)


def compare(work, unit, what, options, command, rival):
    """@param rival  what the command is called in the table; `tuned` in it = four parts of 32 MB at
    a time
    @return ratios of ours to the rival's"""
    tuned = "tuned" in rival
    mine, theirs = [], []
    for _ in range(options.runs):
        theirs.append(quiet_run(lambda: warm(unit), lambda _,
                               bucket: aws_run(work, bucket, command, tuned)))
        mine.append(ours(work, unit))
    print(f"\n{what}, medians (least – most) of {options.runs} alternating runs\n\n"
          "| | wall s | client CPU s | peak RSS MiB | stored MiB | server CPU s "
          "|\n|---|---|---|---|---|---|")
    for name, group in (("neuron-collectd --once", mine), (rival, theirs)):
        cells = [f"{median(group, f):.2f} ({min(getattr(r, f) for r in group):.2f} – "
                 f"{max(getattr(r, f) for r in group):.2f})" for f in ("wall", "cpu")]
        print(f"| {name.replace('|', chr(92) + '|')} | {' | '.join(cells)} | "
              f"{median(group, 'rss') / MIB:.0f} | {median(group, 'size') / MIB:.0f} | "
              f"{median(group, 'server'):.1f} |")
    ratios = {f: median(mine, f) / median(theirs, f) for f in ("wall", "cpu", "size", "rss")}
    print(f"| ratio | {ratios['wall']:.2f} | {ratios['cpu']:.2f} | {ratios['rss']:.2f} | "
          f"{ratios['size']:.3f} | |")
    print("\n| bound | value | |\n|---|---|---|")
    bound(f"{what}: client CPU against the rival", ratios["cpu"], 0.9,
          f"{ratios['cpu']:.2f} of 0.9")
    bound(f"{what}: wall against the rival", ratios["wall"], 1.0, f"{ratios['wall']:.2f} of 1.0")
    return ratios


def part_tree(work, options):
    unit = make_tree(os.path.join(work, "tree"), options.scale)
    compare(work, unit, f"{2 * options.scale:.1f} GiB tree", options,
            f'tar -C {unit} -cf - . | zstd -q -3 -T2 -c | AWS - "s3://$BUCKET/o"',
            "tar | zstd -3 -T2 | aws s3 cp -")
    shutil.rmtree(unit)


def part_file(work, options):
    unit = make_noise(os.path.join(work, "noise"), int(2048 * options.scale) * MIB)
    compare(work, unit, f"{2 * options.scale:.1f} GiB of noise", options,
            f'AWS {unit}/random.bin "s3://$BUCKET/o"', "aws s3 cp, tuned")
    shutil.rmtree(unit)


def part_large(work, options):
    dumps = os.path.join(work, "dumps")
    unit = make_dump.make_dump(dumps, size=int(4 * options.scale * GIB), instance_id=agent.INSTANCE)
    with open(os.path.join(unit, "two-mebibytes"), "wb") as f:
        f.write(random.Random(1).randbytes(2 * MIB))
    total = sum(os.path.getsize(os.path.join(unit, n)) for n in os.listdir(unit))
    server = Radosgw(bytes_=7 << 30, fast=True)
    bucket = s3tools.new_bucket(server)
    source = {"name": "bench", "kind": "neuron-core-dump",
              "path": os.path.join(dumps, "dt-%d-cid-%c")}
    a = daemon(work, server, bucket, source, "large")
    let_settle(unit)
    run = once(a)
    read, written, log = run.io.get("rchar", 0), run.io.get("wchar",
                                                            0), os.path.getsize(a.path("log"))
    left = [n for n in os.listdir(a.path("state"))
            if n not in ("state.db", "state.db-wal", "state.db-shm", "mailbox", "lock")]
    print(f"\n{total / GIB:.1f} GiB dump with defaults: wall {run.wall:.1f} s, CPU {run.cpu:.1f} "
          "s\n\n| bound | value | |\n|---|---|---|")
    bound("peak RSS", run.rss, 96 * MIB, f"{run.rss / MIB:.1f} of 96 MiB")
    bound("read: each source byte once", read, total + 16 * MIB,
          f"rchar {read / MIB:.1f} MiB; source {total / MIB:.1f} MiB")
    bound("state.db, -wal, -shm at their largest", run.peak_watched, 16 * MIB,
          f"{run.peak_watched / MIB:.2f} of 16 MiB, some 11 of them reserved")
    bound("written in all, log and database", written, 64 * MIB,
          f"wchar {written / MIB:.1f} MiB, of which log {log / MIB:.2f} MiB")
    bound("files beside the database", len(left), 0, f"{left or 'none'}")
    one_member(a, server, bucket, unit)
    agent.cleanup()
    server.close()
    shutil.rmtree(unit)


def one_member(a, server, bucket, unit):
    proxy, way = through(server)
    a.use_keys(way)
    key, = bucket.bundles()
    out = a.path("member")
    begun = time.monotonic()
    result = a.cli("get", f"s3://{bucket.name}/{key}", "--member", "two-mebibytes", "-o", out,
                   "--endpoint-url", way.endpoint, "--region", way.region)
    took = time.monotonic() - begun
    if result.returncode:
        broken.append("get --member")
        print(f"| get --member | exit {result.returncode}: {result.stderr.strip()} | BROKEN |")
        return
    assert agent.sha256_file(out) == agent.sha256_file(os.path.join(unit, "two-mebibytes"))
    bound("get --member of 2 MiB: requests", len(proxy.requests), 4,
          f"{len(proxy.requests)} of 4, {took * 1000:.0f} ms")
    bound("get --member of 2 MiB: transferred", proxy.down_bytes, 16 * MIB,
          f"{proxy.down_bytes / MIB:.2f} of 16 MiB")
    proxy.close()


def part_kill(work, options):
    size = int(2048 * options.scale) * MIB
    unit = make_noise(os.path.join(work, "noise"), size)
    server = Radosgw(bytes_=7 << 30, fast=True)
    bucket = s3tools.new_bucket(server)
    proxy, way = through(server)
    a = daemon(work, way, bucket, directory_source(unit), "kill")
    rows, sent_before = [], 0
    for tenth in range(1, 10):
        proxy.hold_after(size // 10)
        a.start(wait=False)
        agent.wait_for("the wire stands still", proxy.is_holding, 120)
        a.kill()
        proxy.cut()
        rows.append((tenth, proxy.part_bytes - sent_before))
        sent_before = proxy.part_bytes
    a.start()
    a.wait_known(1)
    a.wait_all("600s")
    read_last = agent.process_io(a.pid)["rchar"]
    a.stop()
    key, = bucket.bundles()
    manifest, = [m for _, m in a.manifests(bucket.fetch())]
    parts = manifest["bundle"]["parts"]
    in_flight = 4 * max(p["bytes"] for p in parts)
    excess = sum(sum(t) for t in proxy.part_bodies().values()) - manifest["bundle"]["bytes"]
    print(f"\n{size / GIB:.1f} GiB of noise, nine kills, {len(parts)} parts; the last run read "
          f"{read_last / MIB:.0f} MiB\n\n| bound | value | |\n|---|---|---|")
    bound("sent twice, nine kills", excess, 9 * in_flight, f"{excess / MIB:.1f} MiB; in flight at "
                                                           f"most {9 * in_flight / MIB:.0f} MiB")
    bound("uploads left", len(bucket.uploads()), 0, f"{len(bucket.uploads())}")
    bound("objects", len(bucket.objects()), 2,
          f"{len(bucket.objects())}, the bundle and its manifest")
    target = os.path.join(work, "check")
    os.makedirs(target)
    subprocess.run(f"rclone cat {bucket.remote(key)} | tar --zstd -x -C {target}", shell=True,
                   check=True, env=bucket.environment)
    same = agent.sha256_file(os.path.join(target, "random.bin")) == agent.sha256_file(
        os.path.join(unit, "random.bin"))
    bound("bit for bit", 0 if same else 1, 0, "the same" if same else "DIFFERENT")
    agent.cleanup()
    server.close()
    for place in (unit, target):
        shutil.rmtree(place)


def part_sparse(work, options):
    unit = os.path.join(work, "sparse")
    os.makedirs(unit)
    pool = mixed_pool()
    with open(os.path.join(unit, "sparse"), "wb") as f:
        for i in range(512):
            f.seek(i * 2 * GIB)
            f.write(pool[(i % 48) * MIB:(i % 48 + 1) * MIB])
        f.truncate(1024 * GIB)
    server = Radosgw(bytes_=2 << 30, fast=True)
    bucket = s3tools.new_bucket(server)
    a = daemon(work, server, bucket, directory_source(unit), "sparse")
    let_settle(unit)
    run = once(a)
    manifest, = [m for _, m in a.manifests(bucket.fetch())]
    print(f"\n1 TiB with 512 MiB of data: wall {run.wall:.1f} s, CPU {run.cpu:.1f} s, object "
          f"{manifest['bundle']['bytes'] / MIB:.0f} MiB\n\n"
          "| bound | value | |\n|---|---|---|")
    bound("sparse: parts", len(manifest["bundle"]["parts"]), 10000,
          f"{len(manifest['bundle']['parts'])} of 10,000")
    bound("sparse: peak RSS", run.rss, 96 * MIB, f"{run.rss / MIB:.1f} of 96 MiB")
    agent.cleanup()
    server.close()
    shutil.rmtree(unit)


PARTS = {"tree": part_tree, "file": part_file, "large": part_large, "kill": part_kill,
         "sparse": part_sparse}


def main():
    p = arguments(__doc__, PARTS)
    p.add_argument("--runs", type=int, default=3)
    p.add_argument("--scale", type=float, default=1.0,
                   help="of all sizes (default %(default)s); bounds are meant for 1.0")
    options = parsed(p, PARTS)

    def measure(work):
        print(f"{os.cpu_count()} CPUs, kernel {os.uname().release}, "
              f"{agent.run('zstd', '--version').stdout.strip()}, "
              f"{agent.run(s3tools.AWS, '--version').stdout.split()[0]}, "
              f"{agent.run('radosgw', '--version').stdout.split('(')[0].strip()}")
        for name in options.parts or PARTS:
            PARTS[name](work, options)

    return measured(options, measure)


if __name__ == "__main__":
    sys.exit(main())
