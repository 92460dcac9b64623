#!/usr/bin/env python3
"""From a file on disk to a bundle on a volume, judged with tar, bsdtar, zstd and Python."""
import json
import os
import random
import re
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import make_dump
from agent import (INSTANCE, Agent, check_bundle, cleanup, extract, leftovers, object_of, tree,
                   wait_for)
from tap import main, test

ID = re.compile(
    r"^(neuron-core-dump|neuron-profile|process-core|directory)-\d{8}T\d{6}-[0-9a-f]{12}(-s\d+)?$")


@test
def a_core_dump_arrives_complete_under_its_own_names():
    a = Agent().start()
    unit = a.dump(size=6 << 20)
    a.wait_known(1)
    a.wait_all()
    path, m = a.only_manifest()
    place = os.path.join(a.out, f"{make_dump.DEFAULT_DATE_TIME}-{make_dump.DEFAULT_CLUSTER}",
                         INSTANCE)
    assert os.path.dirname(path) == place, path
    assert sorted(os.listdir(place)) == sorted([os.path.basename(path),
                                                os.path.basename(object_of(path))])
    assert ID.match(m["bundle"]["id"]) and "20260527T051233" in m["bundle"]["id"], m["bundle"]["id"]
    st = os.stat(unit)
    check_bundle(path, unit, bundle={"kind": "neuron-core-dump", "complete": True, "reasons": [],
                                     "supplement_of": None},
                 node={"instance_id": INSTANCE, "labels": {"cluster": "e2e"}},
                 source={"name": "core-dumps", "path": unit, "uid": st.st_uid})
    kinds = sorted(e["kind"] for e in m["members"])
    assert kinds == ["cc-core-state"] * 2 + ["nc-state"] * 4 + ["nrt-log"] * 2, kinds
    assert {e["verdict"] for e in m["members"] if e["kind"].endswith("-state")} == {"opaque"}
    assert m["incident"]["cluster_id"] == make_dump.DEFAULT_CLUSTER and m["incident"][
        "date_time"] == make_dump.DEFAULT_DATE_TIME
    assert m["incident"]["agreed"] == "alone"
    assert not leftovers(a.out)
    # The source is kept, and no pin of ours is left beside it.
    assert len(tree(unit)) == 8
    assert all(os.stat(os.path.join(unit, n)).st_nlink == 1
               for n in os.listdir(unit)), "pins are left after delivery"
    assert a.assert_sum()["delivered"] == 1
    b = a.bundles()[0]
    assert b["deliveries"][0]["proof"] == "readback" and b["deliveries"][0][
        "state"] == "delivered", b
    a.stop()


@test
def member_times_and_modes_are_kept():
    a = Agent()
    unit = a.dump(mode=0o640)
    for i, name in enumerate(sorted(os.listdir(unit))):
        os.utime(os.path.join(unit, name), ns=(0, 1_700_000_000_123_456_789 + i))
    a.start()
    a.wait_known(1)
    a.wait_all()
    path, m = a.only_manifest()
    target = extract(object_of(path), "tar")
    for e in m["members"]:
        was, now = os.stat(os.path.join(unit, e["path"])), os.stat(os.path.join(target, e["path"]))
        assert now.st_mtime_ns == was.st_mtime_ns, e["path"]
        assert now.st_mode == was.st_mode and e["mode"] == "0640", e
        assert e["mtime"].endswith(f"{was.st_mtime_ns % 10**9:09d}Z"), e
    a.stop()


@test
def a_model_mode_profile_is_one_bundle_with_verdicts():
    a = Agent()
    a.use_all_kinds()
    a.start()
    unit = a.profile(size=2 << 20)
    a.wait_known(1)
    a.wait_all()
    path, m = a.only_manifest()
    check_bundle(path, unit, bundle={"kind": "neuron-profile", "complete": True, "reasons": []},
                 source={"name": "profiles", "path": unit})
    by_kind = {}
    for e in m["members"]:
        by_kind.setdefault(e["kind"], []).append(e["verdict"])
    assert by_kind["neff"] == ["ok"] * 2, by_kind
    assert by_kind["ntff"] == ["ok"] * 4, by_kind
    assert by_kind["system-trace"] == ["ok"] * 4, by_kind
    # No incident: %d is the oldest member's time, %c sixteen zeros.
    assert re.fullmatch(r"\d{8}-\d{6}-0{16}", os.path.relpath(path, a.out).split("/")[0]), path
    a.stop()


@test
def a_session_mode_profile_is_one_bundle():
    a = Agent()
    a.use_all_kinds()
    a.start()
    unit = a.profile(mode="session", slow=1.0)
    a.wait_known(1)
    a.wait_all()
    path, m = a.only_manifest()
    check_bundle(path, unit, tools=("tar",), bundle={"kind": "neuron-profile"})
    assert any("/" in e["path"]
               for e in m["members"]), "the session directory is part of the member paths"
    a.stop()


@test
def errors_in_a_profile_are_reported_and_everything_is_delivered_all_the_same():
    expected = {"neff-truncated": ("neff", "truncated"), "neff-hash": ("neff", "suspect"),
                "ntff-garbage": ("ntff", "suspect")}
    for fault, (kind, verdict) in expected.items():
        a = Agent()
        a.config["sources"] = [a.source("profiles", "neuron-profile", "profiles", max_wait="2s")]
        unit = a.profile(fault=fault)
        a.start()
        a.wait_known(1)
        a.wait_all()
        path, m = a.only_manifest()
        check_bundle(path, unit, tools=("tar",))
        bad = [e for e in m["members"] if e["verdict"] not in ("ok", "opaque")]
        assert len(bad) == 1 and bad[0]["kind"] == kind and bad[0]["verdict"] == verdict and bad[0][
            "detail"], (fault, bad)
        a.stop()
    for fault, word in (("neff-missing", "neff"), ("pb-missing", "trace_info.pb")):
        a = Agent()
        a.config["sources"] = [a.source("profiles", "neuron-profile", "profiles", max_wait="2s")]
        unit = a.profile(fault=fault)
        a.start()
        a.wait_known(1)
        a.wait_all()
        path, m = a.only_manifest()
        check_bundle(path, unit, tools=("tar",))
        assert any(word in reason
                   for reason in m["bundle"]["reasons"]), (fault, m["bundle"]["reasons"])
        a.stop()


@test
def each_process_core_is_a_bundle_of_its_own():
    a = Agent()
    a.use_all_kinds()
    a.config["sources"][2]["max_wait"] = "2s"
    a.start()
    whole = a.core("core.python3.1000.1")
    cut = a.core("core.python3.1000.2", fault="truncated")
    a.wait_known(2)
    a.wait_all()
    by_path = {m["source"]["path"]: (path, m) for path, m in a.manifests()}
    assert set(by_path) == {whole, cut}
    m = check_bundle(by_path[whole][0], whole, bundle={"kind": "process-core"})
    assert [e["verdict"] for e in m["members"]] == ["ok"] and m["members"][0]["kind"] == "elf-core"
    m = check_bundle(by_path[cut][0], cut)
    assert [e["verdict"] for e in m["members"]] == ["truncated"] and m["members"][0]["detail"]
    a.stop()


@test
def a_plain_directory_is_delivered_with_its_subdirectories():
    a = Agent()
    a.use_all_kinds()
    unit = a.path("jobs", "job-77")
    rng = random.Random(7)
    for i in range(60):
        place = os.path.join(unit, *(["deep"] * (i % 7)))
        os.makedirs(place, exist_ok=True)
        with open(os.path.join(place, f"file {i}"), "wb") as f:
            f.write(rng.randbytes(rng.choice((0, 1, 511, 512, 513, 4096, 70_000))))
    a.start()
    a.wait_known(1)
    a.wait_all()
    path, m = a.only_manifest()
    check_bundle(path, unit, bundle={"kind": "directory"}, source={"name": "jobs"})
    assert {e["verdict"] for e in m["members"] if e["bytes"] == 0} == {"empty"}
    a.stop()


@test
def sparse_files_come_out_the_same_and_stay_sparse():
    a = Agent()
    a.config["sources"] = [a.source("jobs", "directory", "jobs/job-%p")]
    unit = a.path("jobs", "job-1")
    os.makedirs(unit)
    rng = random.Random(3)

    def sparse(name, size, pieces):
        with open(os.path.join(unit, name), "wb") as f:
            for offset, n in pieces:
                f.seek(offset)
                f.write(rng.randbytes(n))
            f.truncate(size)

    sparse("one-hole", 40 << 20, [(0, 4096), (30 << 20, 100_000)])
    sparse("all-hole", 30 << 20, [])
    sparse("odd-ends", (20 << 20) + 777, [(123, 7), ((8 << 20) + 1, 5000), ((20 << 20) + 700, 77)])
    sparse("many-holes", 64 << 20, [(i * 256 * 1024 + 13, 9000) for i in range(250)])
    sparse("small-holes-are-data", 1 << 20, [(i * 16384, 100) for i in range(64)])
    with open(os.path.join(unit, "zeros-not-holes"), "wb") as f:
        f.write(bytes(3 << 20))
    a.start()
    a.wait_known(1)
    a.wait_all()
    path, _ = a.only_manifest()
    check_bundle(path, unit)
    target = extract(object_of(path), "tar")
    for name in ("one-hole", "all-hole", "many-holes"):
        was, now = os.stat(os.path.join(unit, name)), os.stat(os.path.join(target, name))
        assert (now.st_blocks <= was.st_blocks
                + 256), f"{name} takes {now.st_blocks} blocks, was {was.st_blocks}"
    a.stop()


@test
def sizes_around_every_border_of_tar_and_frames_extract_the_same():
    a = Agent()
    a.config["sources"] = [a.source("jobs", "directory", "jobs/job-%p")]
    unit = a.path("jobs", "job-1")
    os.makedirs(unit)
    rng = random.Random(11)
    frame = 2 << 20
    for n in (0, 1, 511, 512, 513, 1023, frame - 513, frame - 512, frame - 511, frame, frame + 1,
              2 * frame - 1024, 2 * frame, 3 * frame + 5):
        with open(os.path.join(unit, f"bytes-{n}"), "wb") as f:
            f.write(rng.randbytes(n))
    long_name = "l" * 250
    with open(os.path.join(unit, long_name), "wb") as f:
        f.write(b"a long name needs a pax header")
    deep = os.path.join(unit, *["d" * 100] * 5)
    os.makedirs(deep)
    with open(os.path.join(deep, "deep"), "wb") as f:
        f.write(b"a long path too")
    a.start()
    a.wait_known(1)
    a.wait_all()
    check_bundle(a.only_manifest()[0], unit)
    a.stop()


@test
def every_compression_level_gives_a_bundle_that_others_read():
    for level in (0, 1, 12):
        a = Agent()
        a.config["limits"] = {"compression_level": level, "compression_threads": 2}
        if level == 12:
            a.config["limits"] |= {"memory": "160MiB"}
        unit = a.dump(size=9 << 20)
        a.start()
        a.wait_known(1)
        a.wait_all()
        check_bundle(a.only_manifest()[0], unit, tools=("tar", "bsdtar"))
        a.stop()


@test
def each_spelling_of_date_time_and_any_order_of_variables_is_understood():
    a = Agent()
    a.config["sources"] = [
        a.source("usual", "neuron-core-dump", "usual/dt-%d-cid-%c"),
        a.source("other-order", "neuron-core-dump", "other/%c/pid-%p/%d"),
        a.source("nothing", "neuron-core-dump", "flat"),
    ]
    old = make_dump.make_dump(a.path("usual"), size=65536, date_time="2026-05-27-05-12",
                              cluster_id="00000000000000aa")
    other = make_dump.make_dump(a.path("other"), size=65536,
                                directory="00000000000000bb/pid-12/20260528-010203")
    flat = make_dump.make_dump(a.path("flat"), size=65536, directory=".")
    a.start()
    a.wait_known(3)
    a.wait_all()
    by_source = {m["source"]["name"]: (path, m) for path, m in a.manifests()}
    path, m = by_source["usual"]
    assert m["incident"]["date_time"] == "2026-05-27-05-12" and m["incident"][
        "cluster_id"] == "00000000000000aa", m["incident"]
    assert "20260527T0512" in m["bundle"]["id"]
    check_bundle(path, old, tools=("tar",))
    path, m = by_source["other-order"]
    assert m["incident"]["date_time"] == "20260528-010203" and m["incident"][
        "cluster_id"] == "00000000000000bb"
    check_bundle(path, other, tools=("tar",))
    check_bundle(by_source["nothing"][0], tree(flat), tools=("tar",))
    a.stop()


@test
def what_another_instance_wrote_is_left_alone():
    a = Agent()
    mine = a.dump()
    make_dump.make_dump(a.path("dumps"), size=65536, instance_id="i-0fedcba9876543210", pid=7)
    make_dump.make_dump(a.path("dumps"), size=65536, instance_id="i-0fedcba9876543210", pid=8,
                        cluster_id="00000000000000cc")
    a.start()
    a.wait_known(1)
    a.wait_all()
    path, m = a.only_manifest()
    assert all(INSTANCE in e["path"] for e in m["members"])
    files = {p: v for p, v in tree(mine).items() if INSTANCE.encode() in p}
    check_bundle(path, files, tools=("tar",))
    a.stop()


@test
def excluded_names_are_not_delivered():
    a = Agent()
    a.config["sources"][0]["exclude"] = ["*.tmp", "scratch/*"]
    unit = a.dump()
    os.mkdir(os.path.join(unit, "scratch"))
    for name in ("half.tmp", "scratch/x"):
        with open(os.path.join(unit, name), "w", encoding="ascii") as f:
            f.write("not evidence")
    a.start()
    a.wait_known(1)
    a.wait_all()
    _, m = a.only_manifest()
    assert len(m["members"]) == 8, [e["path"] for e in m["members"]]
    a.stop()


@test
def a_dump_written_over_three_seconds_is_collected_once_and_completely():
    a = Agent().start()
    unit = a.dump(size=4 << 20, slow=3)
    a.wait_known(1)
    a.wait_all()
    path, m = a.only_manifest()
    check_bundle(path, unit, tools=("tar",))
    assert m["bundle"]["complete"] and m["bundle"]["supplement_of"] is None
    a.stop()


@test
def files_that_come_late_go_out_as_a_supplement():
    a = Agent().start()
    unit = a.dump()
    a.wait_known(1)
    a.wait_all()
    _, first = a.only_manifest()
    late = os.path.join(unit, f"{INSTANCE}-nd7-nc1-pid-39738-tid-1-lid-9")
    with open(late, "wb") as f:
        f.write(b"late evidence\n" * 10_000)
    a.wait_delivered(2)
    by_id = {m["bundle"]["id"]: (path, m) for path, m in a.manifests()}
    base = first["bundle"]["id"]
    assert set(by_id) == {base, base + "-s1"}, set(by_id)
    path, m = by_id[base + "-s1"]
    assert m["bundle"]["supplement_of"] == base
    assert m["incident"] == first["incident"]
    check_bundle(path, {k: v for k, v in tree(unit).items()
                        if k == os.path.basename(late).encode()})
    assert os.path.dirname(path) == os.path.dirname(by_id[base][0])
    a.assert_sum()
    a.stop()


@test
def one_source_goes_to_two_destinations_with_proof_from_each():
    a = Agent()
    a.config["destinations"].append(a.volume("second", "out2"))
    a.config["destinations"][1]["path"] = a.path("out2", "%k", "%n", "%d-%c")
    unit = a.dump()
    a.start()
    a.wait_known(1)
    a.wait_all()
    check_bundle(a.only_manifest()[0], unit, tools=("tar",))
    path, _ = a.only_manifest(a.path("out2"))
    check_bundle(path, unit, tools=("tar",))
    assert os.path.relpath(path, a.path("out2")).startswith("neuron-core-dump/core-dumps/"), path
    b = a.bundles()[0]
    assert sorted((d["destination"], d["proof"])
                  for d in b["deliveries"]) == [("archive", "readback"), ("second", "readback")]
    a.stop()


@test
def verify_confirms_what_was_delivered_and_names_what_was_tampered_with():
    a = Agent()
    a.dump(size=3 << 20)
    a.start()
    a.wait_known(1)
    a.wait_all()
    path, _ = a.only_manifest()
    archive = object_of(path)
    result = a.cli("verify", archive)
    assert result.returncode == 0, result.stdout + result.stderr
    with open(archive, "r+b") as f:
        f.seek(os.path.getsize(archive) // 2)
        byte = f.read(1)
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte[0] ^ 1]))
    result = a.cli("verify", archive)
    assert result.returncode == 1, (result.returncode, result.stdout, result.stderr)
    with open(archive, "r+b") as f:
        f.truncate(os.path.getsize(archive) - 100)
    assert a.cli("verify", archive).returncode == 1
    a.stop()


@test
def a_backlog_is_delivered_at_start_and_nothing_is_delivered_twice_after_a_restart():
    a = Agent()
    units = [a.dump(size=65536, cluster_id=f"{i:016x}", pid=100 + i) for i in range(1, 21)]
    a.start()
    a.wait_known(20)
    a.wait_all()
    assert len(a.manifests()) == 20
    before = {p: os.stat(p).st_mtime_ns for p, _ in a.manifests()}
    a.stop()
    a.start()
    unit = a.dump(size=65536, cluster_id="00000000000000ff", pid=99)
    a.wait_delivered(21)
    assert {p: os.stat(p).st_mtime_ns for p, _ in a.manifests() if p in before} == before
    assert len(a.manifests()) == 21
    by_path = {m["source"]["path"]: p for p, m in a.manifests()}
    for u in [units[0], units[-1], unit]:
        check_bundle(by_path[u], u, tools=("tar",))
    a.stop()


@test
def names_with_newlines_and_invalid_utf_8_survive():
    a = Agent()
    unit = a.dump(size=65536)
    for name in (b"new\nline", b"caf\xe9 latin1", b"back\\slash", b"tab\tquote\"'", b"\xff\xfe",
                 "héllo ✓".encode(), b"no escape \\x41", b" lead and trail "):
        with open(os.path.join(os.fsencode(unit), name), "wb") as f:
            f.write(b"content of " + name)
    a.start()
    a.wait_known(1)
    a.wait_all()
    path, m = a.only_manifest()
    check_bundle(path, unit)
    spelled = {e["path"] for e in m["members"]}
    assert (r"caf\xe9 latin1" in spelled and r"back\x5cslash" in spelled
            and r"no escape \x5cx41" in spelled), spelled
    assert "héllo ✓" in spelled
    assert a.cli("verify", object_of(path)).returncode == 0
    a.stop()


@test
def bundles_of_one_state_are_listed_for_people_and_for_programs():
    a = Agent()
    a.dump()
    a.start()
    a.wait_known(1)
    a.wait_all()
    b = a.bundles("?state=delivered")[0]
    result = a.cli("list", "--state", "delivered")
    assert result.returncode == 0 and b["id"] in result.stdout, result.stdout
    assert a.cli("list", "--state", "settling").stdout.count(b["id"]) == 0
    shown = a.cli("show", b["id"])
    assert shown.returncode == 0 and b["id"] in shown.stdout and "archive" in shown.stdout
    assert a.cli("show", "neuron-core-dump-20200101T000000-000000000000").returncode == 1
    assert json.loads(a.cli("--json", "show", b["id"]).stdout)["id"] == b["id"]
    wait_for("readyz says yes", lambda: a.curl("/readyz").returncode == 0)
    assert a.sql("pragma integrity_check") == "ok"
    assert oct(os.stat(a.path("state", "state.db")).st_mode & 0o777) == "0o600"
    a.stop()


@test
def a_supplement_is_not_incomplete_for_a_member_that_the_base_has():
    a = Agent()
    unit = a.dump(size=65536)
    a.start()
    a.wait_delivered(1)
    os.chmod(unit, 0o777)  # so that what has two names may be anybody's
    member = sorted(os.listdir(unit))[0]
    os.link(os.path.join(unit, member), a.path("elsewhere"))
    with open(os.path.join(unit, "late"), "wb") as f:
        f.write(b"late")
    a.wait_delivered(2)
    found = [m for _, m in a.manifests() if m["bundle"]["supplement_of"]]
    assert len(found) == 1 and [e["path"] for e in found[0]["members"]] == ["late"], found
    assert found[0]["bundle"]["complete"], found[0]["bundle"]["reasons"]
    a.stop()


@test
def a_supplement_is_not_incomplete_without_the_neff_that_the_base_has():
    a = Agent()
    a.config["sources"] = [a.source("profiles", "neuron-profile", "profiles")]
    unit = a.path("profiles", f"{INSTANCE}_pid_7")
    os.makedirs(unit)
    with open(os.path.join(unit, "neff_12.neff"), "wb") as f:
        f.write(b"neff")
    a.start()
    a.wait_delivered(1)
    open(os.path.join(unit, "12_instid_0_vnc_0.ntff"), "wb").close()
    a.wait_delivered(2)
    found = [m for _, m in a.manifests() if m["bundle"]["supplement_of"]]
    assert len(found) == 1 and found[0]["bundle"]["complete"], found
    a.stop()


@test
def a_dump_whose_name_has_only_the_cluster_id_has_an_incident():
    a = Agent()
    a.config["sources"] = [a.source("jobs", "neuron-core-dump", "jobs/job-%c")]
    unit = a.path("jobs", "job-d99e36ea74c263ca")
    os.makedirs(unit)
    with open(os.path.join(unit, "file"), "wb") as f:
        f.write(b"x")
    a.start()
    a.wait_delivered(1)
    path, m = a.only_manifest()
    assert m["incident"]["cluster_id"] == "d99e36ea74c263ca" and m["incident"]["derived"], m
    assert f"{m['incident']['date_time']}-d99e36ea74c263ca" in path, (path, m["incident"])
    a.stop()


@test
def traces_beside_the_directories_of_processes_are_delivered():
    a = Agent()
    a.config["sources"] = [a.source("profiles", "neuron-profile", "profiles")]
    output = a.path("profiles", "output")
    for name in (f"{INSTANCE}_pid_7/ntrace.pb", "neuron_framework_trace_rank_0.json",
                 "plugins/profile/x.json"):
        os.makedirs(os.path.dirname(os.path.join(output, name)), exist_ok=True)
        with open(os.path.join(output, name), "wb") as f:
            f.write(b"{}")
    a.start()
    a.wait_delivered(2)
    paths = sorted(e["path"] for _, m in a.manifests() for e in m["members"])
    assert paths == ["neuron_framework_trace_rank_0.json", "ntrace.pb",
                     "plugins/profile/x.json"], paths
    a.stop()


@test
def other_files_of_an_output_directory_are_delivered_and_strays_are_named():
    a = Agent()
    a.config["sources"] = [a.source("profiles", "neuron-profile", "profiles")]
    for name in (f"vllm/{INSTANCE}_pid_7/ntrace.pb", "vllm/neffs/graph_1.neff", "vllm/ntff.json",
                 "jax/plugins/profile/2026_05_27/host.xplane.pb", "stray/notes.txt"):
        path = a.path("profiles", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(b"{}")
    a.start()
    a.wait_delivered(3)
    paths = sorted(e["path"] for _, m in a.manifests() for e in m["members"])
    assert paths == ["neffs/graph_1.neff", "ntff.json", "ntrace.pb",
                     "plugins/profile/2026_05_27/host.xplane.pb"], paths
    assert 'discards_total{reason="no-profile"} 1' in a.curl("/metrics").stdout
    assert "no-profile: 1 left out, such as 'stray/notes.txt'" in a.log, a.log
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
