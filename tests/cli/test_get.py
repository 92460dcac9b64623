#!/usr/bin/env python3
"""neuron-collect get: a whole bundle from a directory and from s3://, verified, gone on with, and
never over something else."""
import fcntl
import json
import os
import shutil
import signal
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
# pylint: disable=wrong-import-position
from cli_test import CLI, check_golden, main, run, run_in_terminal, session, test

from agent import cleanup, need_root, run as run_program, sha256_file, wait_for
from reading import MIB, Here, Made, Served, assert_no_secret, assert_complete, wait_end

KEEP = 11 * MIB + 12345   # more than one part and more than one range


def part_ends():
    ends, at = [], 0
    for part in Made.get().manifest["bundle"]["parts"]:
        at += part["bytes"]
        ends.append(at)
    return ends


def not_first(request):
    """Ranges are asked for several at once: whatever is not at the beginning."""
    return not request.headers["range"].startswith("bytes=0-")


def name():
    return os.path.basename(Made.get().big)


def head_of_big(n):
    with open(Made.get().big, "rb") as f:
        return f.read(n)


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def patch(path, offset):
    with open(path, "r+b") as f:
        f.seek(offset)
        byte = f.read(1)[0]
        f.seek(offset)
        f.write(bytes([byte ^ 0x10]))


@test
def a_bundle_is_fetched_by_any_of_its_three_names_from_both_places():
    made = Made.get()
    with Served() as s:
        for base in (made.big.removesuffix(".tar.zst"), s.url.removesuffix(".tar.zst")):
            for suffix in (".tar.zst", ".manifest.json", ""):
                with Here(s.here.environment) as here:
                    result = here.run("get", base + suffix)
                    assert result.returncode == 0 and not result.stderr, result
                    assert here.names() == sorted(
                        [name(), os.path.basename(made.manifest_path)]), here.names()
                    assert_complete(here(name()))
                    assert run(CLI, "verify", here(name())).returncode == 0
                    assert_no_secret(s, result)
        assert len(s.gets()) == 3 * 3, "8 MiB a range"
        assert len(s.gets(".manifest.json")) == 3 and not s.seen("HeadObject"), s.counts()


@test
def it_goes_to_a_file_a_directory_or_stdout():
    made = Made.get()
    with Served() as s:
        for url in (made.big, s.url):
            with Here(s.here.environment) as here:
                os.mkdir(here("dir"))
                for out, wanted in (("dir", f"dir/{name()}"), ("dir/", f"dir/{name()}"),
                                    ("x.tar.zst", "x.tar.zst"), (here("y.tar.zst"), "y.tar.zst")):
                    assert here.run("get", url, "-o", out).returncode == 0
                    assert_complete(here(wanted))
                assert here.run("get", url, "--output=odd").returncode == 0
                assert sorted(n for n in here.names()
                              if n.startswith("odd")) == ["odd", "odd.manifest.json"], here.names()
                before = here.names()
                result = here.run("get", url, "-o", "-", text=False)
                assert (result.returncode == 0 and not result.stderr
                        and result.stdout == head_of_big(1 << 30)), len(result.stdout)
                assert here.names() == before


@test
def what_is_reported_and_what_json_has():
    made = Made.get()
    replace = [(os.path.dirname(made.big), "DIR"), (name().removesuffix(".tar.zst"), "BUNDLE")]
    with Here() as here:
        text = session(["get", "DIR/BUNDLE"], here.run("get", made.big), replace)
        text += session(["get", "DIR/BUNDLE"], here.run("get", made.big), replace)
        os.rename(here(name()), here(name() + ".partial"))
        os.truncate(here(name() + ".partial"), KEEP)
        text += session(["get", "DIR/BUNDLE"], here.run("get", made.big), replace)
        text += session(["get", "DIR/BUNDLE", "-o", "-"],
                        here.run("get", made.big, "-o", "/dev/null"), replace)
        check_golden("get", text)
        answer = here.fetched(made.big, "-o", "again.tar.zst")
        assert answer == {"object": made.big, "file": "again.tar.zst",
                          "manifest": "again.manifest.json", "bytes": os.path.getsize(made.big),
                          "loaded_bytes": os.path.getsize(made.big)}, answer
        assert here.run("--json", "get", made.big, "-o", "-").returncode == 2


@test
def what_is_here_already_is_verified_and_not_loaded_again():
    with Served() as s:
        s.here.fetched(s.url)
        s.log.clear()
        answer = s.here.fetched(s.url)
        assert answer["loaded_bytes"] == 0 and not s.gets(), s.story()
        os.unlink(s.here(name().removesuffix(".tar.zst") + ".manifest.json"))
        s.here.fetched(s.url)
        assert_complete(s.here(name()))


@test
def another_file_is_never_replaced_unless_forced():
    made = Made.get()
    with Here() as here:
        for content in (b"mine", b"", head_of_big(os.path.getsize(made.big) - 1) + b"?"):
            write(here(name()), content)
            result = here.run("get", made.big)
            assert (result.returncode == 1 and "--force" in result.stderr
                    and not result.stdout), result
            assert open(here(name()),
                        "rb").read() == content and here.names() == [name()], here.names()
        assert here.run("get", made.big, "--force").returncode == 0
        assert_complete(here(name()))
        manifest = name().removesuffix(".tar.zst") + ".manifest.json"
        write(here(manifest), b"{}")
        result = here.run("get", made.big)
        assert result.returncode == 1 and "another bundle's manifest" in result.stderr and open(
            here(manifest), "rb").read() == b"{}", result
        assert here.run("get", made.big, "--force").returncode == 0
        assert_complete(here(name()))
        os.mkdir(here("d.tar.zst"))
        os.mkdir(here("d.tar.zst", name()))
        result = here.run("get", made.big, "-o", "d.tar.zst", "--force")
        assert result.returncode == 1 and "cannot be written" in result.stderr, result


@test
def what_an_earlier_run_has_left_is_kept():
    made = Made.get()
    total = os.path.getsize(made.big)
    with Served() as s:
        for kept in (1, 4096, part_ends()[0], KEEP, total - 1, total):
            s.log.clear()
            write(s.here(name() + ".partial"), head_of_big(kept))
            answer = s.here.fetched(s.url, "--force")
            assert answer["loaded_bytes"] == total - kept and s.loaded() == total - kept, (
                kept, answer, s.loaded())
            assert_complete(s.here(name()))
            os.unlink(s.here(name()))
        with Here() as here:
            write(here(name() + ".partial"), head_of_big(KEEP))
            assert here.fetched(made.big)["loaded_bytes"] == total - KEEP
            assert_complete(here(name()))


@test
def what_is_wrong_in_it_is_loaded_again_and_no_more():
    total, ends = os.path.getsize(Made.get().big), part_ends()
    assert ends[0] < KEEP < ends[1], ends
    with Served() as s:
        partial = s.here(name() + ".partial")
        # in a part that is whole: from its beginning
        write(partial, head_of_big(KEEP))
        patch(partial, 100)
        assert s.here.fetched(s.url)["loaded_bytes"] == total
        assert_complete(s.here(name()))
        os.unlink(s.here(name()))
        # in the part that was cut: found at its end, and from its beginning again
        write(partial, head_of_big(KEEP))
        patch(partial, KEEP - 1)
        answer = s.here.fetched(s.url)
        assert answer["loaded_bytes"] <= (ends[1] - KEEP + MIB) + (total - ends[0]), answer
        assert_complete(s.here(name()))
        os.unlink(s.here(name()))
        # more than there can be
        write(partial, head_of_big(total) + b"more")
        assert s.here.fetched(s.url)["loaded_bytes"] == 0
        assert_complete(s.here(name()))
        os.unlink(s.here(name()))
        write(partial, os.urandom(total))
        assert s.here.fetched(s.url)["loaded_bytes"] == total
        assert_complete(s.here(name()))


@test
def a_partial_file_that_is_not_ours_or_in_use_is_refused():
    made = Made.get()
    with Here() as here:
        write(here("precious"), b"precious")
        os.symlink("precious", here(name() + ".partial"))
        result = here.run("get", made.big)
        assert result.returncode == 1 and "not a file of yours" in result.stderr and open(
            here("precious"), "rb").read() == b"precious", result
        os.unlink(here(name() + ".partial"))
        os.link(here("precious"), here(name() + ".partial"))
        assert (here.run("get", made.big).returncode == 1
                and open(here("precious"), "rb").read() == b"precious")
        os.unlink(here(name() + ".partial"))
        os.mkfifo(here(name() + ".partial"))
        assert here.run("get", made.big).returncode == 1
        os.unlink(here(name() + ".partial"))
        with open(here(name() + ".partial"), "wb") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            result = here.run("get", made.big)
            assert result.returncode == 1 and "another neuron-collect" in result.stderr, result
        assert here.run("get", made.big).returncode == 0
        assert_complete(here(name()))


@test
def a_damaged_object_is_reported_with_the_place_and_what_was_good_stays():
    ends = part_ends()
    with Served() as s:
        body = bytearray(s.objects[Made.get().key].body)
        body[ends[0] + 5] ^= 1
        s.put(Made.get().key, bytes(body))
        for _ in range(2):
            result = s.here.run("get", s.url)
            assert (result.returncode == 1 and f"bytes {ends[0]} to {ends[1] - 1} do not match "
                    "the manifest" in result.stderr), result
            assert s.here.names() == [name() + ".partial"] and os.path.getsize(
                s.here(name() + ".partial")) == ends[0]
        result = s.here.run("get", s.url, "-o", "-", text=False)
        assert result.returncode == 1 and b"do not use what was written" in result.stderr and len(
            result.stdout) < ends[1], result.stderr
        s.put(Made.get().key, Made.get().files()[Made.get().key])
        assert s.here.run("get", s.url).returncode == 0
        assert_complete(s.here(name()))


@test
def an_object_that_is_too_short_or_gone_is_reported():
    made = Made.get()
    total = os.path.getsize(made.big)
    with Served() as s:
        s.put(made.key, head_of_big(total - 1))
        result = s.here.run("get", s.url)
        assert (result.returncode == 1 and f"has {total - 1} bytes, its manifest "
                f"has {total}" in result.stderr and s.here.names() == []), result
        del s.objects[made.key]
        result = s.here.run("get", s.url)
        assert (result.returncode == 1 and "NoSuchKey" in result.stderr
                and s.here.names() == []), result
    copy = made.copy()
    os.truncate(copy, total - 1)
    with Here() as here:
        result = here.run("get", copy)
        assert (result.returncode == 1 and f"has {total - 1} bytes, its manifest "
                f"has {total}" in result.stderr and here.names() == []), result


@test
def a_bundle_that_is_not_there_is_reported_from_one_that_was_not_delivered():
    made = Made.get()
    copy = made.copy()
    text = ""
    with Here() as here, Served() as s:
        text += session(["get", "DIR/typo"], here.run("get",
                                                      copy.replace("directory-", "direktory-")),
                        [(os.path.dirname(copy), "DIR"), (name()[9:-8], "-ID"),
                         ("direktory-ID.tar.zst", "typo")])
        os.unlink(copy.removesuffix(".tar.zst") + ".manifest.json")
        text += session(["get", "DIR/BUNDLE"], here.run("get", copy),
                        [(os.path.dirname(copy), "DIR"), (name(), "BUNDLE")])
        text += session(["get", "/nowhere/x"], here.run("get", "/nowhere/x"))
        text += session(["get", "DIR"], here.run("get", os.path.dirname(copy)),
                        [(os.path.dirname(copy), "DIR")])
        for url in ("s3://bucket", "s3://bucket/neuron/", "s3://bucket/neuron/x"):
            result = s.here.run("get", url)
            text += session(["get", url], result, [(f"127.0.0.1:{s.port}", "SERVER")])
        result = s.here.run("get", s.url.replace("directory-", "directoy-"))
        assert result.returncode == 1 and "`neuron-collect ls`" in result.stderr, result
        del s.objects[made.key.removesuffix(".tar.zst") + ".manifest.json"]
        result = s.here.run("get", s.url)
        assert result.returncode == 1 and "has no manifest" in result.stderr, result
        assert here.names() == s.here.names() == []
    check_golden("get-cannot", text)


@test
def a_full_disk_ends_it_and_it_goes_on_when_there_is_room():
    need_root()
    made = Made.get()
    with Here() as here:
        os.mkdir(here("mnt"))
        script = ('mount -t tmpfs -o size=%s tmpfs mnt && "$1" get "$2" -o mnt/; echo "exit $?"; '
                  'ls mnt; if [ -n "$3" ]; then %s; fi')
        result = run_program("unshare", "-m", "sh", "-c", script % ("8m", ":"), "sh", CLI,
                             made.big, cwd=here.path)
        if result.returncode != 0 and "unshare" in result.stderr:
            from cli_test import Skip  # pylint: disable=import-outside-toplevel
            raise Skip(result.stderr.strip())
        assert ("exit 1" in result.stdout and "only 8.0 MiB are free" in result.stderr
                and ".partial" not in result.stdout), result
        # a member's room is not known before: its holes take none
        script = ('mount -t tmpfs -o size=8m tmpfs mnt && "$1" get "$2" --member "$3" -o mnt/big; '
                  'echo "exit $?"; ls mnt; mount -o remount,size=64m mnt && "$1" --json '
                  'get "$2" --member "$3" -o mnt/big; echo "exit $?"; sha256sum < mnt/big')
        big = next(m for m in made.manifest["members"] if m["bytes"] == 20 * MIB)
        result = run_program("unshare", "-m", "sh", "-c", script, "sh", CLI, made.big, big["path"],
                             cwd=here.path)
        assert ("exit 1\nbig.partial\n" in result.stdout and "No space left" in result.stderr
                and "resumes after" in result.stderr), result
        assert "exit 0\n" + big["sha256"] in result.stdout, result
        answer = json.loads(result.stdout[result.stdout.index("{"):result.stdout.index("}") + 1])
        assert answer["loaded_bytes"] < 15 * MIB, answer


@test
def an_interruption_leaves_what_was_loaded_and_reports_how_to_go_on():
    with Served() as s:
        partial = s.here(name() + ".partial")
        for number in (signal.SIGINT, signal.SIGTERM):
            s.clear_faults()
            s.fault("GetObject", key=Made.get().key, when=not_first, times=None, stall="answer")
            s.log.clear()
            process = s.here.spawn("get", s.url)
            s.wait_for("ranges are asked for", lambda: any(not_first(r) for r in s.gets()))
            wait_for("the first range is written", lambda: os.path.getsize(partial) >= 8 * MIB)
            process.send_signal(number)
            code, err = wait_end(process)
            assert code == -number, (code, err)
            assert "interrupted; 8.0 MiB are in" in err and "the same command resumes" in err, err
            assert s.here.names() == [name() + ".partial"]
        s.clear_faults()
        s.release()
        assert s.here.fetched(s.url)["loaded_bytes"] == os.path.getsize(Made.get().big) - 8 * MIB
        assert_complete(s.here(name()))


@test
def a_lost_server_leaves_what_was_loaded_too():
    with Served() as s:
        s.fault("GetObject", key=Made.get().key, when=not_first, times=None, status=403,
                code="AccessDenied")
        result = s.here.run("get", s.url)
        assert (result.returncode == 1 and "AccessDenied" in result.stderr
                and "8.0 MiB are in" in result.stderr), result
        s.clear_faults()
        assert s.here.fetched(s.url)["loaded_bytes"] == os.path.getsize(Made.get().big) - 8 * MIB
        assert_complete(s.here(name()))


@test
def nobody_reading_stdout_ends_it_with_a_word():
    with Served() as s:
        for url in (Made.get().big, s.url):
            process = s.here.spawn("get", url, "-o", "-")
            assert len(process.stdout.read(1000)) == 1000
            process.stdout.close()
            code = process.wait(30)
            err = process.stderr.read().decode()
            process.stderr.close()
            assert code == 1 and "stdout was closed" in err, (code, err)


@test
def a_terminal_gets_progress_but_no_content():
    made = Made.get()
    with Here() as here:
        code, out = run_in_terminal("get", made.big, "-o", "-")
        assert code == 2 and b"stdout is a terminal" in out and len(out) < 500, out[:500]
        with Served() as s:
            environment = {**s.here.environment, "NO_COLOR": "1"}
            code, out = run_in_terminal("get", s.url, "-o", here("x.tar.zst"),
                                        environment=environment)
        lines = out.split(b"\r\x1b[K")
        assert code == 0 and any(b" % of 20." in line and b"/s" in line for line in lines), out
        assert lines[-1].endswith(b"\r\n") and b"verified in 3 parts" in lines[-1], out
        shutil.copy(here("x.tar.zst"), here("y.tar.zst"))
        assert_complete(here("x.tar.zst"))


@test
def a_mistyped_url_is_reported_how_to_write_it():
    text = ""
    for url in ("s3:/bucket/key", "s3:bucket/key", "S3://bucket/key", "s3//bucket/key", "s3://",
                "s3:///key", "https://bucket.s3.amazonaws.com/key",
                "arn:aws:s3:::bucket/key", "file:///fsx/x", "gs://bucket/key"):
        for command in ("ls", "get", "verify"):
            result = run(CLI, command, url)
            assert result.returncode == 2 and not result.stdout and len(result.stderr.splitlines(
                )) == 1, (url, result)
        text += session(["get", url], run(CLI, "get", url))
    for arguments in ([], ["a", "b"], [""], ["a", "--member"], ["a", "--member", ""],
                      ["a", "-o", ""], ["a", "--froce"], ["s3://b/k", "--no-sign-request"]):
        result = run(CLI, "get", *arguments)
        assert result.returncode == 2, (arguments, result)
        text += session(["get", *arguments], result)
    check_golden("get-usage", text)


@test
def partial_and_final_names_never_exist_both_wrong():
    """kill -9 at any moment: what has the final name is right."""
    with Served() as s:
        s.fault("GetObject", key=Made.get().key, when=not_first, times=None, stall="answer")
        process = s.here.spawn("get", s.url)
        partial = s.here(name() + ".partial")
        wait_for("something is written", lambda: os.path.exists(partial)
                 and os.path.getsize(partial) >= MIB)
        process.kill()
        wait_end(process)
        assert s.here.names() == [name() + ".partial"], s.here.names()
        s.clear_faults()
        s.release()
        s.here.fetched(s.url)
        assert_complete(s.here(name()))
        assert sha256_file(s.here(name())) == sha256_file(Made.get().big)


def clean(failed=False):
    cleanup(failed)


@test
def a_bundle_that_another_user_may_have_made_is_called_so():
    need_root()
    made = Made.get()
    big = made.copy()
    with Here() as here:
        before = here.run("verify", big)
        assert before.returncode == 0 and not before.stderr, before
        for name in os.listdir(os.path.dirname(big)):
            os.chown(os.path.join(os.path.dirname(big), name), 20005, 20005)
        for command in (("verify", big), ("get", big, "-o", "out")):
            result = here.run(*command)
            assert result.returncode == 0 and "uid 20005" in result.stderr, result


@test
def a_bundle_that_is_a_symlink_is_not_followed():
    made = Made.get()
    with Here() as here:
        os.mkdir(here("there"))
        for path in (made.big, made.manifest_path):
            os.symlink(path, here("there", os.path.basename(path)))
        for command in (("get", os.path.join("there", os.path.basename(made.big)), "-o", "out"),
                        ("verify", os.path.join("there", os.path.basename(made.big)))):
            result = here.run(*command)
            assert result.returncode != 0 and "symlink" in result.stderr, result
        os.symlink(os.path.dirname(made.big), here("directory"))  # what the operator names is
        assert here.run("verify", os.path.join("directory", os.path.basename(
            made.big))).returncode == 0


if __name__ == "__main__":
    CODE = main(clean)
    Made.forget()
    sys.exit(CODE)
