#!/usr/bin/env python3
"""Makes what a failing Neuron job leaves on disk, for the quickstart, the tests and the benchmark.

File names, directory names, the log's line shape, the infodump delimiters and the NEFF header are
those of the public documentation. The inside of the hardware state files, of NTFF and of the .pb
files is not public: what is written there is a stand-in that only has a realistic size, structure
in the protobuf sense and compressibility. The same arguments give the same bytes.

    make_dump.py dump    ROOT [--size 64MiB] [--pid 4242] [--slow 3] ...   a rank's core dump;
    prints the directory
    make_dump.py profile ROOT [--style model|session] ...                   a profile; prints the
    unit's directory
    make_dump.py core    FILE [--size 8MiB] [--fault truncated]            an ELF process core
    make_dump.py tree    DIR --files 100000 | --directories 100000         very many small things
"""
import argparse
import functools
import gzip
import hashlib
import io
import os
import random
import re
import struct
import sys
import tarfile
import time

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
# longer than any window of zstd up to level 18: the pool's repetition is never found
POOL_BYTES = 48 * MIB
PIECE_BYTES = 1 * MIB
DEFAULT_INSTANCE = "i-0a1b2c3d4e5f60718"
DEFAULT_CLUSTER = "d99e36ea74c263ca"
DEFAULT_DATE_TIME = "20260527-051233"


def parse_size(text):
    """'64MiB' -> bytes. Binary units as in the daemon's configuration."""
    m = re.fullmatch(r"(\d+)\s*(?:([KMG])(?:iB)?)?B?", text)
    if not m:
        raise argparse.ArgumentTypeError(f"'{text}' is no size; write for example 64MiB")
    return int(m[1]) * {None: 1, "K": KIB, "M": MIB, "G": GIB}[m[2]]


# --- bytes that compress like hardware state ------------------------------------------------------

def _instruction_area(rng, n_bytes):
    """64-byte records from a small vocabulary with a counter and one noisy operand: compresses
    about 5:1."""
    vocabulary = [rng.randbytes(12) + bytes(20) for _ in range(200)]
    out, base = [], rng.getrandbits(40)
    for i, v in enumerate(rng.choices(vocabulary, k=n_bytes // 64)):
        out.append(v + struct.pack("<QIIQQ", base + 64 * i, i, 0, 0, rng.getrandbits(28) << 12))
    return b"".join(out)


def _ring_area(rng, n_bytes):
    """16-byte descriptors: lengths from a short list, addresses that walk: compresses about 3:1."""
    lengths, address, out = (64, 512, 2048, 4096, 65536), rng.getrandbits(36) << 6, []
    for r in rng.choices(range(4096), k=n_bytes // 16):
        address += lengths[r % 5] + (r << 12 if r % 17 == 0 else 0)
        out.append(struct.pack("<QII", address, lengths[r % 5], r))
    return b"".join(out)


@functools.lru_cache(maxsize=2)
def _pool(seed):
    """Blocks made once; writing gigabytes then costs little more than write(2)."""
    rng = random.Random(f"pool {seed}")
    out = bytearray()
    while len(out) < POOL_BYTES:
        out += _instruction_area(rng, 512 * KIB)
        out += _ring_area(rng, 256 * KIB)
        out += bytes(128 * KIB)                 # semaphores that nobody has touched
        out += rng.randbytes(128 * KIB)         # what does not compress at all
    return bytes(out[:POOL_BYTES])


@functools.lru_cache(maxsize=2)
def _small_pool(seed):
    rng = random.Random(f"small pool {seed}")
    return _instruction_area(rng, 2 * MIB) + _ring_area(rng, 1 * MIB) + rng.randbytes(1 * MIB)


def state_pieces(size, label, seed, big):
    """Yields `size` bytes for one state file in pieces; `label` makes files differ from each
    other."""
    pool = _pool(seed) if big else _small_pool(seed)
    view = memoryview(pool)
    start = int.from_bytes(hashlib.sha256(f"{seed} {label}".encode()).digest()[:4],
                           "little") % len(pool) & ~63
    done = 0
    while done < size:
        n = min(PIECE_BYTES, size - done)
        stamp = (f"state {label} +{done:#x}\n".encode() + bytes(64))[:min(64, n)]
        yield stamp
        n -= len(stamp)
        done += len(stamp)
        while n > 0:
            run = min(n, len(pool) - start)
            yield view[start:start + run]
            start = (start + run) % len(pool)
            n -= run
            done += run


# --- text -----------------------------------------------------------------------------------------

def _line(rng, clock, pid, level, where, text):
    clock[0] += rng.randrange(1, 4_000_000)
    whole, micro = divmod(clock[0], 1_000_000)
    stamp = time.strftime("%Y-%b-%d %H:%M:%S", time.gmtime(whole))
    return f"{stamp}.{micro:06d}  {pid}:{pid}  {level}  {where}   {text}\n"


def infodump(instance_id, cluster_id, rank, world_size):
    """The block that the runtime asks people to put into a support request."""
    return "".join(s + "\n" for s in (
        "------------->8------------[ cut here ]------------>8-------------",
        "                 please include in any support request",
        "NRT version: 2.34.10 (0000000000000000000000000000000000000000)",
        "Embedded FW version: 1.18.4.0",
        "CCOM version: 2.34.1 (compat 61)",
        f"Instance ID: {instance_id}",
        f"Cluster ID: {cluster_id.lstrip('0') or '0'}",
        "Kernel: Linux 5.15.0-1084-aws",
        f"Nodename: ip-10-0-{rank % 250}-17",
        "Driver version: 2.26.5.0",
        "Failure: NRT_EXEC_HW_ERR_COLLECTIVES in nrt_execute()",
        "LNC: 2",
        "Visible cores: 0-3",
        "Environment:",
        "    NEURON_RT_ROOT_COMM_ID=10.0.0.17:41000",
        f"    NEURON_PJRT_PROCESS_INDEX={rank}",
        f"    NEURON_PJRT_PROCESSES_NUM_DEVICES={','.join(['4'] * world_size)}",
        "    NEURON_RT_EXEC_TIMEOUT=600",
        "-------------8<-----------[ cut to here ]-----------8<------------",
    ))


def runtime_log(seed, pid, instance_id, cluster_id, rank, world_size, n_lines=400):
    rng = random.Random(f"log {seed} {pid}")
    clock = [1_779_859_895_000_000 + rng.randrange(10 ** 6)]
    out = [_line(rng, clock, pid, "INFO", "NRT:nrt_init", "runtime is starting")]
    for i in range(n_lines):
        out.append(_line(rng, clock, pid, rng.choice(("INFO", "INFO", "WARN")),
                         rng.choice(("TDRV:exec_wait", "NRT:nrt_infodump", "ENC:barrier")),
                         f"[ND {i % 4}][NC {i % 8}] step {i} semaphore {rng.getrandbits(16)} queue "
                         f"depth {rng.randrange(64)}"))
    out.append(_line(rng, clock, pid, "ERROR", "TDRV:exec_wait",
                     "[ND 0][NC 3] execution stopped: collectives peer did not answer"))
    out.append(infodump(instance_id, cluster_id, rank, world_size))
    return "".join(out).encode()


# --- formats --------------------------------------------------------------------------------------

def _varint(n):
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def protobuf_records(size, field, seed):
    """Well-formed top-level protobuf records, about `size` bytes: a varint first, then
    length-delimited ones."""
    rng = random.Random(f"pb {seed} {field}")
    out = bytearray(_varint(1 << 3) + _varint(4)) if field == 2 else bytearray()
    pool = _small_pool(0)
    while len(out) < size:
        n = rng.randrange(40, 4000)
        at = rng.randrange(len(pool) - n)
        out += _varint(field << 3 | 2) + _varint(n) + pool[at:at + n]
    return bytes(out)


def neff(seed, name="model.neff", pkg_version=1, payload=96 * KIB):
    """A NEFF package: the 1024-byte header of the documentation, then a gzip'ed tar whose digest
    stands in the header."""
    rng = random.Random(f"neff {seed}")
    tar_bytes = io.BytesIO()
    with tarfile.open(fileobj=tar_bytes, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path, body in (("info.json", b'{"name": "stand-in"}\n'),
                           ("neff.json", b'{"version": "2.0"}\n'),
                           ("sg00/pe.bin", _instruction_area(rng, payload)),
                           ("sg00/dve.bin", rng.randbytes(payload // 4))):
            member = tarfile.TarInfo(path)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    data = gzip.compress(tar_bytes.getvalue(), compresslevel=1, mtime=0)
    digest = hashlib.sha256(data).digest() if pkg_version == 1 else hashlib.md5(data).digest()
    header = struct.pack("<QQQQQ128sI32s16s256sI64sQI468s", pkg_version, 1024, len(data), 2, 0,
                         b"2.23.0.0+stand-in", 1,
                         digest, rng.randbytes(16), name.encode(), 1, b"\x01", 0, 2, b"")
    assert len(header) == 1024
    return header + data


def elf_core(size, seed, fault=None):
    """An x86-64 ELF core: a note segment and PT_LOAD segments up to about `size` bytes."""
    rng = random.Random(f"core {seed}")
    note = struct.pack("<III8s", 5, 336, 1,
                       b"CORE\0\0\0\0") + struct.pack("<iii", 6, 0, 6) + bytes(324)
    n_load = 3
    load = max((size - 4096 - len(note)) // n_load, 4096) & ~4095
    at = 64 + 56 * (n_load + 1)
    headers = [struct.pack("<IIQQQQQQ", 4, 0, at, 0, 0, len(note), 0, 4)]
    offset = (at + len(note) + 4095) & ~4095
    for i in range(n_load):
        headers.append(struct.pack("<IIQQQQQQ", 1, 6, offset + i * load, 0x7F0000000000 + i * GIB,
                                   0, load, load, 4096))
    ehdr = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 4, 62, 1, 0, 64, 0, 0,
                                                           64, 56, n_load + 1, 0, 0, 0)
    out = io.BytesIO()
    out.write(ehdr + b"".join(headers) + note)
    out.write(bytes(offset - out.tell()))
    for i in range(n_load):
        for piece in state_pieces(load, f"core segment {i} {rng.random()}", seed, big=False):
            out.write(piece)
    body = out.getvalue()
    return body[:len(body) // 2] if fault == "truncated" else body


# --- writing, at once or like a live runtime ------------------------------------------------------

class Writer:
    """Writes files at once, or all of them side by side in pieces over `slow` seconds as a living
    runtime does."""

    def __init__(self, slow=0.0, mode=0o644, owner=None):
        self.slow, self.mode, self.owner, self.queue = slow, mode, owner, []

    def add(self, path, pieces, total):
        self.queue.append((path, iter(pieces), total))

    def add_bytes(self, path, data):
        self.add(path, (data[i:i + PIECE_BYTES] for i in range(0, len(data), PIECE_BYTES)),
                 len(data))

    def _open(self, path):
        f = open(path, "wb", buffering=0, opener=lambda p, flags: os.open(p, flags, self.mode))
        os.fchmod(f.fileno(), self.mode)
        if self.owner:
            os.fchown(f.fileno(), *self.owner)
        return f

    def run(self):
        if not self.slow:
            for path, pieces, _ in self.queue:
                with self._open(path) as f:
                    for piece in pieces:
                        f.write(piece)
            return
        n_pieces = max(sum(total // PIECE_BYTES * 2 + 2 for _, _, total in self.queue), 1)
        pause = self.slow / n_pieces
        live = []
        for path, pieces, _ in self.queue:
            live.append((self._open(path), pieces))
        while live:
            for item in list(live):
                f, pieces = item
                piece = next(pieces, None)
                if piece is None:
                    f.close()
                    live.remove(item)
                else:
                    f.write(piece)
                time.sleep(pause)


def _makedirs(path, owner):
    """As os.makedirs, and what it makes belongs to `owner`."""
    if os.path.isdir(path):
        return
    _makedirs(os.path.dirname(path) or ".", owner)
    os.mkdir(path, 0o755)
    if owner:
        os.chown(path, *owner)


def make_dump(root, *, size=16 * MIB, instance_id=DEFAULT_INSTANCE, pid=39738,
              date_time=DEFAULT_DATE_TIME, cluster_id=DEFAULT_CLUSTER, devices=1, cores=4,
              cc_cores=2, rank=0, world_size=2, seed=1, slow=0.0, fault=None, mode=0o644,
              owner=None, directory=None):
    """One rank's core dump below `root`, in dt-<date-time>-cid-<cluster-id>. @return that
    directory's path."""
    unit = os.path.normpath(os.path.join(root, directory or f"dt-{date_time}-cid-{cluster_id}"))
    _makedirs(unit, owner)
    w = Writer(slow, mode, owner)
    log = runtime_log(seed, pid, instance_id, cluster_id, rank, world_size)
    if fault == "log-cut":
        log = log[:len(log) * 2 // 3]
    w.add_bytes(os.path.join(unit, f"{instance_id}-nrt-pid-{pid}.log"), log)
    w.add_bytes(os.path.join(unit, f"nrt-{instance_id}-pid-{pid}.log"), log[-8 * KIB:])
    names, lid = [], 0
    for device in range(devices):
        for core in range(cores):
            lid += 1
            names.append((f"{instance_id}-nd{device}-nc{core}-pid-{pid}-tid-{pid + lid}-lid-{lid}",
                          8))
        for core in range(cc_cores):
            names.append((f"{instance_id}-nd{device}-cc-core-{core}-pid-{pid}-tid-{pid + 1}-lid-1",
                          1))
    shares = sum(share for _, share in names)
    for name, share in names:
        n = size * share // shares
        if fault == "state-empty" and name == names[0][0]:
            n = 0
        w.add(os.path.join(unit, name), state_pieces(n, name, seed, big=size > 64 * MIB), n)
    w.run()
    return unit


SYSTEM_TRACES = ("ntrace.pb", "trace_info.pb", "cpu_util.pb", "host_mem.pb")


def make_profile(root, *, mode="model", instance_id=DEFAULT_INSTANCE, pid=39738, size=4 * MIB,
                 models=2, cores=2, seed=1,
                 session="20260527_051233", fault=None, slow=0.0, file_mode=0o644, owner=None):
    """A profile below `root`, in <instance>_pid_<pid>. @return that directory's path."""
    unit = os.path.join(root, f"{instance_id}_pid_{pid}")
    place = unit if mode == "model" else os.path.join(unit, session)
    _makedirs(place, owner)
    w = Writer(slow, file_mode, owner)
    ntff_size = max(size // (models * cores), 4 * KIB)
    for m in range(models):
        number = int.from_bytes(hashlib.sha256(f"{seed} model {m}".encode()).digest()[:8], "little")
        body = neff(f"{seed} {m}", pkg_version=1 + m % 2)
        if fault == "neff-truncated" and m == 0:
            body = body[:len(body) // 2]
        if fault == "neff-hash" and m == 0:
            body = body[:-1] + bytes([body[-1] ^ 1])
        if mode == "model":
            if not (fault == "neff-missing" and m == 0):
                w.add_bytes(os.path.join(place, f"neff_{number}.neff"), body)
            for core in range(cores):
                records = protobuf_records(ntff_size, 2, f"{seed} {m} {core}")
                if fault == "ntff-garbage" and m == 0 and core == 0:
                    records = records[:-7]
                w.add_bytes(os.path.join(place, f"{number}_instid_{m}_vnc_{core}.ntff"), records)
        else:
            for core in range(cores):
                w.add_bytes(os.path.join(place, f"neff_{number}_vnc_{core}.neff"), body)
    if mode == "session":
        for core in range(cores):
            w.add_bytes(os.path.join(place, f"profile_nc_{core}_session_1.ntff"),
                        protobuf_records(ntff_size * models, 2, f"{seed} s {core}"))
        w.add_bytes(os.path.join(place, "trace.json"), b'{"traceEvents": []}\n')
    for name in SYSTEM_TRACES:
        if not (fault == "pb-missing" and name == "trace_info.pb"):
            w.add_bytes(os.path.join(place, name), protobuf_records(64 * KIB, 16, f"{seed} {name}"))
    w.run()
    return unit


def make_core(path, *, size=8 * MIB, seed=1, fault=None, mode=0o600, owner=None):
    """One ELF process core at `path`. @return path"""
    w = Writer(0.0, mode, owner)
    w.add_bytes(path, elf_core(size, seed, fault))
    w.run()
    return path


def make_tree(root, *, files=0, directories=0, file_bytes=200):
    """Very many small files (a thousand to a directory) or directories (one level of 1,000 below
    it). @return root"""
    os.makedirs(root, exist_ok=True)
    line = (b"rank state line %d\n" % 7) * (file_bytes // 18 + 1)
    for i in range(files):
        if i % 1000 == 0:
            os.mkdir(os.path.join(root, f"part-{i // 1000:04d}"))
        with open(os.path.join(root, f"part-{i // 1000:04d}", f"file-{i:06d}"), "wb",
                  buffering=0) as f:
            f.write(b"%06d " % i + line[:file_bytes - 7])
    for i in range(directories):
        if i % 1000 == 0:
            os.mkdir(os.path.join(root, f"d-{i // 1000:04d}"))
        os.mkdir(os.path.join(root, f"d-{i // 1000:04d}", f"e-{i:06d}"))
    return root


def _owner(text):
    uid, _, gid = text.partition(":")
    return int(uid), int(gid or uid)


def main(argv):
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0],
                                epilog="Sizes: 64KiB 8MiB 4GiB. Same arguments, same bytes.")
    sub = p.add_subparsers(dest="what", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--seed", default="1", help="other seed, other bytes (default %(default)s)")
    common.add_argument("--owner", type=_owner, metavar="UID[:GID]",
                        help="give the files to this user (needs root)")
    common.add_argument("--mode", type=lambda s: int(s, 8), default=0o644, metavar="OCTAL",
                        help="file mode (default 644)")
    live = argparse.ArgumentParser(add_help=False, parents=[common])
    live.add_argument("root", metavar="ROOT")
    live.add_argument("--instance-id", default=DEFAULT_INSTANCE)
    live.add_argument("--pid", type=int, default=39738)
    live.add_argument("--slow", type=float, default=0.0, metavar="SECONDS",
                      help="write side by side in pieces for about this long")

    d = sub.add_parser("dump", parents=[live], help="one rank's core dump directory")
    d.add_argument("--size", type=parse_size, default=16 * MIB,
                   help="of the state files together (default 16MiB)")
    d.add_argument("--date-time", default=DEFAULT_DATE_TIME)
    d.add_argument("--cluster-id", default=DEFAULT_CLUSTER)
    d.add_argument("--directory",
                   help="name of the directory instead of dt-<date-time>-cid-<cluster-id>")
    d.add_argument("--devices", type=int, default=1)
    d.add_argument("--cores", type=int, default=4, help="NeuronCores a device")
    d.add_argument("--cc-cores", type=int, default=2, help="collectives cores a device")
    d.add_argument("--rank", type=int, default=0)
    d.add_argument("--world-size", type=int, default=2)
    d.add_argument("--fault", choices=("state-empty", "log-cut"))

    f = sub.add_parser("profile", parents=[live], help="a profile directory")
    f.add_argument("--style", choices=("model", "session"), default="model")
    f.add_argument("--size", type=parse_size, default=4 * MIB,
                   help="of the NTFF files together (default 4MiB)")
    f.add_argument("--models", type=int, default=2)
    f.add_argument("--cores", type=int, default=2)
    f.add_argument("--fault", choices=("neff-truncated", "neff-hash", "neff-missing",
                                       "ntff-garbage", "pb-missing"))

    c = sub.add_parser("core", parents=[common], help="an ELF process core")
    c.add_argument("root", metavar="FILE")
    c.add_argument("--size", type=parse_size, default=8 * MIB)
    c.add_argument("--fault", choices=("truncated",))

    t = sub.add_parser("tree", help="very many small files or directories")
    t.add_argument("root", metavar="DIR")
    t.add_argument("--files", type=int, default=0)
    t.add_argument("--directories", type=int, default=0)

    a = p.parse_args(argv)
    if a.what == "dump":
        print(make_dump(a.root, size=a.size, instance_id=a.instance_id, pid=a.pid,
                        date_time=a.date_time, cluster_id=a.cluster_id, devices=a.devices,
                        cores=a.cores, cc_cores=a.cc_cores, rank=a.rank, world_size=a.world_size,
                        seed=a.seed, slow=a.slow, fault=a.fault, mode=a.mode, owner=a.owner,
                        directory=a.directory))
    elif a.what == "profile":
        print(make_profile(a.root, mode=a.style, instance_id=a.instance_id, pid=a.pid, size=a.size,
                           models=a.models, cores=a.cores, seed=a.seed, fault=a.fault, slow=a.slow,
                           file_mode=a.mode, owner=a.owner))
    elif a.what == "core":
        print(make_core(a.root, size=a.size, seed=a.seed, fault=a.fault, mode=a.mode,
                        owner=a.owner))
    else:
        print(make_tree(a.root, files=a.files, directories=a.directories))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
