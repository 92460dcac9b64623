#!/usr/bin/env python3
"""neuron-collect report: who took part in a failure, from what lies at a destination."""
import json
import os
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
# pylint: disable=wrong-import-position
from cli_test import CLI, assert_harmless, check_golden, main, run, session, test

import incidents
from agent import cleanup, need_root
from reading import Here
from s3_server import S3Server

OTHER = "fedcba9876543210"


class Volume(Here):
    """A destination's fixed part, `out`, with these files."""

    def __init__(self, files, time=incidents.OPENED):
        super().__init__()
        self.files, self.time = files, time

    def __enter__(self):
        super().__enter__()
        os.mkdir(self("out"))
        incidents.write(self("out"), self.files, self.time)
        return self

    def document(self, *arguments, code=1):
        result = self.run("--json", "report", *arguments)
        assert result.returncode == code and not result.stderr, result
        return json.loads(result.stdout)


def all_present(key=OTHER, n=1, **more):
    return {incidents.decision_name(key, n): incidents.decision(key, n, world_size=2, **more),
            incidents.record_name("i-0a", key, n): incidents.record("i-0a", [
                incidents.claim(0), incidents.claim(1)], key, n)}


@test
def a_failure_is_a_table_of_its_ranks():
    with Volume(incidents.failure()) as v:
        result = v.run("report", "out")
        assert result.returncode == 1 and not result.stderr, result
        check_golden("report", session(["report", "out"], result))


@test
def json_is_the_document_of_incident_json():
    with Volume(incidents.failure()) as v:
        d = v.document("out")
        assert [r["state"] for r in d["ranks"]] == incidents.STATES
        assert [r["reason"] for r in d["ranks"]] == incidents.REASONS
        assert d["first_failure"]["rank"] == 2, "of the same time, the hardware"
        assert d["first_failure"]["uncertainty_ms"] == 500
        assert d["first_failure"]["error_name"] == "NRT_EXEC_HW_ERR_NC_UE"
        assert [s["rank"] for s in d["suspects"]] == [5]
        assert d["decided_at"] == incidents.moment(incidents.OPENED)
        assert (d["job"], d["world_size"], d["agreed"]) == ("torchrun:job-1", 8, "store")
        assert [n["instance_id"] for n in d["nodes"]] == ["i-0a", "i-0b", "i-0c"]


def beside(name, node):
    return name.replace(".incidents/", f".incidents.{node}/", 1)


@test
def records_that_the_directory_has_refused_are_read_beside_it():
    files = incidents.failure()
    with Volume(files) as v:
        before = v.document("out")
    name = incidents.record_name("i-0c")
    files[beside(name, "i-0c")] = files.pop(name)
    # another node's, a decision, and one of a failure that nobody has decided on
    files[beside(incidents.record_name("i-0d"), "i-0c")] = incidents.record("i-0d", [])
    files[beside(incidents.decision_name(n=2), "i-0c")] = incidents.decision(n=2)
    files[beside(incidents.record_name("i-0c", OTHER), "i-0c")] = incidents.record(
        "i-0c", [incidents.claim(7)], OTHER)
    with Volume(files) as v:
        for place in ("out", f"out/.incidents/{incidents.KEY}", f"out/.incidents/{incidents.KEY}/1"):
            assert v.document(place) == before, place


@test
def what_another_user_has_written_is_left_out_and_named():
    need_root()
    planted = {incidents.record_name("i-0bad"): incidents.record("i-0bad", [
        incidents.claim(1, incidents.OPENED - 3000)]),
               incidents.decision_name(n=9): incidents.decision(n=9)}
    with Volume(incidents.failure()) as v:
        before = v.document("out")
        incidents.write(v("out"), planted)
        for name in planted:
            os.chown(v("out", name), 20005, 20005)
        result = v.run("--json", "report", "out")
        assert json.loads(result.stdout) == before and result.returncode == 1, result
        assert "left out: 2 files of uid 20005" in result.stderr, result
        with open(v("config.yaml"), "w", encoding="utf-8") as f:
            f.write(f"""version: 1
sources: [{{name: a, kind: directory, path: {v("a")}}}]
destinations: [{{name: b, type: volume, path: {v("out")}}}]
agreement: {{trusted_uids: [20005]}}
""")
        result = v.run("--config", "config.yaml", "--json", "report", f"out/.incidents/{incidents.KEY}/1")
        assert "i-0bad" in result.stdout and not result.stderr, result
    with Volume(incidents.failure()) as v:  # all of it is another user's
        os.chown(v("out", ".incidents"), 20005, 20005)
        for base, _, names in os.walk(v("out", ".incidents")):
            for name in names:
                os.chown(os.path.join(base, name), 20005, 20005)
        result = v.run("--json", "report", "out")
        assert result.returncode == 3 and not result.stdout, result
        assert "left out: 4 files of uid 20005" in result.stderr, result
        assert "no failures in 'out' that an agent is known to have written" in result.stderr, result
        os.chown(v("out", incidents.record_name("i-0c")), 20006, 20006)
        result = v.run("--json", "report", "out", "--trust-uid", "20006,20005")
        assert json.loads(result.stdout)["ranks"] == before["ranks"] and not result.stderr, result


@test
def above_an_incident_the_volumes_owner_is_that_of_the_directory_with_the_records():
    need_root()
    directory = f"core-dumps/{incidents.NAME}"  # of a path such as out/%n/%d-%c
    files = incidents.failure() | {f"{directory}/incident.json": incidents.dump(
        {"key": incidents.KEY, "n": 1})}
    with Volume(files) as v:
        before = v.document("out")
        for name in ("", *files):
            os.chown(v("out", name), 20005, 20005)
        assert v.document(f"out/{directory}") == before
        os.chown(v("out"), 20006, 20006)
        os.chown(v("out", "core-dumps"), 20005, 20005)  # another node's user may have made it
        result = v.run("--json", "report", f"out/{directory}")
        assert result.returncode == 3 and "of uid 20005" in result.stderr, result


@test
def no_symlink_below_the_root_is_followed():
    with Volume(incidents.failure()) as v:
        os.mkdir(v("other"))
        os.symlink("../out/.incidents", v("other", ".incidents"))
        result = v.run("report", "other")
        assert result.returncode == 3 and "symlink" in result.stderr, result
        os.symlink("out", v("link"))  # what the operator names is
        assert v.run("report", "link").returncode == 1


@test
def exit_0_when_all_are_present_or_late():
    with Volume(all_present()) as v:
        assert [r["state"] for r in v.document("out", code=0)["ranks"]] == ["present"] * 2
    with Volume(all_present(), incidents.OPENED - 60) as v:
        assert [r["state"] for r in v.document("out", code=0)["ranks"]] == ["late"] * 2


@test
def without_a_world_size_nobody_is_missing():
    claims = [incidents.claim(3, world_size=None), incidents.claim(
        None, world_size=None, bundle=None, bundle_state="none", state="alive")]
    with Volume({incidents.decision_name(): incidents.decision(world_size=None),
                 incidents.record_name("i-0a"): incidents.record("i-0a", claims)}) as v:
        d = v.document("out", code=0)
        assert d["world_size"] is None
        assert [(r["rank"], r["state"]) for r in d["ranks"]] == [(3, "present"), (None, None)]
        result = v.run("report", "out")
        check_golden("report-world-size", session(["report", "out"], result))


@test
def of_more_processes_than_can_be_shown_it_says_that_they_are_not_all():
    files = {incidents.decision_name(): incidents.decision(world_size=16000)}
    for node in range(5):
        name = f"i-0{node}"
        files[incidents.record_name(name)] = incidents.record(name, [
            incidents.claim(1000 * node + i, boot_id=f"{node:032x}", world_size=16000)
            for i in range(1000)])
    with Volume(files) as v:
        d = v.document("out")
        assert d["cut"] is True and len(d["ranks"]) == 4096 and d["world_size"] is None, d["cut"]
        result = v.run("report", "out")
        assert result.returncode == 1 and "more than 4096 processes" in result.stdout, result


@test
def a_process_that_nobody_saw_has_no_pid():
    with Volume({incidents.decision_name(): incidents.decision(world_size=None),
                 incidents.record_name("i-0a"): incidents.record("i-0a", [incidents.claim(
                     None, pid=2 ** 31 + 7, world_size=None)])}) as v:
        d = v.document("out", code=0)
        assert d["ranks"][0]["pid"] is None and d["first_failure"]["pid"] is None, d
        text = v.run("report", "out").stdout
        assert str(2 ** 31 + 7) not in text, text


@test
def every_spelling_of_a_place_finds_it():
    files = incidents.failure()
    files |= {f"cluster-a/{incidents.NAME}/i-0a/x.txt": b"x",
              f"cluster-a/{incidents.NAME}/incident.json": incidents.dump(
                  {"key": incidents.KEY, "n": 1})}
    with Volume(files) as v:
        wanted = v.document("out")
        prefix = f"out/cluster-a/{incidents.NAME}"
        for place in ("out/", "./out", v("out"), "out/.incidents", "out/.incidents/",
                      f"out/.incidents/{incidents.KEY}", f"out/.incidents/{incidents.KEY}/",
                      f"out/.incidents/{incidents.KEY}/1", f"out/.incidents/{incidents.KEY}/1/",
                      f"out/.incidents/{incidents.KEY}/1.json", prefix, prefix + "/", v(prefix)):
            assert v.document(place) == wanted, place
        result = run(CLI, "--json", "report", ".", cwd=v(prefix))
        assert json.loads(result.stdout) == wanted, "the incident's directory is the current one"
        result = run(CLI, "--json", "report", ".", cwd=v("out"))
        assert json.loads(result.stdout) == wanted
        for place in ("out/.incidents/x", f"out/.incidents/{incidents.KEY}x",
                      f"out/.incidents/{incidents.KEY}/0", f"out/.incidents/{incidents.KEY}/x",
                      f"out/.incidents/{incidents.KEY}/1/x",
                      f"out/.incidents/{incidents.KEY.upper()}"):
            result = v.run("report", place)
            assert result.returncode == 2 and "KEY/N" in result.stderr, (place, result)


@test
def of_a_key_the_newest_failure_is_shown_and_an_older_one_on_request():
    files = {}
    for n in (1, 2, 9, 10):
        files |= all_present(incidents.KEY, n, date_time=f"20260528-2026{n:02}")
    with Volume(files) as v:
        assert v.document("out", code=0)["n"] == 10
        assert v.document(f"out/.incidents/{incidents.KEY}", code=0)["n"] == 10
        for n in (1, 2, 9, 10):
            d = v.document(f"out/.incidents/{incidents.KEY}/{n}", code=0)
            assert (d["n"], d["date_time"]) == (n, f"20260528-2026{n:02}"), d
        assert v.run("report", f"out/.incidents/{incidents.KEY}/3").returncode == 3


@test
def of_several_keys_there_is_a_line_each():
    files = incidents.failure() | all_present() | all_present(n=2)
    with Volume(files) as v:
        result = v.run("report", "out")
        assert result.returncode == 1 and not result.stderr, result
        check_golden("report-list", session(["report", "out"], result))
        listed = v.document("out")
        assert [(d["key"], d["n"]) for d in listed] == [(incidents.KEY, 1), (OTHER, 2)]
        url = result.stdout.splitlines()[1].split()[0]
        assert v.document(url)["key"] == incidents.KEY, "what is printed can be asked for"
        result = v.run("report", "out", "--html", "page.html")
        assert result.returncode == 2 and not os.path.exists(v("page.html")), result


@test
def a_page_is_self_contained_and_escapes_everything():
    bad = "<script>alert('1')</script> & \"x\""
    files = {incidents.decision_name(): incidents.decision(job=bad),
             incidents.record_name("i-0a"): incidents.record(
                 "i-0a", [incidents.claim(0, error_location=bad)],
                 bundles=[incidents.bundle(incidents.claim(0), bad, "i-0a")])}
    with Volume(files) as v:
        result = v.run("report", "out", "--html", "page.html")
        assert result.returncode == 1 and not result.stdout + result.stderr, result
        with open(v("page.html"), encoding="utf-8") as f:
            page = f.read()
        assert "<script" not in page and "http://" not in page and "src=" not in page, page
        assert "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt; &amp; &quot;x&quot;" in page, page
        assert page.count("&lt;script&gt;") == 3 and "EVIDENCE" in page, page
        assert page.count("<tr") == 9 and "unreachable" in page, page
        result = v.run("report", "out", "--html", "no/such/page.html")
        assert result.returncode == 3 and "no/such/page.html" in result.stderr, result


@test
def what_is_not_valid_is_named_and_the_rest_is_shown():
    for broken in (b"", b"{", b"x" * 5_000_000, incidents.record("i-0x", []),
                   incidents.record("i-0b", [], n=2), b"[" * 100_000):
        files = incidents.failure() | {incidents.record_name("i-0b"): broken}
        with Volume(files) as v:
            result = v.run("--json", "report", "out")
            assert result.returncode == 3 and "i-0b.json" in result.stderr, result
            states = [r["state"] for r in json.loads(result.stdout)["ranks"]]
            assert states == ["present"] * 2 + ["missing"] * 6, states
    for broken in (b"", b"{}", incidents.decision(n=2), incidents.decision(cluster_id="../x")):
        with Volume(incidents.failure() | {incidents.decision_name(): broken}) as v:
            result = v.run("report", "out")
            assert result.returncode == 3 and "1.json" in result.stderr, result
            assert not result.stdout, result


@test
def what_others_have_put_there_is_passed_over():
    files = incidents.failure() | {
        ".incidents/x": b"x", ".incidents/0/1.json": b"x", f".incidents/{incidents.KEY}/x.json":
        b"x", f".incidents/{incidents.KEY}/1/.tmp": b"x",
        f".incidents/{incidents.KEY}/1/y.json": b"x"}
    with Volume(files) as v:
        os.symlink("/etc/passwd", v("out", incidents.record_name("i-0d")))
        os.mkfifo(v("out", incidents.record_name("i-0e")))
        assert [r["state"] for r in v.document("out")["ranks"]] == incidents.STATES


@test
def where_the_records_are_gone_the_published_document_is_shown():
    with Volume(incidents.failure()) as v:
        published = v.document("out")
    directory = f"x/{incidents.NAME}"
    hostile = dict(published, job="\x1b[31m\x9b\u202e", ranks=[7, None, [], {"rank": "\x1b[0m\n"}],
                   first_failure=[], suspects={"a": 1}, decided_at=5, nodes=[
                       7, {"instance_id": "\x9b", "bundles": 7, "bundles_left_out": "x"},
                       {"bundles": [None, {"object": "\x1b[0m\n\u202e"}], "bundles_left_out": 1}])
    with Volume({f"{directory}/incident.json": incidents.dump(published)}) as v:
        result = v.run("--json", "report", f"out/{directory}")
        assert result.returncode == 1 and json.loads(result.stdout) == published, result
        assert "published" in result.stderr, result
    with Volume({f"{directory}/incident.json": incidents.dump(hostile)}) as v:
        result = v.run("report", f"out/{directory}")
        assert result.returncode == 0, result
        assert_harmless(result.stdout, "a published document")
        assert v.run("report", f"out/{directory}", "--html", "page").returncode == 0
        with open(v("page"), encoding="utf-8") as f:
            assert_harmless(f.read(), "a page")
    for other in (b"", b"{}", b"null", incidents.dump({"key": "../x", "n": 1}),
                  incidents.dump({"key": incidents.KEY, "n": -1})):
        with Volume({f"{directory}/incident.json": other}) as v:
            assert v.run("report", f"out/{directory}").returncode == 3


@test
def what_cannot_be_read_is_exit_3_and_wrong_usage_2():
    with Volume({}) as v:
        for place in ("out", "nowhere", "out/.incidents", f"out/.incidents/{incidents.KEY}"):
            result = v.run("report", place)
            assert result.returncode == 3 and not result.stdout and place.split("/")[
                0] in result.stderr, (place, result)
        for arguments in ([], ["a", "b"], [""], ["a", "--html"], ["s3:/x"], ["a", "--what"]):
            result = v.run("report", *arguments)
            assert result.returncode == 2 and not result.stdout, (arguments, result)


@test
def a_bucket_tells_the_same():
    files = incidents.failure() | {f"x/{incidents.NAME}/incident.json": incidents.dump(
        {"key": incidents.KEY, "n": 1})}
    with Volume(files) as v, S3Server() as s:
        wanted = v.document("out")
        for name, body in files.items():
            s.put("neuron/" + name, body)
        here = Here({"AWS_ENDPOINT_URL": s.endpoint, **s.environment()})
        with here:
            for place in ("neuron", "neuron/", "neuron/.incidents", f"neuron/x/{incidents.NAME}",
                          f"neuron/.incidents/{incidents.KEY}/1"):
                result = here.run("--json", "report", f"s3://{s.bucket}/{place}")
                assert result.returncode == 1 and not result.stderr, (place, result)
                d = json.loads(result.stdout)
                assert d["decided_at"] != wanted["decided_at"], "it is the store's"
                assert [r["reason"] for r in d["ranks"]] == incidents.REASONS, place
            result = here.run("report", f"s3://{s.bucket}")
            below = f"some below 's3://{s.bucket}/neuron"
            assert result.returncode == 3 and below in result.stderr, result


if __name__ == "__main__":
    sys.exit(main(cleanup))
