#!/usr/bin/env python3
"""Makes bundles, sound and hostile ones, without a line of our own code: tar by Python and bsdtar,
frames by the zstd program, digests by hashlib. test_reader_objects.py DIRECTORY writes CASE.tar.zst
and CASE.json for each case."""
import copy
import functools
import hashlib
import io
import json
import os
import struct
import subprocess
import sys
import tarfile

FRAME = 1 << 20
MTIME = 1779859295


def noise(seed, n):
    """n bytes that no compressor makes smaller, the same ones each time."""
    return b"".join(hashlib.sha512(b"%s %d" % (seed, i)).digest() for i in range(n // 64 + 1))[:n]


# In the order of their raw bytes.
MEMBERS = [
    (b"a.txt", b"a small text\n"),
    (b"b/\xc3\xbc.bin", noise(b"b", 3 * FRAME + 12345)),
    (b"c\n\xff\\raw", b"bytes that are no UTF-8 in the name"),
    (b"d-empty", b""),
    (b"e" * 300, noise(b"e", 70000)),
]


@functools.lru_cache(maxsize=None)  # starting programs is most of the time that this takes
def zstd(data, *options):
    return subprocess.run(["zstd", "-q", "-c", *options], input=data, stdout=subprocess.PIPE,
                          check=True).stdout


class Link:
    def __init__(self, kind):
        self.type = kind


def escape(raw):
    """The manifest's spelling of a path."""
    out = ""
    for c in raw.decode("utf-8", "surrogateescape"):
        if "\udc80" <= c <= "\udcff":
            out += "\\x%02x" % (ord(c) - 0xdc00)
        elif c == "\\" or ord(c) < 0x20 or ord(c) == 0x7f:
            out += "\\x%02x" % ord(c)
        else:
            out += c
    return out


def tar_of(members):
    """members: (raw path, content) or (raw path, Link)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT,
                      errors="surrogateescape") as tar:
        for path, content in members:
            info = tarfile.TarInfo(os.fsdecode(path))
            info.mtime = MTIME
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                info.type, info.linkname = content.type, "a.txt"
                tar.addfile(info)
    return out.getvalue()


def digest_fields(content):
    return {"sha256": hashlib.sha256(content).hexdigest()}


def members_of(tar):
    """What the manifest has of a tar, by Python's reading of it."""
    found = []
    with tarfile.open(fileobj=io.BytesIO(tar), errors="surrogateescape") as t:
        for info in t:
            content = t.extractfile(info).read()
            found.append({"path": escape(os.fsencode(info.name)), "bytes": info.size,
                          "mtime": "2026-05-27T05:21:35.000000000Z",
                          "mode": "0644", **digest_fields(content), "kind": "other",
                          "verdict": "opaque", "detail": "",
                          "frame": info.offset_data // FRAME, "offset": info.offset_data,
                          "header": info.offset_data - info.offset})
    return found


def seek_table(entries, flags=0):
    body = b"".join(struct.pack("<II", c, d) + (b"\0\0\0\0" if flags & 0x80 else b"") for c,
                    d in entries)
    body += struct.pack("<IBI", len(entries), flags, 0x8F92EAB1)
    return struct.pack("<II", 0x184D2A5E, len(body)) + body


class Bundle:
    def __init__(self, tar=None, members=None, options=(), flags=0):
        tar = tar_of(MEMBERS) if tar is None else tar
        self.tar = tar
        pieces = [tar[i:i + FRAME] for i in range(0, len(tar), FRAME)]
        self.frames = [zstd(p, *options) for p in pieces]
        self.entries = [[len(f), len(p)] for f, p in zip(self.frames, pieces)]
        self.flags = flags
        self.table = None
        self.members = members_of(tar_of(MEMBERS)) if members is None else members
        self.finish()

    def finish(self):
        """The object and its manifest as they belong together; afterwards either may be spoilt."""
        if self.table is None:
            self.table = seek_table(self.entries, self.flags)
        runs = [b"".join(self.frames[i:i + 2]) for i in range(0, len(self.frames), 2)]
        runs[-1] += self.table
        self.object = b"".join(runs)
        self.manifest = {
            "schema": "neuron-collectd/manifest/1",
            "bundle": {"id": "directory-20260527T051233-0123456789ab", "kind": "directory",
                       "object": "x.tar.zst",
                       "bytes": len(self.object), "uncompressed_bytes": len(self.tar),
                       "plan": "00" * 32,
                       "parts": [{"bytes": len(r), "sha256": hashlib.sha256(r).hexdigest()}
                                 for r in runs],
                       "complete": True, "reasons": [], "supplement_of": None},
            "node": {"instance_id": "i-0123456789abcdef0", "hostname": "h", "labels": {}},
            "source": {"name": "s", "path": "/s", "uid": 0, "user": None},
            "incident": None, "failure": None,
            "members": self.members,
            "frames": {"count": len(self.frames), "format": "zstd-seekable"},
            "agent": {"version": "0"}, "created": "2026-05-27T05:21:40.000000Z"}
        return self

    def flip(self, at):
        self.object = self.object[:at] + bytes([self.object[at] ^ 0x40]) + self.object[at + 1:]
        return self

    def retable(self, table):
        self.table = table
        return self.finish()


CASES = {}


def case(f):
    CASES[f.__name__] = f
    return f


@case
def sound(b):
    return b


@case
def sound_with_checksums_in_the_table(b):
    return Bundle(flags=0x80)


@case
def object_byte_flipped(b):
    return b.flip(len(b.frames[0]) + len(b.frames[1]) // 2)  # in frame 1: member b alone


@case
def object_byte_flipped_in_a_header(b):
    return b.flip(20)


@case
def object_byte_flipped_in_the_table(b):
    return b.flip(len(b.object) - 20)


@case
def object_cut_by_a_byte(b):
    b.object = b.object[:-1]
    return b


@case
def object_cut_in_half(b):
    b.object = b.object[:len(b.object) // 2]
    return b


@case
def object_empty(b):
    b.object = b""
    return b


@case
def object_with_a_byte_more(b):
    b.object += b"\0"
    return b


@case
def manifest_part_digest(b):
    b.manifest["bundle"]["parts"][1]["sha256"] = "11" * 32
    return b


@case
def manifest_part_boundary(b):
    parts = b.manifest["bundle"]["parts"]
    n = parts[0]["bytes"] - 10
    parts[0] = {"bytes": n, "sha256": hashlib.sha256(b.object[:n]).hexdigest()}
    rest = b.object[n:n + parts[1]["bytes"] + 10]
    parts[1] = {"bytes": len(rest), "sha256": hashlib.sha256(rest).hexdigest()}
    return b


@case
def manifest_member_digest(b):
    b.manifest["members"][1]["sha256"] = "22" * 32
    return b


@case
def manifest_member_bytes(b):
    b.manifest["members"][0]["bytes"] += 1
    return b


@case
def manifest_member_offset(b):
    b.manifest["members"][1]["offset"] += 512
    return b


@case
def manifest_member_frame(b):
    b.manifest["members"][4]["frame"] -= 1
    return b


@case
def manifest_member_form(b):
    m = b.manifest["members"][1]
    m["sha256_sparse"], m["sha256"] = m["sha256"], None
    return b


@case
def manifest_frames_count(b):
    b.manifest["frames"]["count"] += 1
    return b


@case
def manifest_uncompressed_bytes(b):
    b.manifest["bundle"]["uncompressed_bytes"] += 512
    return b


@case
def manifest_lacks_a_member(b):
    del b.manifest["members"][2]
    return b


@case
def manifest_names_one_too_many(b):
    extra = dict(b.manifest["members"][0], path="aa")
    b.manifest["members"].insert(1, extra)
    return b


@case
def tar_members_swapped(b):
    return Bundle(tar_of([MEMBERS[0], MEMBERS[2], MEMBERS[1]] + MEMBERS[3:]))


@case
def tar_member_doubled(b):
    return Bundle(tar_of(MEMBERS[:1] + MEMBERS[:1] + MEMBERS[1:]))


@case
def tar_member_added(b):
    return Bundle(tar_of(MEMBERS + [(b"zz\xfe", b"stowaway")]))


@case
def tar_member_gone(b):
    return Bundle(tar_of(MEMBERS[:-1]))


@case
def tar_member_is_a_symlink(b):
    return Bundle(tar_of(MEMBERS[:3] + [(b"d-empty", Link(tarfile.SYMTYPE))] + MEMBERS[4:]))


@case
def tar_member_is_a_hard_link(b):
    return Bundle(tar_of(MEMBERS[:3] + [(b"d-empty", Link(tarfile.LNKTYPE))] + MEMBERS[4:]))


@case
def tar_member_content(b):
    return Bundle(tar_of([(b"a.txt", b"a small lie!\n")] + MEMBERS[1:]))


@case
def tar_goes_on_behind_its_end(b):
    tar = tar_of(MEMBERS)
    return Bundle(tar + tar_of([(b"hidden", b"hidden")]))


@case
def tar_without_members(b):
    return Bundle(tar_of([]), members=[])


@case
def tar_that_is_none(b):
    return Bundle(noise(b"t", 4 * FRAME))


@case
def tar_by_bsdtar(b):
    """A sparse file, of which bsdtar stores the data alone."""
    path = os.path.join(sys.argv[1], "sparse-source")
    os.mkdir(path)
    with open(os.path.join(path, "sparse"), "wb") as f:
        f.write(noise(b"1", 100000))
        f.seek(9 << 20)
        f.write(noise(b"2", 5000))
        f.truncate(20 << 20)
    with open(os.path.join(path, "sparse"), "rb") as f:
        content = f.read()
    tar = subprocess.run(["bsdtar", "-c", "-f", "-", "--format", "pax", "-C", path, "sparse"],
                         stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(tar)) as t:
        member = t.next()
        offset, header = member.offset_data, member.offset_data - member.offset
        assert member.size == len(content) and t.extractfile(member).read() == content
    member = dict(b.members[0], path="sparse", bytes=len(content), **digest_fields(content))
    member["frame"], member["offset"], member["header"] = offset // FRAME, offset, header
    return Bundle(tar, members=[member])


@case
def tar_with_many_zeros(b):
    """600 MiB of hole: the digest is of the sparse form. Written by hand from docs/BUNDLE.md."""
    path = os.path.join(sys.argv[1], "zeros-source")
    os.mkdir(path)
    size, block, most = 600 << 20, 64 << 10, 512 << 20
    head, tail = noise(b"h", 3 * block + 5), noise(b"z", 1000)
    with open(os.path.join(path, "zeros"), "wb") as f:
        f.write(head)
        f.seek(size - len(tail))
        f.write(tail)
    tar = subprocess.run(["bsdtar", "-c", "-f", "-", "--format", "pax", "-C", path, "zeros"],
                         stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(tar)) as t:
        member = t.next()
        assert member.size == size
        offset = member.offset_data
    first_zero_block = 4 * block
    last_zero_end = (size - len(tail)) // block * block
    data, run = hashlib.sha256(head.ljust(4 * block, b"\0")), first_zero_block + most
    for _ in range(most >> 20):
        data.update(bytes(1 << 20))
    data.update(bytes(size - len(tail) - last_zero_end) + tail)
    runs = hashlib.sha256(struct.pack("<QQQ", run, last_zero_end - run, size))
    digest = hashlib.sha256(data.digest() + runs.digest()).hexdigest()
    member = dict(b.members[0], path="zeros", bytes=size, sha256=None, sha256_sparse=digest,
                  frame=offset // FRAME, offset=offset)
    return Bundle(tar, members=[member])


@case
def tar_with_an_endless_sparse_map(b):
    """20 MiB of map that libarchive would keep in memory."""
    map_text = b"5000000\n" + b"0\n0\n" * 5000000
    map_text = map_text.ljust(-(-len(map_text) // 512) * 512, b"\0")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a.txt")
        info.size = len(map_text)
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0",
                            "GNU.sparse.name": "a.txt", "GNU.sparse.realsize": "13"}
        tar.addfile(info, io.BytesIO(map_text))
    return Bundle(out.getvalue())


@case
def table_missing(b):
    return b.retable(b"")


@case
def table_with_a_reserved_flag(b):
    return b.retable(seek_table(b.entries, 0x04))


@case
def table_that_claims_too_much(b):
    return b.retable(b.table[:-9] + struct.pack("<IBI", 0xffffffff, 0, 0x8F92EAB1))


@case
def table_with_wrong_sizes(b):
    entries = copy.deepcopy(b.entries)
    entries[0][0] += 1
    entries[1][0] -= 1
    return b.retable(seek_table(entries))


@case
def table_with_a_frame_too_few(b):
    return b.retable(seek_table(b.entries[:-1]))


@case
def table_of_other_contents(b):
    entries = copy.deepcopy(b.entries)
    entries[0][1] -= 512
    entries[1][1] += 512
    return b.retable(seek_table(entries))


@case
def frames_with_a_huge_window(b):
    return Bundle(options=("--long=27",))


def main():
    for name, make in CASES.items():
        b = make(Bundle())
        with open(os.path.join(sys.argv[1], name + ".tar.zst"), "wb") as f:
            f.write(b.object)
        with open(os.path.join(sys.argv[1], name + ".json"), "w", encoding="utf-8") as f:
            json.dump(b.manifest, f, ensure_ascii=False)


main()
