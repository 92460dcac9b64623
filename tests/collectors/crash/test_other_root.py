#!/usr/bin/env python3
"""The core of a process of another root: Debian 13 with Python 3.13. NC_OTHER_ROOT is such a
directory (mmdebstrap --variant=minbase --include=python3 trixie DIR); without it nothing is run."""
import os
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from cores import (CLI, chains, core_of, dpkg_version, gdb_chains, kernel_writes_cores, report,
                   run)
from tap import Skip, main, test

SCRIPT = """
import ctypes, faulthandler, threading, time
faulthandler.enable()
for i in range(5):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
time.sleep(0.3)
sorted([1], key=lambda v: ctypes.string_at(0))
"""


def other_core():
    root = os.environ.get("NC_OTHER_ROOT")
    if not root or os.geteuid() != 0 or not kernel_writes_cores():
        raise Skip("needs NC_OTHER_ROOT, root, and a kernel.core_pattern that is a plain file name")
    place = tempfile.mkdtemp(dir=os.path.join(root, "tmp"))
    script = os.path.join(place, "script.py")
    with open(script, "w", encoding="ascii") as f:
        f.write(SCRIPT)
    inside = "/" + os.path.relpath(place, root)
    return root, place, core_of("chroot", root, "sh", "-c", f"cd {inside}; exec python3 script.py",
                                directory=place)


@test
def with_its_root_all_chains_are_complete_and_those_of_gdb():
    root, place, core = other_core()
    try:
        with core as path:
            document = report(path, "--root", root)
            ours = {tid: [pc for pc, _ in c] for tid, c in chains(document).items()}
            theirs = {tid: [pc for pc, _ in c] for tid, c in
                      gdb_chains(f"{root}/usr/bin/python3", path, sysroot=root).items()}
            assert ours == theirs, (ours, theirs)
            assert document["threads"]["chains_by_end"] == {"complete": 6}
            assert {m["found_in"] for m in document["modules"]} == {"--root", "core"}
            assert len(document["python"]["threads"]) == 6, document["python"]
            check_versions(document, root)
            whole = chains(document)
            check_without(path, whole)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def check_versions(document, root):
    """Those of its dpkg, of which there is more than libc."""
    ours = {m["path"]: (m["package"], m["version"]) for m in document["modules"]
            if m["path"] != "[vdso]"}
    assert ours == {path: dpkg_version(path, root) for path in ours}, ours
    assert len({package for package, _ in ours.values()}) > 2, ours


def check_without(core, whole):
    """Nothing is invented, and what is missing is named."""
    document = report(core)
    for tid, chain in chains(document).items():
        assert [pc for pc, _ in chain] == [pc for pc, _ in whole[tid]][:len(chain)], (tid, chain)
    assert not [m for m in document["modules"] if m["found_in"] == "host"], document["modules"]
    missing = [m for m in document["modules"] if m["file"] in ("missing", "mismatch")]
    text = run(CLI, "crash", core).stdout
    assert missing and all(m["build_id"] in text for m in missing), (missing, text)


if __name__ == "__main__":
    sys.exit(main())
