#!/usr/bin/env python3
"""neuron-collect get --member: one file out of a bundle by as few bytes as it takes, checked, with
its holes."""
import hashlib
import json
import os
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
# pylint: disable=wrong-import-position
from cli_test import check_golden, main, session, test

from agent import cleanup, sha256_file
from reading import (BIG, EMPTY, MIB, SMALL, SPARSE, SPARSE_BYTES, Here, Made, Served,
                     assert_no_secret, escaped)

BASE = os.path.basename(BIG)


def source(path):
    return os.path.join(Made.get().source, path)


def content(path):
    with open(source(path), "rb") as f:
        return f.read()


@test
def every_member_is_what_the_source_was_from_both_places():
    made = Made.get()
    with Served() as s:
        for url in (made.big, s.url, s.url.removesuffix(".tar.zst") + ".manifest.json"):
            with Here(s.here.environment) as here:
                for path in (BIG, SPARSE, EMPTY, SMALL):
                    result = here.run("get", url, "--member", escaped(path))
                    assert result.returncode == 0 and not result.stderr, result
                    assert sha256_file(here(os.path.basename(path))) == sha256_file(
                        source(path)), path
                    assert_no_secret(s, result)
                assert here.names() == sorted([BASE, SPARSE, EMPTY, SMALL]), here.names()
                here.run("get", url, "--member", SMALL, "-o", "as.txt")
                assert sha256_file(here("as.txt")) == sha256_file(source(SMALL))


@test
def holes_are_holes_in_files_and_zeros_on_stdout():
    with Served() as s:
        for url in (Made.get().big, s.url):
            with Here(s.here.environment) as here:
                here.fetched(url, "--member", SPARSE)
                st = os.stat(here(SPARSE))
                assert st.st_size == SPARSE_BYTES and st.st_blocks * 512 <= 2 * MIB, st
                process = here.spawn("get", url, "--member", SPARSE, "-o", "-")
                digest = hashlib.sha256()
                while block := process.stdout.read(MIB):
                    digest.update(block)
                assert process.wait(30) == 0 and digest.hexdigest() == sha256_file(source(SPARSE))
                process.stdout.close()
                process.stderr.close()


@test
def few_requests_and_few_bytes_are_enough():
    with Served() as s:
        for path, most in ((SMALL, 3 * MIB), (EMPTY, 3 * MIB), (SPARSE, 4 * MIB), (BIG, 25 * MIB)):
            s.log.clear()
            if path == BIG:  # or one connection may be free again when the next part is wanted
                s.fault("GetObject", delay=0.3, times=None)
            answer = s.here.fetched(s.url, "--member", escaped(path), "-o", "out", "--force")
            requests = len(s.gets()) + len(s.gets(".manifest.json"))
            assert requests <= (4 if path != BIG else 6) and len(s.log) == requests, s.story()
            assert s.loaded() <= most and answer["loaded_bytes"] == s.loaded(), (path, s.loaded(
                ), answer)
            assert answer["member"] == escaped(path) and answer["bytes"] == os.path.getsize(
                source(path)), answer
        assert len({r.connection for r in s.gets()}) > 1, "a large member is loaded in parallel"


@test
def what_an_earlier_run_has_left_is_kept_when_it_is_right():
    made, data = Made.get(), content(BIG)
    with Served() as s:
        partial = s.here(BASE + ".partial")
        for kept, most in ((7 * MIB, 16 * MIB), (len(data), 4 * MIB), (1, 22 * MIB)):
            with open(partial, "wb") as f:
                f.write(data[:kept])
            assert s.here.fetched(s.url, "--member", escaped(BIG))["loaded_bytes"] <= most, kept
            assert sha256_file(s.here(BASE)) == sha256_file(source(BIG))
            os.unlink(s.here(BASE))
        for garbage in (os.urandom(7 * MIB), data[:5 * MIB] + b"?" + data[5 * MIB + 1:9 * MIB],
                        data + b"more"):
            with open(partial, "wb") as f:
                f.write(garbage)
            answer = s.here.fetched(s.url, "--member", escaped(BIG))
            assert answer["loaded_bytes"] <= 2 * 22 * MIB and s.here.names() == [BASE], answer
            assert sha256_file(s.here(BASE)) == sha256_file(source(BIG))
            os.unlink(s.here(BASE))
        with Here() as here:
            with open(here(SPARSE + ".partial"), "wb") as f:
                f.write(b"x" * 100000)
            here.fetched(made.big, "--member", SPARSE)
            assert sha256_file(here(SPARSE)) == sha256_file(source(SPARSE))


@test
def what_is_here_already_is_verified_and_something_else_is_not_replaced():
    with Served() as s:
        for path in (SMALL, SPARSE):
            s.here.fetched(s.url, "--member", path)
            s.log.clear()
            assert s.here.fetched(s.url, "--member", path)["loaded_bytes"] == 0 and not s.gets()
        for data in (b"", b"mine", content(SMALL)[:-1] + b"?"):
            with open(s.here(SMALL), "wb") as f:
                f.write(data)
            result = s.here.run("get", s.url, "--member", SMALL)
            assert result.returncode == 1 and "--force" in result.stderr, result
            with open(s.here(SMALL), "rb") as f:
                assert f.read() == data
        assert s.here.run("get", s.url, "--member", SMALL, "--force").returncode == 0
        assert sha256_file(s.here(SMALL)) == sha256_file(source(SMALL))


@test
def a_damaged_member_never_gets_its_name():
    made = Made.get()
    with Served() as s:
        body = bytearray(s.objects[made.key].body)
        for offset in (100, len(body) // 2):
            body[offset] ^= 1
        s.put(made.key, bytes(body))
        result = s.here.run("get", s.url, "--member", escaped(BIG))
        assert (result.returncode == 1 and "neuron-collect verify" in result.stderr
                and s.here.names() == []), (result, s.here.names())
        result = s.here.run("get", s.url, "--member", escaped(BIG), "-o", "-", text=False)
        assert (result.returncode == 1
                and b"do not use what was written" in result.stderr), result.stderr
        # another member of the same bundle is as good as ever
        assert s.here.run("get", s.url, "--member", SPARSE).returncode == 0
        assert sha256_file(s.here(SPARSE)) == sha256_file(source(SPARSE))


@test
def a_manifest_that_reports_another_digest_is_not_believed():
    made = Made.get()
    with Served() as s:
        m = made.manifest
        for e in m["members"]:
            if e.get("sha256"):
                e["sha256"] = "00" * 32
        s.put(made.key.removesuffix(".tar.zst") + ".manifest.json", json.dumps(m).encode())
        result = s.here.run("get", s.url, "--member", SMALL)
        assert result.returncode == 1 and s.here.names() == [], (result, s.here.names())
        result = s.here.run("get", s.url, "--member", SMALL, "-o", "-")
        assert result.returncode == 1 and result.stdout.encode() == content(
            SMALL) and "do not use" in result.stderr, result.stderr


@test
def a_member_that_does_not_exist_is_reported_with_near_ones():
    made = Made.get()
    text = ""
    with Here() as here:
        for path in ("log.text", "Log.TXT", "deep/log.txt", "sparse", escaped(BASE),
                     "nothing like it at all", "node"):
            result = here.run("get", made.big, "--member", path)
            assert result.returncode == 1 and here.names() == [], result
            text += session(["get", "BUNDLE", "--member", path], result, [(made.big, "BUNDLE")])
    check_golden("get-no-member", text)


def clean(failed=False):
    cleanup(failed)


if __name__ == "__main__":
    CODE = main(clean)
    Made.forget()
    sys.exit(CODE)
