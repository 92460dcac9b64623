#!/usr/bin/env python3
"""The campaign's judge is no good unless it can condemn: each test spoils one thing in a round that
is in order, and it is found."""
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "harness")]
# pylint: disable=wrong-import-position
import oracle
from tap import Skip, main, test

STATES = oracle.STATES
WHERE = ("bucket", "volume")
TREES = {
    "/source/jobs/job-1": {"a": b"first\n" * 1000, "below/b": bytes(70000), "empty": b""},
    "/source/jobs/job-2": {"odd \\ name\n": b"second", "c": os.urandom(3 << 20)},
}


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Round:
    """A round's directory as the driver leaves it, in which all is well."""

    def __init__(self):
        for program in ("tar", "zstd", "sqlite3", "sha256sum"):
            if not shutil.which(program):
                raise Skip(f"{program} is not installed")
        self.dir = tempfile.mkdtemp(prefix="campaign-oracle.")
        _rounds.append(self.dir)
        self.units = []
        for number, (path, files) in enumerate(TREES.items(), 1):
            self.add_unit(path, files)
            for where in WHERE:
                self.bundle(where, f"directory-20260101T000000-{number:012x}", path, files)
        self.ends = [{"by_itself": False, "code": -9, "excuse": None, "last_words": ""}]
        self.uploads = {"bucket": []}
        self.pins = []
        counts = dict.fromkeys(STATES, 0) | {"discovered": 2, "delivered": 2}
        self.samples = [{"status": counts, "metrics": counts, "hwm": 50 << 20, "pid": 1, "at": 1.0}]
        self.state_failed = []
        self.sql = ["INSERT INTO bundles VALUES (1, 'one', 'delivered', X'00'), (2, 'two', "
                    "'delivered', X'00')",
                    "INSERT INTO deliveries VALUES (1, 'bucket', 'delivered', 'head'), (1, "
                    "'volume', 'delivered', 'readback')",
                    "INSERT INTO counts VALUES ('delivered', 2)"]

    def path(self, *names):
        return os.path.join(self.dir, *names)

    def add_unit(self, path, files, **more):
        self.units.append({"path": path, "source": "jobs", "generations": 1, "disturbed": False,
                           "removed": False,
                           "agent_may_delete": False, "missing": [], "missing_since": None,
                           "files": {name: [{"bytes": len(data), "sha256": sha256(data),
                                             "needed": True}] for name,
                                             data in files.items()}} | more)
        return self.units[-1]

    def place(self, where):
        return self.path("at", where, "20260101-000000-0000000000000000", "i-0a1b2c3d4e5f60718")

    def bundle(self, where, name, unit, files, base=None, **more):
        """An object and its manifest, made by tar and zstd."""
        tree = self.path("tree")
        for path, data in files.items():
            os.makedirs(os.path.dirname(os.path.join(tree, path)), exist_ok=True)
            with open(os.path.join(tree, path), "wb") as f:
                f.write(data)
        os.makedirs(self.place(where), exist_ok=True)
        archive = os.path.join(self.place(where), name + ".tar.zst")
        subprocess.run(["tar", "--zstd", "-cf", archive, "-C", tree, "."], check=True)
        shutil.rmtree(tree)
        with open(archive, "rb") as f:
            data = f.read()
        cut = len(data) // 2
        manifest = {"bundle": {"id": name, "object": name + ".tar.zst", "bytes": len(data),
                               "complete": True, "reasons": [], "supplement_of": base,
                               "parts": [{"bytes": len(p), "sha256": sha256(p)}
                                         for p in (data[:cut], data[cut:])]} | more,
                    "source": {"path": unit},
                    "members": [{"path": "".join(f"\\x{ord(c):02x}" if c in "\\\n" else c
                                                 for c in path), "bytes": len(d),
                                 "sha256": sha256(d)} for path, d in files.items()]}
        self.write(os.path.join(self.place(where), name + ".manifest.json"), manifest)

    def write(self, path, value):
        with open(os.path.join(self.dir, path), "w", encoding="utf-8") as f:
            json.dump(value, f)

    def manifest(self, where="bucket", number=1):
        return os.path.join(self.place(where),
                            f"directory-20260101T000000-{number:012x}.manifest.json")

    def object(self, where="bucket", number=1):
        return self.manifest(where, number).replace(".manifest.json", ".tar.zst")

    def edit_manifest(self, change, **which):
        with open(self.manifest(**which), encoding="utf-8") as f:
            value = json.load(f)
        change(value)
        self.write(self.manifest(**which), value)

    def judge(self):
        self.write("record.json", {"destinations": list(WHERE), "units": self.units,
                                   "ends": self.ends,
                                   "state_failed": self.state_failed, "memory_counts": True})
        self.write("uploads.json", self.uploads)
        self.write("pins.json", self.pins)
        with open(self.path("samples.jsonl"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps(s) + "\n" for s in self.samples)
        schema = ["CREATE TABLE bundles (row INTEGER PRIMARY KEY, id TEXT, state TEXT, path BLOB)",
                  "CREATE TABLE deliveries (bundle INTEGER, destination TEXT, state TEXT, proof "
                  "TEXT)", "CREATE TABLE counts (state TEXT, bundles INTEGER)",
                  "CREATE TABLE uploads (key BLOB)",
                  "CREATE TABLE aborts (key BLOB, upload_id BLOB, since_usec INTEGER)"]
        subprocess.run(["sqlite3", self.path("state.db"), ";".join(schema + self.sql)], check=True)
        return oracle.judge(self.dir)

    def condemn(self, *sentences):
        """@param sentences  each must stand in one of the faults"""
        faults = self.judge()
        for words in sentences:
            assert any(words in fault for fault in faults), (words, faults)


_rounds = []


def cleanup(failed=False):
    del failed
    while _rounds:
        shutil.rmtree(_rounds.pop())


@test
def a_round_in_order_has_no_fault():
    faults = Round().judge()
    assert not faults, faults


@test
def a_missing_bundle_is_found():
    r = Round()
    os.unlink(r.manifest())
    os.unlink(r.object())
    r.condemn("3 of 3 files are missing")
    r = Round()
    os.unlink(r.object("volume", 2))
    r.condemn("has no object")
    r = Round()
    os.unlink(r.manifest("volume", 2))
    r.condemn("an object without a manifest")


@test
def a_flipped_byte_is_found():
    for at in (100, -100):
        r = Round()
        with open(r.object(number=2), "r+b") as f:
            f.seek(at, os.SEEK_SET if at > 0 else os.SEEK_END)
            byte = f.read(1)
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte[0] ^ 1]))
        r.condemn("has another SHA-256")


@test
def bytes_that_agree_with_their_manifest_but_not_with_what_was_written_are_found():
    r = Round()
    for where in WHERE:
        r.bundle(where, "directory-20260101T000000-000000000001", "/source/jobs/job-1",
                 TREES["/source/jobs/job-1"] | {"a": b"wrong"})
    r.condemn("b'a' has bytes that nobody wrote")


@test
def a_cut_object_is_found():
    r = Round()
    os.truncate(r.object(number=2), 1 << 20)
    r.condemn("its object has 1048576 bytes")


@test
def a_doubled_object_is_found():
    r = Round()
    r.bundle("bucket", "directory-20260101T000000-0000000000ff", "/source/jobs/job-1",
             TREES["/source/jobs/job-1"])
    r.condemn("arrived 2 times", "arrived twice", "only there",
              "2 are delivered, and 3 lie at bucket")


@test
def a_supplement_is_found_where_nothing_changed_or_when_it_repeats_a_file():
    r = Round()
    r.bundle("volume", "directory-20260101T000000-000000000001-s1", "/source/jobs/job-1",
             {"a": TREES["/source/jobs/job-1"]["a"]}, base="directory-20260101T000000-000000000001")
    r.condemn("supplements a dump that nobody changed", "b'a' arrived twice")
    r = Round()
    r.bundle("volume", "directory-20260101T000000-000000000001-s1", "/source/jobs/job-1",
             {"a": b"x"}, base="nothing")
    r.condemn("which is not there")


@test
def a_supplement_of_a_dump_that_was_changed_is_in_order():
    r = Round()
    r.units[0]["disturbed"] = True
    r.units[0]["files"]["late"] = [{"bytes": 4, "sha256": sha256(b"late"), "needed": True}]
    for where in WHERE:
        r.bundle(where, "directory-20260101T000000-000000000001-s1", "/source/jobs/job-1",
                 {"late": b"late"}, base="directory-20260101T000000-000000000001")
    r.sql.append("INSERT INTO bundles VALUES (3, 'three', 'delivered', X'00'); UPDATE counts SET "
                 "bundles = 3")
    faults = r.judge()
    assert not faults, faults


@test
def an_orphan_upload_is_found():
    r = Round()
    r.uploads["bucket"] = [["key", "upload id"]]
    r.condemn("an orphan multipart upload")
    for late in ("X'00', X'01', unixepoch() * 1000000", "X'00', NULL, 0"):
        r = Round()
        r.sql.append(f"INSERT INTO aborts VALUES ({late})")
        r.condemn("still to be finished or aborted")
    r = Round()
    r.sql.append("INSERT INTO aborts VALUES (X'00', NULL, unixepoch() * 1000000)")
    faults = r.judge()
    assert not faults, faults


@test
def a_wrong_sum_is_found():
    r = Round()
    r.edit_manifest(lambda m: m["members"][0].update(sha256="0" * 64))
    r.condemn("is not what its manifest says")
    r = Round()
    r.edit_manifest(lambda m: m["members"].pop())
    r.condemn("is in the archive only")
    r = Round()
    r.edit_manifest(lambda m: m["bundle"]["parts"][0].update(sha256="0" * 64))
    r.condemn("part 1 has another SHA-256")


@test
def a_label_that_is_wrong_is_found():
    r = Round()
    r.edit_manifest(lambda m: m["bundle"].update(complete=False, reasons=["no idea"]))
    r.condemn("labelled incomplete, and nobody touched it")
    r = Round()
    r.units[0]["disturbed"] = True
    r.edit_manifest(lambda m: m["bundle"].update(complete=False))
    r.condemn("without a reason")


@test
def what_is_left_at_a_destination_is_found():
    r = Round()
    with open(os.path.join(r.place("volume"), ".neuron-x.tmp"), "wb"):
        pass
    r.condemn("a temporary file is left")
    r = Round()
    with open(r.path("at", "bucket", "what"), "wb"):
        pass
    r.condemn("nobody knows what this is")
    r = Round()
    r.pins = ["i-0/x"]
    r.condemn("a pin is left")


@test
def a_source_that_is_gone_without_proof_is_found():
    r = Round()
    r.units[0] |= {"missing": ["a"], "missing_since": 4e9}
    r.condemn("deleting was not allowed")
    r = Round()
    r.units[0] |= {"missing": ["a"], "missing_since": os.stat(r.manifest("volume")).st_mtime - 60,
                   "agent_may_delete": True}
    r.condemn("was deleted before its proof at volume")
    r = Round()
    r.units[0] |= {"missing": ["a"], "missing_since": os.stat(r.manifest("volume")).st_mtime + 60,
                   "agent_may_delete": True}
    faults = r.judge()
    assert not faults, faults


@test
def accounts_that_do_not_add_up_are_found():
    for view in ("status", "metrics"):
        r = Round()
        r.samples.append({view: dict.fromkeys(STATES, 0) | {"discovered": 3, "delivered": 2},
                          "pid": 1, "at": 2.0})
        r.condemn(f"{view} does not add up")
        r = Round()
        r.samples.append({view: dict.fromkeys(STATES, 0) | {"discovered": 1, "delivered": 1},
                          "pid": 2, "at": 2.0})
        r.condemn(f"{view} went back")
    r = Round()
    r.samples = []
    r.condemn("nobody looked")
    r = Round()
    r.sql.append("UPDATE counts SET bundles = 1")
    r.condemn("counts says")
    r = Round()
    r.sql.append("UPDATE bundles SET state = 'shipping' WHERE row = 2; UPDATE counts SET bundles = "
                 "1; INSERT INTO counts VALUES ('shipping', 1)")
    r.condemn("1 bundles are left shipping")
    r = Round()
    r.sql.append("UPDATE deliveries SET proof = NULL")
    r.condemn("delivered without proof")
    r = Round()
    r.sql.append("INSERT INTO bundles VALUES (3, 'three', 'vanished', CAST('/source/jobs/job-1' AS "
                 "BLOB)); INSERT INTO counts VALUES ('vanished', 1)")
    r.condemn("called vanished")


@test
def what_a_life_knew_that_could_not_write_may_be_forgotten_by_the_next_and_no_more():
    for n, is_fault in ((3, False), (1, True)):
        r = Round()
        r.state_failed = [[2, 2.0]]
        for pid, discovered in ((2, 4), (3, n)):
            r.samples.append({"status": dict.fromkeys(STATES, 0) | {
                "discovered": discovered, "delivered": discovered}, "pid": pid, "at": pid + 0.5})
        assert any("went back" in fault for fault in r.judge()) == is_fault


@test
def a_database_that_is_damaged_is_found():
    r = Round()
    r.judge()
    with open(r.path("state.db"), "r+b") as f:
        f.seek(4096)
        f.write(b"\xff" * 4096)
    r.sql = []
    faults = []
    oracle.judge_state(r.path("state.db"), {"units": []}, {}, faults)
    assert faults and "state:" in faults[0], faults


@test
def too_much_memory_and_an_end_by_itself_are_found():
    r = Round()
    r.samples[0]["hwm"] = 97 << 20
    r.condemn("took 97 MiB")
    r = Round()
    r.ends.append({"by_itself": True, "code": 1, "excuse": None, "last_words": "assertion failed"})
    r.condemn("ended by itself with 1: assertion failed")


if __name__ == "__main__":
    sys.exit(main(cleanup))
