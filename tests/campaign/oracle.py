#!/usr/bin/env python3
"""Judges one round of the campaign from what lies on disk and in the bucket, against the driver's
own record of what it wrote.

It shares no code with the agent nor with what the other tests read its results with: bundles are
unpacked by tar and zstd, hashed by sha256sum, the state is read by sqlite3, and the formats are
those of the documentation.

    oracle.py DIRECTORY      a round that was kept: exit 0 when no fault was found, else one line a
    fault and exit 1

A round's directory holds
    record.json     what the driver wrote and did
    samples.jsonl   what status, metrics and /proc said while the daemon ran, one line a sample
    at/NAME/        what lies at destination NAME (of a bucket: a copy, with the objects' times)
    uploads.json    {NAME: multipart uploads underway, after the quiet end}
    state.db        a copy of the state, after the quiet end
    pins.json       what is left below .neuron-collectd
"""
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile

STATES = ("settling", "ready", "shipping", "delivered", "quarantined", "evicted", "cancelled",
          "vanished")
MANIFEST, OBJECT = ".manifest.json", ".tar.zst"
MEMORY_BOUND = 96 << 20


def spelled(text):
    """A path as manifests spell it (each byte that is no UTF-8, each backslash and control
    character as \\xNN) as bytes."""
    out, raw, i = bytearray(), text.encode(), 0
    while i < len(raw):
        if raw[i:i + 2] == b"\\x":
            out.append(int(raw[i + 2:i + 4], 16))
            i += 4
        else:
            out.append(raw[i])
            i += 1
    return bytes(out)


def sums_below(directory):
    """{path as bytes: (bytes, sha256)} of the regular files, by sha256sum."""
    names = subprocess.run(["find", ".", "-type", "f", "-print0"], cwd=directory,
                           stdout=subprocess.PIPE, check=True).stdout
    if not names:
        return {}
    out = subprocess.run(["xargs", "-0", "sha256sum", "-z", "--"], cwd=directory, input=names,
                         stdout=subprocess.PIPE, check=True).stdout
    found = {}
    for line in out.split(b"\0")[:-1]:
        digest, path = line[:64].decode(), line[66:].removeprefix(b"./")
        found[path] = (os.path.getsize(os.path.join(os.fsencode(directory), path)), digest)
    return found


class Bundle:
    """What one manifest and its object say; faults of their own go to `faults`."""

    def __init__(self, where, path, faults):
        self.where, self.faults = where, faults
        self.name = os.path.basename(path)
        self.made = os.stat(path).st_mtime
        with open(path, encoding="utf-8") as f:
            m = json.load(f)
        b = m["bundle"]
        self.id, self.base = b["id"], b["supplement_of"]
        self.complete, self.reasons = b["complete"], b["reasons"]
        self.unit = spelled(m["source"]["path"])
        self.members = {spelled(e["path"]): (e["bytes"], e.get("sha256")) for e in m["members"]}
        self.contents = {}
        archive = path.removesuffix(MANIFEST) + OBJECT
        if len(self.members) != len(m["members"]):
            self.fault("a member stands in the manifest twice")
        if b["object"] != os.path.basename(archive) or b["id"] + MANIFEST != self.name:
            self.fault(f"names '{b['object']}' and '{b['id']}'")
        if not self.complete and not self.reasons:
            self.fault("is labelled incomplete without a reason")
        if not os.path.exists(archive):
            self.fault("has no object")
            return
        self._judge_parts(archive, b)
        self._unpack(archive)

    def fault(self, text):
        self.faults.append(f"{self.where}: {self.id}: {text}")

    def _judge_parts(self, archive, b):
        if os.path.getsize(archive) != b["bytes"] or sum(p["bytes"]
                                                         for p in b["parts"]) != b["bytes"]:
            self.fault(f"its object has {os.path.getsize(archive)} bytes, its manifest says "
                       f"{b['bytes']}")
            return
        with open(archive, "rb") as f:
            for number, part in enumerate(b["parts"], 1):
                if hashlib.sha256(f.read(part["bytes"])).hexdigest() != part["sha256"]:
                    self.fault(f"part {number} has another SHA-256 than its manifest says")

    def _unpack(self, archive):
        target = tempfile.mkdtemp(prefix="campaign-unpacked.")
        try:
            result = subprocess.run(["tar", "--zstd", "-x", "-C", target, "-f", archive],
                                    stdin=subprocess.DEVNULL, capture_output=True, check=False)
            if result.returncode != 0:
                self.fault(
                    f"tar cannot unpack it: {result.stderr.decode(errors='replace').strip()}")
                return
            self.contents = sums_below(target)
        finally:
            shutil.rmtree(target, ignore_errors=True)
        for path in sorted(set(self.members) | set(self.contents)):
            said, is_there = self.members.get(path), self.contents.get(path)
            if said is None or is_there is None:
                self.fault(f"{path!r} is {'in the archive' if said is None else 'in the manifest'} "
                           "only")
            elif said[0] != is_there[0] or said[1] not in (None, is_there[1]):
                self.fault(f"{path!r} is not what its manifest says: {said}, sha256sum {is_there}")


def bundles_at(where, root, faults):
    found = []
    for base, directories, names in os.walk(root):
        if ".incidents" in directories:
            directories.remove(".incidents")  # what nodes agree on; docs/BUNDLE.md
        for name in names + [d for d in directories if d.startswith(".")]:
            path = os.path.join(base, name)
            if name.startswith("."):
                faults.append(f"{where}: a temporary file is left: {os.path.relpath(path, root)}")
            elif name.endswith(MANIFEST):
                found.append(Bundle(where, path, faults))
            elif name.endswith(OBJECT):
                if not os.path.exists(path.removesuffix(OBJECT) + MANIFEST):
                    faults.append(f"{where}: an object without a manifest: "
                                  f"{os.path.relpath(path, root)}")
            elif name != "incident.json" and not name.endswith(".see.json"):
                faults.append(f"{where}: nobody knows what this is: {os.path.relpath(path, root)}")
    return found


def judge_unit(where, unit, bundles, faults):
    """One directory or file of a source: all of it arrived, once, as it was."""
    def fault(text):
        faults.append(f"{where}: {unit['path']}: {text}")
    ids = {b.id for b in bundles}
    bases = [b for b in bundles if b.base is None]
    if len(bases) > unit["generations"]:
        fault(f"arrived {len(bases)} times: {sorted(b.id for b in bases)}")
    for b in bundles:
        if b.base is not None and b.base not in ids:
            fault(f"{b.id} supplements {b.base}, which is not there")
        if not unit["disturbed"]:
            if b.base is not None:
                fault(f"{b.id} supplements a dump that nobody changed")
            if not b.complete:
                fault(f"{b.id} is labelled incomplete, and nobody touched it: {b.reasons}")
    written = {os.fsencode(path): versions for path, versions in unit["files"].items()}
    arrived = {}
    for b in bundles:
        for path, content in b.contents.items():
            arrived.setdefault((path, content), []).append(b.id)
            if not any((v["bytes"], v["sha256"]) == content for v in written.get(path, ())):
                fault(f"{b.id}: {path!r} has bytes that nobody wrote: {content}")
    for (path, _), where_to in arrived.items():
        # A supplement brings again what another destination lacks when the source changed between
        # the two: it says whose supplement it is.
        if len(where_to) > 1 and not (
                unit["disturbed"] and sum(b.base is None for b in bundles if b.id in where_to) < 2):
            fault(f"{path!r} arrived twice: {sorted(where_to)}")
    lost = sorted({path for path, versions in written.items() for v in versions
                   if v["needed"] and (path, (v["bytes"], v["sha256"])) not in arrived})
    if lost:
        fault(f"{len(lost)} of {len(written)} files are missing: "
              f"{lost[:4]}{' …' if len(lost) > 4 else ''}; bundles {sorted(ids)}")


def judge_place(where, root, record, faults):
    """@return the bundles that lie there"""
    found = bundles_at(where, root, faults)
    by_unit = {}
    for b in found:
        by_unit.setdefault(b.unit, []).append(b)
    known = {os.fsencode(u["path"]): u for u in record["units"]}
    for path, bundles in by_unit.items():
        if path not in known:
            faults.append(f"{where}: {[b.id for b in bundles]} of {path!r}, where nobody wrote "
                          "anything")
    for path, unit in known.items():
        judge_unit(where, unit, by_unit.get(path, []), faults)
    return found


def judge_sources(record, places, faults):
    """What is gone from a source was removed by the driver, or by the agent after the proof at each
    destination."""
    for unit in record["units"]:
        if not unit["missing_since"]:
            continue
        if not unit["agent_may_delete"]:
            faults.append(f"sources: {unit['path']}: {unit['missing']} disappeared, and deleting "
                          "was not allowed")
            continue
        for where, bundles in places.items():
            mine = [b for b in bundles if b.unit == os.fsencode(unit["path"])]
            # a bucket's times are whole seconds
            late = [b.id for b in mine if b.made > unit["missing_since"] + 1]
            if not mine or late:
                faults.append(f"sources: {unit['path']} was deleted before its proof at {where}: "
                              f"{late or 'nothing there'}")


def rows(database, query):
    result = subprocess.run(["sqlite3", "-readonly", "-json", database, query],
                            capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise ValueError(f"{query}: {result.stderr.strip()}")
    return json.loads(result.stdout or "[]")


def judge_state(database, record, places, faults):
    """The accounts in the database agree with each other and with what arrived."""
    try:
        if rows(database, "PRAGMA integrity_check") != [{"integrity_check": "ok"}]:
            faults.append("state: PRAGMA integrity_check complains")
        states = {r["state"]: r["n"] for r in rows(database, "SELECT state, count(*) AS n FROM "
                                                   "bundles GROUP BY state")}
        kept = {r["state"]: r["bundles"]
                for r in rows(database, "SELECT state, bundles FROM counts WHERE bundles > 0")}
        paths = rows(database, "SELECT hex(path) AS path, id FROM bundles WHERE state = 'vanished'")
        unproven = rows(database, "SELECT b.id, d.destination FROM bundles b JOIN deliveries d ON "
                        "d.bundle = b.row WHERE b.state = 'delivered' AND (d.state "
                        "<> 'delivered' OR d.proof IS NULL)")
        # a key whose CreateMultipartUpload was not answered is listed again for 15 minutes
        uploads = rows(database, "SELECT key FROM uploads UNION ALL SELECT key FROM aborts WHERE "
                       "upload_id IS NOT NULL OR since_usec < (unixepoch() - 960) * 1000000")
    except ValueError as error:
        faults.append(f"state: sqlite3 cannot read it: {error}")
        return
    if states != kept:
        faults.append(f"state: counts says {kept}, the rows are {states}")
    for state, n in states.items():
        if state not in ("delivered", "vanished"):
            faults.append(f"state: {n} bundles are left {state}")
    for where, bundles in places.items():
        if len(bundles) != states.get("delivered", 0):
            faults.append(f"state: {states.get('delivered', 0)} are delivered, and {len(bundles)} "
                          f"lie at {where}")
    if unproven:
        faults.append(f"state: delivered without proof: {unproven[:3]}")
    if uploads:
        faults.append(f"state: uploads are still to be finished or aborted: {uploads[:3]}")
    removable = {os.fsencode(u["path"]) for u in record["units"] if u["removed"]}
    for row in paths:
        if bytes.fromhex(row["path"]) not in removable:
            faults.append(f"state: {row['id']} is called vanished, and nobody removed "
                          f"{bytes.fromhex(row['path'])!r}")


def judge_samples(path, record, faults, bound):
    """@return how many samples there were"""
    before, n, failed = {}, 0, dict(record["state_failed"])
    with open(path, encoding="utf-8") as f:
        for n, line in enumerate(f, 1):
            s = json.loads(line)
            for view in ("status", "metrics"):
                counts = s.get(view)
                if counts is None:
                    continue
                if counts["discovered"] != sum(counts[state] for state in STATES):
                    faults.append(f"samples: {view} does not add up: {counts}")
                last = before.get(view, counts)
                if counts["discovered"] < last["discovered"] or counts["delivered"] < last[
                        "delivered"]:
                    faults.append(f"samples: {view} went back from {last} to {counts}")
                # else it may be known to that life alone
                elif s["at"] < failed.get(s["pid"], math.inf):
                    before[view] = counts
            if bound and s.get("hwm", 0) > bound:
                faults.append(f"samples: pid {s['pid']} took {s['hwm'] >> 20} MiB of memory, at "
                              f"most {bound >> 20} are allowed")
                bound = 0  # said once
    return n


def judge_life(record, faults):
    for end in record["ends"]:
        if end["by_itself"] and end["code"] != 0 and not end["excuse"]:
            faults.append(f"life: the daemon ended by itself with {end['code']}: "
                          f"{end['last_words']}")


def judge(directory, bound=MEMORY_BOUND):
    """@return the faults, as sentences; none is what is hoped for"""
    def at(*names):
        return os.path.join(directory, *names)

    def read(name):
        with open(at(name), encoding="utf-8") as f:
            return json.load(f)
    faults, places = [], {}
    record = read("record.json")
    for where in record["destinations"]:
        places[where] = judge_place(where, at("at", where), record, faults)
    names = {where: sorted(b.id for b in bundles) for where, bundles in places.items()}
    for where, ids in names.items():
        alone = sorted(set(ids) - set.union(*(set(i) for w, i in names.items()
                                              if w != where))) if len(names) > 1 else []
        if alone:
            faults.append(f"{where}: only there: {alone}")
    for where, uploads in read("uploads.json").items():
        for upload in uploads:
            faults.append(f"{where}: an orphan multipart upload: {upload}")
    for pin in read("pins.json"):
        faults.append(f"sources: a pin is left: {pin}")
    judge_sources(record, places, faults)
    judge_state(at("state.db"), record, places, faults)
    if not judge_samples(at("samples.jsonl"), record, faults,
                         bound if record["memory_counts"] else 0):
        faults.append("samples: nobody looked")
    judge_life(record, faults)
    return faults


def main(arguments):
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__)
        return 2
    faults = judge(arguments[0])
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
