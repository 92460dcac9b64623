#!/usr/bin/env python3
"""Cores that can be read only once: compressed as systemd-coredump does it, from a pipe, or from a
bucket. Their reports are those of the plain core, but for what is marked as left out."""
import json
import os
import subprocess
import sys

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from cores import CLI, CRASHER, PATIENCE, chains, core_of, need, report, run
from s3_server import S3Server
from tap import figures, main, test

LEFT_OUT = "it was read once, from its beginning: Python's stacks and the deep parts of others " \
           "are left out"
BLOCK_BYTES = 128 << 10  # of zstd, decompressed
CRASHES = [["null", "200"], ["use-after-free", "3"], ["recursion", "3"], ["stack", "3"],
           ["handler", "3"], ["double-free", "3"], ["assertion", "3"], ["call-null", "3"],
           ["own-lock", "40"]]


def compress(core, *options):
    need("zstd")
    path = core + ".zst"
    # as a pipe: one frame without its content's size
    with open(core, "rb") as f:
        subprocess.run(["zstd", "-q", "-f", *options, "-o", path], stdin=f, check=True)
    return path


def of_text(result):
    assert result.returncode == 0, result
    return json.loads(result.stdout)


def without(value, keys):
    if isinstance(value, dict):
        return {k: without(v, keys) for k, v in value.items() if k not in keys}
    return [without(v, keys) for v in value] if isinstance(value, list) else value


def comparable(document):
    """What depends neither on how the core was read nor on how long that took: source lines and
    versions are looked for in the time that is left."""
    core = {k: v for k, v in document["core"].items()
            if k not in ("name", "left_out", "bytes_read")}
    rest = {k: v for k, v in document.items() if k not in ("core", "python")}
    return core, without(rest, ("lines", "package", "version", "git", "has_all_versions"))


@test
def a_compressed_core_has_the_report_of_the_plain_one():
    for how in CRASHES:
        with core_of(CRASHER, *how) as core:
            plain, packed = report(core), report(compress(core))
            assert comparable(packed) == comparable(plain), how
            assert plain["core"]["left_out"] is None
            assert packed["core"]["left_out"] == LEFT_OUT, packed["core"]
            if how[0] in ("double-free", "assertion"):
                assert packed["fault"]["abort_message"], how
            text = run(CLI, "crash", core + ".zst").stdout
            assert LEFT_OUT in text, text


@test
def a_core_from_a_pipe_has_the_report_of_the_plain_one():
    with core_of(CRASHER, "null", "60") as core:
        plain = report(core)
        for command in (f"cat {core}", f"cat {compress(core)}"):
            result = subprocess.run(f"{command} | (sleep 0.1; {CLI} --json crash -)", shell=True,
                                    check=False, capture_output=True, text=True,
                                    timeout=60 * PATIENCE)
            assert comparable(of_text(result)) == comparable(plain), command


@test
def a_core_in_a_bucket_has_the_report_of_the_plain_one():
    with core_of(CRASHER, "null", "60") as core, S3Server() as server:
        plain = report(core)
        for path in (core, compress(core)):
            with open(path, "rb") as f:
                server.put("cores/" + os.path.basename(path), f.read())

        def crash(key):
            return run(CLI, "--json", "crash", f"s3://{server.bucket}/{key}", "--endpoint-url",
                       server.endpoint, env={**os.environ, **server.environment()})
        for name in ("core", "core.zst"):
            name = os.path.basename(core) + name.removeprefix("core")
            assert comparable(of_text(crash("cores/" + name))) == comparable(plain)
        server.put("text", b"no core\n" * 100000)
        for key, words in (("none", "none"), ("text", "it is not an ELF core")):
            result = crash(key)
            assert result.returncode == 1 and words in result.stderr, result


def check_end(path, n_read):
    """All blocks that are there. zstd drops the last one where the cut is in the three bytes of the
    next one's header, for which it waits."""
    packed = subprocess.run(["zstd", "-dcq", path], stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, check=False).stdout
    assert n_read in (len(packed), len(packed) + BLOCK_BYTES), (n_read, len(packed))


@test
def a_cut_compressed_core_gives_what_it_has():
    with core_of(CRASHER, "null", "200") as core:
        whole = chains(report(core))
        path = compress(core)
        n_bytes = os.stat(path).st_size
        for percent in (90, 50, 20):
            os.truncate(path, n_bytes * percent // 100)
            document = report(path)
            part = chains(document)
            assert "; it ends early: the compressed file is cut" in document["core"]["left_out"]
            assert document["core"]["bytes_missing"] > 0, document["core"]
            # as much as a file has that ends there
            n_read = document["core"]["bytes"]
            check_end(path, n_read)
            plain = core + ".part"
            with open(core, "rb") as f, open(plain, "wb") as to:
                to.write(f.read(n_read))
            assert part == chains(report(plain))
            assert part.keys() <= whole.keys() and len(part) > 1
            n, n_whole = (sum(map(len, c.values())) for c in (part, whole))
            figures.append(f"{percent} % of a compressed core: {n} frames of {n_whole}")


@test
def python_stacks_are_left_out_and_marked():
    with core_of("/usr/bin/python3", "-c", "import os; os.abort()") as core:
        plain, packed = report(core), report(compress(core))
    assert plain["python"]["threads"] and not plain["python"]["fault"], plain["python"]
    assert packed["python"]["fault"] and packed["core"]["left_out"] == LEFT_OUT, packed["python"]
    assert chains(packed) == chains(plain)


@test
def what_is_no_compressed_core_is_refused_with_a_sentence():
    with core_of(CRASHER, "null", "3") as core:
        with open(core, "rb") as f:
            content = f.read()
        for data, words in ((b"\x28\xb5\x2f\xfd" + bytes(100), "it cannot be decompressed: "),
                            (b"\x28\xb5\x2f\xfd", "it cannot be decompressed: "),
                            (b"\x28\xb5", "it is not an ELF core")):
            with open(core, "wb") as f:
                f.write(data)
            result = run(CLI, "crash", core)
            assert result.returncode == 1 and words in result.stderr, result
        with open(core, "wb") as f:  # larger than its window
            f.write(content + bytes(64 << 20))
        result = run(CLI, "crash", compress(core, "--ultra", "-22", "--long=26"))
        assert result.returncode == 1 and "too much memory" in result.stderr, result
        with open(core, "wb") as f:
            f.write(b"no core\n" * 1000)
        result = run(CLI, "crash", compress(core))
        assert result.returncode == 1 and "it is not an ELF core" in result.stderr, result


if __name__ == "__main__":
    sys.exit(main())
