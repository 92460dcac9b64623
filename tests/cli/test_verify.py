#!/usr/bin/env python3
"""neuron-collect verify: yes to what was delivered, no to what is damaged, whatever way. The
bundles are made by the daemon's --once."""
import json
import os
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
# pylint: disable=wrong-import-position
from cli_test import CLI, assert_harmless, check_golden, main, run, run_in_terminal, session, test

from agent import Agent, cleanup


class Delivered:
    """A delivered bundle in a directory of its own, to be damaged at will."""

    _made = None  # one delivery serves all tests of a run

    def __init__(self, name="bundle"):
        if Delivered._made is None:
            a = Agent()
            a.dump(size=3 << 20)
            result = a.once()
            assert result.returncode == 0, result.stdout + result.stderr
            directory = tempfile.mkdtemp(prefix="neuron-verify.")
            path, _ = a.only_manifest()
            shutil.copy(path, os.path.join(directory, "m"))
            shutil.copy(path.removesuffix(".manifest.json") + ".tar.zst",
                        os.path.join(directory, "o"))
            Delivered._made = directory
        self.directory = tempfile.mkdtemp(dir=Delivered._made)
        stem = os.path.join(os.fsencode(self.directory), os.fsencode(name))
        self.object, self.manifest = stem + b".tar.zst", stem + b".manifest.json"
        shutil.copy(os.path.join(Delivered._made, "o"), self.object)
        shutil.copy(os.path.join(Delivered._made, "m"), self.manifest)

    def edit(self, change):
        """@param change  gets the manifest, changes it or returns another one"""
        with open(self.manifest, encoding="utf-8") as f:
            m = json.load(f)
        m = change(m) or m
        with open(self.manifest, "w", encoding="utf-8") as f:
            json.dump(m, f)

    def patch(self, offset, data):
        with open(self.object, "r+b") as f:
            f.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
            f.write(data)

    def verify(self, *options):
        return run(CLI, "verify", self.object, *options)


def forget():
    if Delivered._made:
        shutil.rmtree(Delivered._made)


def reports_no(d, *said):
    result = d.verify()
    assert result.returncode == 1, result
    last = result.stdout.splitlines()[-1]
    assert ": FAILED: " in result.stdout and not result.stderr, result
    for text in said:
        assert text in result.stdout, (text, result.stdout)
    answer = json.loads(d.verify("--json").stdout)
    assert answer["ok"] is False and answer["faults"], answer
    assert len([line for line in result.stdout.splitlines()
                if line.startswith("  ")]) == len(answer["faults"]), (last, answer)


@test
def a_delivered_bundle_is_verified_by_either_of_its_names_or_what_they_have_in_common():
    d = Delivered()
    with open(d.manifest, encoding="utf-8") as f:
        m = json.load(f)
    for path in (d.object, d.manifest, d.object.removesuffix(b".tar.zst")):
        result = run(CLI, "verify", path)
        assert result.returncode == 0 and not result.stderr, result
        check_golden("verify-yes", session(["verify", "BUNDLE"], result, [(d.directory, "DIR")]))
        answer = json.loads(run(CLI, "--json", "verify", path).stdout)
        assert answer == {"object": os.fsdecode(d.object), "ok": True,
                          "members": len(m["members"]), "bad": 0,
                          "bytes": sum(e["bytes"] for e in m["members"]), "faults": [],
                          "complete": True, "reasons": []}, answer


@test
def a_directory_is_no_bundle():
    d = Delivered()
    for path in (d.directory, d.directory + "/"):
        result = run(CLI, "verify", path)
        assert (result.returncode == 2 and not result.stdout
                and f"'{path}' is not a bundle" in result.stderr), result


@test
def it_asks_no_agent_and_reads_no_configuration():
    d = Delivered()
    result = run(CLI, "--socket", "/nowhere", "--config", "/nowhere", "verify", d.object)
    assert result.returncode == 0, result


@test
def a_changed_byte_anywhere_is_found():
    d = Delivered()
    size = os.path.getsize(d.object)
    for offset in (0, 100, size // 3, size // 2, size - 40, size - 1):
        d = Delivered()
        with open(d.object, "rb") as f:
            f.seek(offset)
            byte = f.read(1)
        d.patch(offset, bytes([byte[0] ^ 0x40]))
        reports_no(d)


@test
def what_is_too_short_too_long_or_empty_is_found():
    d = Delivered()
    os.truncate(d.object, os.path.getsize(d.object) - 1000)
    reports_no(d)
    d = Delivered()
    os.truncate(d.object, 0)
    reports_no(d)
    d = Delivered()
    with open(d.object, "ab") as f:
        f.write(b"more")
    reports_no(d)


@test
def a_manifest_that_reports_something_else_is_found():
    def other_digest(m):
        m["members"][1]["sha256"] = "00" * 32

    def other_size(m):
        m["members"][1]["bytes"] += 1

    def one_less(m):
        del m["members"][1]

    def other_part(m):
        m["bundle"]["parts"][0]["sha256"] = "11" * 32

    for change in (other_digest, other_size, one_less, other_part):
        d = Delivered()
        d.edit(change)
        reports_no(d)


@test
def an_incomplete_bundle_is_intact_but_reports_why_it_is_incomplete():
    def label(m):
        m["bundle"].update(complete=False, reasons=["max_wait: nc-0.bin was still being written",
                                                    "unreadable: 'x' (Permission denied)"])

    d = Delivered()
    d.edit(label)
    result = d.verify()
    assert result.returncode == 0
    check_golden("verify-incomplete", session(["verify", "BUNDLE"], result, [(d.directory, "DIR")]))


@test
def what_cannot_be_verified_is_reported_with_the_reason():
    text = ""
    d = Delivered()
    os.unlink(d.manifest)
    text += session(["verify", "without-manifest.tar.zst"], d.verify(), [(d.directory, "DIR")])
    d = Delivered()
    os.unlink(d.object)
    text += session(["verify", "without-object.manifest.json"], run(CLI, "verify", d.manifest),
                    [(d.directory, "DIR")])
    d = Delivered()
    os.unlink(d.object)
    os.mkdir(d.object)
    text += session(["verify", "directory.tar.zst"], d.verify(), [(d.directory, "DIR")])
    d = Delivered()
    os.unlink(d.object)
    os.mkfifo(d.object)
    text += session(["verify", "fifo.tar.zst"], d.verify(), [(d.directory, "DIR")])
    for content in (b"", b"no json", b"[]", b'{"schema": "neuron-collectd/manifest/2"}',
                    b"\xff\xfe" * 100):
        d = Delivered()
        with open(d.manifest, "wb") as f:
            f.write(content)
        result = d.verify()
        assert (result.returncode == 1 and not result.stdout
                and "is not a manifest: " in result.stderr), (content, result)
        assert_harmless(result.stderr, content)
    assert text.count("exit 1") == 4, text
    check_golden("verify-cannot", text)


@test
def hostile_names_and_manifests_do_not_reach_the_terminal():
    for name in (b"\x1b[31mred\n", b"\xff\xfe", "\u009b2J".encode()):
        d = Delivered(name)
        result = run(CLI, "verify", d.object, text=False)
        assert result.returncode == 0, result
        assert_harmless(result.stdout, name)
        assert len(result.stdout.splitlines()) == 1
        assert json.loads(run(CLI, "--json", "verify", d.object).stdout)["ok"] is True
        os.unlink(d.manifest)
        assert_harmless(run(CLI, "verify", d.object, text=False).stderr, name)

    def evil(m):
        m["bundle"].update(complete=False, reasons=["\x1b[2Jevil\n\u009b"])
        m["members"][0]["path"] = "\x1b[2Jevil\n"
        return m

    d = Delivered()
    d.edit(evil)
    result = run(CLI, "verify", d.object, text=False)
    assert result.returncode == 1
    assert_harmless(result.stdout, "reasons")
    assert_harmless(result.stderr, "reasons")


@test
def progress_is_reported_on_a_terminal_only():
    d = Delivered()
    code, out = run_in_terminal("verify", os.fsdecode(d.object), environment={"NO_COLOR": "1"})
    assert code == 0 and b"100 % of " in out and out.split(b"\r\x1b[K")[-1].startswith(
        d.object + b": OK: "), out
    result = d.verify()
    assert "%" not in result.stdout + result.stderr


def clean(failed=False):
    cleanup(failed)


if __name__ == "__main__":
    CODE = main(clean)
    forget()
    sys.exit(CODE)
