#!/usr/bin/env python3
"""The packages as dpkg, lintian and blhc see them."""
import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../harness"))
from packages import (VENDOR_HOOK, assert_contents_listed, assert_hardened,  # noqa: E402
                      dependencies, directory, package, run)
from tap import main, test  # noqa: E402

NAMES = ("neuron-collectd", "neuron-collectd-hook")


def contents(name):
    return [line.split()[-1].removeprefix(".") for line in
            run("dpkg-deb", "-c", package(name)).splitlines()]


@test
def lintian_finds_no_error():
    changes = [f for f in os.listdir(directory()) if f.endswith(".changes")]
    found = run("lintian", "--allow-root", "--fail-on", "error",
                os.path.join(directory(), changes[0]))
    assert not re.search(r"^E:", found, re.M), found


@test
def every_compiler_command_has_all_hardening_flags():
    # Debian's gcc makes position independent code by default; whether it did is read below.
    run("blhc", "--bindnow", "--arch", run("dpkg", "--print-architecture").strip(),
        os.path.join(directory(), "build.log"))


@test
def every_program_is_position_independent_and_bound_at_its_start():
    with tempfile.TemporaryDirectory() as root:
        for name in NAMES:
            run("dpkg-deb", "-x", package(name), root)
        for program in ("usr/sbin/neuron-collectd", "usr/bin/neuron-collect", VENDOR_HOOK[1:],
                        "usr/libexec/neuron-collectd/neuron-dump"):
            assert_hardened(run("readelf", "-hldW", os.path.join(root, program)), program)


@test
def debug_symbols_are_apart():
    for name in NAMES:
        assert any(f.endswith(".debug") for f in contents(name + "-dbgsym"))
        assert not any(f.endswith(".debug") for f in contents(name))


@test
def nothing_is_in_etc_and_nothing_is_a_conffile():
    for name in NAMES:
        assert not [f for f in contents(name) if f.startswith("/etc")]
        assert "conffiles" not in run("dpkg-deb", "-I", package(name))


@test
def the_list_of_contents_names_every_file_and_what_is_linked_in():
    with tempfile.TemporaryDirectory() as root:
        for name in NAMES:
            run("dpkg-deb", "-x", package(name), f"{root}/{name}")
            assert_contents_listed(
                f"{root}/{name}", name, {f for f in contents(name) if not f.endswith("/")})


@test
def the_hook_is_the_same_in_both_packages():
    """Or `doctor` takes one of them for another version's."""
    with tempfile.TemporaryDirectory() as root:
        for name in NAMES:
            run("dpkg-deb", "-x", package(name), root)
        run("cmp", root + VENDOR_HOOK, root + "/usr/libexec/neuron-collectd/neuron-dump")


@test
def the_hook_has_no_dependencies():
    assert not dependencies(package("neuron-collectd-hook"))
    assert VENDOR_HOOK in contents("neuron-collectd-hook")


if __name__ == "__main__":
    sys.exit(main())
