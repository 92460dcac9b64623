#!/usr/bin/env python3
"""The RPM packages: linted, read, built a second time, and installed, upgraded and removed by rpm
and dnf in a booted box. The box is Debian's, since no other root can be had here: what its own
package manager has installed, a dummy package says to rpm that it provides."""
import glob
import os
import pwd
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../harness"))
from packages import (BOX, SRCDIR, VENDOR_HOOK, Box, assert_contents_listed,  # noqa: E402
                      assert_hardened, dependencies, package, root_of_boxes, run,
                      this_release)
from tap import Skip, figures, main, test  # noqa: E402

NAMES = ("neuron-collectd", "neuron-collectd-hook")
SPEC = os.path.join(SRCDIR, "deploy/rpm/neuron-collectd.spec")
CONFIG = """version: 1
node: {instance_id: i-0a1b2c3d4e5f60718}
sources: [{name: dumps, kind: neuron-core-dump, path: /srv/dumps/dt-%d-cid-%c}]
destinations: [{name: archive, type: volume, path: /srv/archive/%d-%c, durable: true, min_free: 0}]
"""
_directories = []
_boxes = []


def cleanup(failed):  # pylint: disable=unused-argument
    while _boxes:
        _boxes.pop().remove()


def directory():
    place = os.environ.get("NC_RPM_DIR")
    if not place:
        raise Skip("NC_RPM_DIR is not set: make rpm")
    return os.path.realpath(place)


def rpm(name):
    """@return path of the package's file"""
    found = glob.glob(os.path.join(directory(), f"{name}-[0-9]*.rpm"))
    assert len(found) == 1, found
    return found[0]


def temporary():
    _directories.append(tempfile.TemporaryDirectory(prefix="neuron-rpm.", dir="/var/tmp"))
    return _directories[-1].name


def unpacked():
    """@return a directory with the files of both packages"""
    root = temporary()
    for name in NAMES:
        run("sh", "-euc", f"cd {root} && rpm2cpio {rpm(name)} | cpio -idmu --quiet")
    return root


def contents(name):
    return run("rpm", "-qpl", rpm(name)).split()


def requirements(name):
    return {line for line in run("rpm", "-qpR", rpm(name)).splitlines()
            if not line.startswith("rpmlib(")}


def digests(place):
    """{package: digest of its unpacked payload}"""
    found = {}
    for path in glob.glob(os.path.join(place, "*.rpm")):
        name, digest = run("rpm", "-qp", "--qf", "%{NAME} %{PAYLOADDIGESTALT}", path).split()
        found[name] = digest
    return found


def build(spec, *options):
    """rpmbuild of a spec's text. @return the packages' paths"""
    top = temporary()
    path = os.path.join(top, "package.spec")
    with open(path, "w", encoding="utf-8") as f:
        f.write(spec)
    run("rpmbuild", "-bb", "--nodeps", "--define", f"_topdir {top}", *options, path)
    return sorted(glob.glob(os.path.join(top, "RPMS/*/*.rpm")))


def vendor(version, name="aws-neuronx-tools"):
    """A package that owns the hook's place, as the vendor's does."""
    return build(f"""Name: {name}
Version: {version}
Release: 1
Summary: The vendor's
License: none
BuildArch: noarch
%description
The vendor's hook.
%install
mkdir -p %{{buildroot}}/opt/aws/neuron/bin
printf '#!/bin/sh\\n# vendor {version}\\n' >%{{buildroot}}{VENDOR_HOOK}
chmod 755 %{{buildroot}}{VENDOR_HOOK}
%files
{VENDOR_HOOK}
""")


def machine():
    """Says to rpm what dpkg has installed."""
    provides = requirements(NAMES[0]) - {"systemd >= 249"} | {"systemd = 252"}
    return build("Name: machine\nVersion: 1\nRelease: 1\nSummary: What dpkg has installed\n"
                 "License: none\nBuildArch: noarch\n"
                 + "".join(f"Provides: {p}\n" for p in sorted(provides))
                 + "%description\nLibraries, a shell and systemd.\n%files\n")


def newer():
    """The next release: the same files, with the scripts of the specification."""
    root = unpacked()
    with open(SPEC, encoding="utf-8") as f:
        text = f.read()
    text = text.replace("Release: 1", "Release: 2")
    text = text.replace("%{!?_enable_debug_packages:", "%{?none:")
    text = re.sub(r"(?ms)^%prep\n.*?^(# An installation)",
                  f"%install\ncp -a {root}/. %{{buildroot}}\n\n\\1", text)
    text = text[:text.index("\n%files\n")] + "".join(
        f"\n%files {name.removeprefix(NAMES[0] + '-') if name != NAMES[0] else ''}\n"
        + "\n".join(f for f in contents(name) if not os.path.isdir(root + f)).replace(".gz", "*")
        + "\n" for name in NAMES)
    return build(text)


def box():
    """@return one in which rpm knows the machine"""
    b = Box(root_of_boxes(this_release(), "rpm", "dnf", "createrepo-c",
                          *dependencies(package("neuron-collectd"))))
    _boxes.append(b)
    b.run("rpm", "-i", *b.copy(*machine()))
    return b


@test
def rpmlint_finds_no_error():
    found = run("rpmlint", "-c", os.path.join(SRCDIR, "deploy/rpm/rpmlint.toml"), SPEC,
                *map(rpm, NAMES))
    assert "0 errors" in found and " E: " not in found, found


@test
def nothing_is_in_etc_and_nothing_is_a_configuration_file():
    for name in NAMES:
        assert not [f for f in contents(name) if f.startswith(("/etc", "/var", "/run"))]
        assert not run("rpm", "-qp", "--configfiles", rpm(name)).strip()


@test
def debug_symbols_are_apart():
    symbols = contents("neuron-collectd-debuginfo")
    for program in ("neuron-collect-", "neuron-collectd-", "neuron-dump-"):
        assert [f for f in symbols if program in f and f.endswith(".debug")], symbols
    assert not [f for name in NAMES for f in contents(name) if f.endswith(".debug")]


@test
def the_list_of_contents_names_every_file_and_what_is_linked_in():
    for name in NAMES:
        root = temporary()
        run("sh", "-euc", f"cd {root} && rpm2cpio {rpm(name)} | cpio -idmu --quiet")
        assert_contents_listed(root, name, {
            f for f in contents(name) if not os.path.isdir(root + f)})


@test
def the_hook_has_no_dependencies_and_programs_are_hardened():
    assert not requirements("neuron-collectd-hook"), requirements("neuron-collectd-hook")
    root = unpacked()
    for program in ("usr/sbin/neuron-collectd", "usr/bin/neuron-collect",
                    "usr/libexec/neuron-collectd/neuron-dump",
                    "usr/libexec/neuron-collectd-hook/neuron-dump"):
        assert_hardened(run("readelf", "-hldW", os.path.join(root, program)), program)
        assert "no symbols" in run("nm", os.path.join(root, program), check=False), program


@test
def a_second_build_elsewhere_by_another_user_on_another_day_is_the_same():
    top = temporary()
    os.makedirs(os.path.join(top, "other/place/SOURCES"))
    run("cp", glob.glob(os.path.join(directory(), "../neuron-collectd-*.tar.xz"))[0],
        os.path.join(top, "other/place/SOURCES"))
    run("cp", SPEC, top)
    run("chown", "-R", "nobody", top)
    run("setpriv", "--reuid", str(pwd.getpwnam("nobody").pw_uid), "--regid", "65534",
        "--clear-groups", "env", f"HOME={top}", "CCACHE_DISABLE=1", "faketime", "-f", "+40d",
        "rpmbuild", "-bb", "--nodeps", "--define", f"_topdir {top}/other/place",
        os.path.join(top, "neuron-collectd.spec"))
    first, second = digests(directory()), digests(glob.glob(f"{top}/other/place/RPMS/*")[0])
    assert set(first) == set(second) and len(first) >= 3, (first, second)
    assert first == second, [name for name in first if first[name] != second[name]]


def hook(b):
    """@return whose hook is in its place, and what is aside"""
    def whose(path):
        if not os.path.exists(b.path(path)):
            return None
        with open(b.path(path), "rb") as f:
            text = f.read()
        return "ours" if b"neuron-collectd neuron-dump " in text else text.decode().split()[-1]
    return whose(VENDOR_HOOK), whose(VENDOR_HOOK + ".vendor")


@test
def rpm_keeps_our_hook_across_upgrades_and_brings_the_vendors_back():
    b = box()
    first, second = vendor(1), vendor(2)
    b.run("rpm", "-i", *b.copy(*first))
    assert hook(b) == ("1", None), hook(b)
    b.run("rpm", "-i", *b.copy(rpm("neuron-collectd-hook")))
    assert hook(b) == ("ours", "1"), hook(b)
    assert b.run("stat", "-c", "%a %U", VENDOR_HOOK).strip() == "755 root"
    b.run("rpm", "-U", *b.copy(*second))
    assert hook(b) == ("ours", "2"), hook(b)
    next_hook = [p for p in newer() if "-hook-" in p]
    b.run("rpm", "-U", *b.copy(*next_hook))
    assert hook(b) == ("ours", "2"), hook(b)
    b.run("rpm", "-U", "--oldpackage", *b.copy(*first))
    assert hook(b) == ("ours", "1"), hook(b)
    b.run("rpm", "-e", "neuron-collectd-hook")
    assert hook(b) == ("1", None), hook(b)
    b.run("rpm", "-V", "aws-neuronx-tools")


@test
def the_vendors_package_comes_later_and_goes_first():
    b = box()
    b.run("rpm", "-i", *b.copy(rpm("neuron-collectd-hook")))
    assert hook(b) == ("ours", None), hook(b)
    b.run("rpm", "-i", *b.copy(*vendor(1)))
    assert hook(b) == ("ours", "1"), hook(b)
    b.run("rpm", "-e", "aws-neuronx-tools")
    assert hook(b) == ("ours", None), hook(b)
    b.run("rpm", "-e", "neuron-collectd-hook")
    assert hook(b) == (None, None) and not os.path.exists(b.path("/opt/aws")), hook(b)


@test
def the_vendors_package_under_its_other_name_replaces_the_first():
    b = box()
    b.run("rpm", "-i", *b.copy(*vendor(1, "aws-neuron-tools")))
    b.run("rpm", "-i", *b.copy(rpm("neuron-collectd-hook")))
    b.run("rpm", "-i", "--replacefiles", *b.copy(*vendor(2)))
    assert hook(b) == ("ours", "2"), hook(b)
    b.run("rpm", "-e", "aws-neuron-tools")
    assert hook(b) == ("ours", "2"), "the other package's program is lost"
    b.run("rpm", "-e", "neuron-collectd-hook")
    assert hook(b) == ("2", None), hook(b)
    b.run("rpm", "-V", "aws-neuronx-tools")


@test
def a_full_disk_loses_no_program_of_the_vendors():
    b = box()
    place = os.path.dirname(VENDOR_HOOK)
    b.shell(f"mkdir -p {place}; mount -t tmpfs -o size=256k full {place}")
    b.run("rpm", "-i", *b.copy(*vendor(1)))
    said = b.run("rpm", "-i", *b.copy(rpm("neuron-collectd-hook")), check=False)
    assert hook(b) == ("1", None) and "No space left" in said, (hook(b), said)
    b.run("rpm", "-U", *b.copy(*vendor(2)), check=False)
    assert hook(b) == ("2", None), hook(b)
    b.run("mount", "-o", "remount,size=64m", place)
    b.run("rpm", "-U", *b.copy(*vendor(3)))
    assert hook(b) == ("ours", "3"), hook(b)
    b.run("mount", "-o", "remount,ro", place)
    b.run("rpm", "-e", "neuron-collectd-hook", check=False)
    assert hook(b) == ("ours", "3"), hook(b)
    b.run("mount", "-o", "remount,rw", place)
    b.run("rpm", "-e", "neuron-collectd-hook")
    assert hook(b) == ("3", None) and os.listdir(b.path(place)) == ["neuron-dump"], hook(b)


# strace counts each of them alone.
STEPS = ("link,linkat", "rename,renameat,renameat2", "unlink,unlinkat")


def killed_before(b, calls, n, *command):
    """rpm, before it does the n-th of such steps with a program. @return whether it came so far"""
    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}",
         "-P", VENDOR_HOOK, "-P", VENDOR_HOOK + ".new", "-P", VENDOR_HOOK + ".vendor",
         "-e", f"inject={calls}:signal=SIGKILL:when={n}", BOX, "run", b.name, *command],
        env=b.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, check=False)
    return done.returncode != 0


def check_kills(b, file, *command):
    """@return how often it was killed"""
    killed = 0
    for calls in STEPS:
        for n in range(1, 9):
            b.run("rpm", "-e", "neuron-collectd-hook", check=False)
            if command[0] == "-e":
                b.run("rpm", "-i", file)
            if not killed_before(b, calls, n, "rpm", *command):
                break
            killed += 1
            whose, where = hook(b), (command, calls, n)
            assert whose in (("1", None), ("1", "1"), ("ours", "1")), (where, whose)
            if command[0] == "-i":
                b.run("rpm", "-i", "--replacepkgs", file)
                assert hook(b) == ("ours", "1"), (where, hook(b))
            b.run("rpm", "-e", "neuron-collectd-hook")
            assert hook(b) == ("1", None), (where, hook(b))
            assert os.listdir(b.path(os.path.dirname(VENDOR_HOOK))) == ["neuron-dump"], where
    return killed


@test
def a_kill_before_each_step_is_completed_by_the_next_command():
    b = box()
    b.run("rpm", "-i", *b.copy(*vendor(1)))
    file = b.copy(rpm("neuron-collectd-hook"))[0]
    for command, n_steps in (("-i", file), 3), (("-e", "neuron-collectd-hook"), 1):
        killed = check_kills(b, file, *command)
        assert killed >= n_steps, (command, killed)
        figures.append(f"rpm {command[0]} was killed before each of {killed} steps")


@test
def an_erased_agent_takes_the_hook_of_its_command_line_with_it():
    b = box()
    b.run("rpm", "-i", *b.copy(*vendor(1), rpm("neuron-collectd")))
    b.run("neuron-collect", "hook", "install")
    os.symlink("neuron-dump.vendor", b.path(VENDOR_HOOK + ".chain"))
    assert hook(b) == ("ours", "1"), hook(b)
    b.run("rpm", "-U", *b.copy(*(p for p in newer() if "-hook-" not in p)))
    assert hook(b) == ("ours", "1"), hook(b)
    b.run("rpm", "-e", "neuron-collectd")
    assert hook(b) == ("1", None), hook(b)
    assert os.listdir(b.path(os.path.dirname(VENDOR_HOOK))) == ["neuron-dump"]
    # what the other package has placed is not the agent's to remove
    b.run("rpm", "-i", *b.copy(*map(rpm, NAMES)))
    b.run("neuron-collect", "hook", "install")
    os.symlink("neuron-dump.vendor", b.path(VENDOR_HOOK + ".chain"))
    b.run("rpm", "-e", "neuron-collectd")
    assert hook(b) == ("ours", "1"), hook(b)
    b.run("rpm", "-e", "neuron-collectd-hook")
    assert hook(b) == ("1", None), hook(b)
    assert os.listdir(b.path(os.path.dirname(VENDOR_HOOK))) == ["neuron-dump"]
    b.run("rpm", "-V", "aws-neuronx-tools")


# A job's, in the middle of the removal: systemd would start the agent again.
HOOK = ("/usr/libexec/neuron-collectd/neuron-dump --pid 1 --tid 1 --date-time 20260527-051500 "
        "--cluster-id cc --error-code 1 --error-location x --local-output-dir /srv/dumps || :\n")


@test
def the_purge_of_the_documentation_follows_no_users_link_and_stops_at_an_error():
    b = box()
    node = "i-0a1b2c3d4e5f60718"
    jobs, moved = (f"/srv/{name}/.neuron-collectd/{node}" for name in ("jobs", "moved"))
    b.run("rpm", "-i", *b.copy(rpm("neuron-collectd")))
    b.write("/etc/neuron-collectd/neuron-collectd.yaml",
            CONFIG.replace("/srv/archive/%d-%c", '"${ARCHIVE}/%d-%c"'))
    with open(os.path.join(SRCDIR, "docs/INSTALL.md"), encoding="utf-8") as f:
        commands = re.search(r"(?s)### Purge with rpm.*?```sh\n(.*?)```", f.read())[1]
    assert "ARCHIVE" in b.shell(commands, check=False)
    assert "not installed" not in b.run("rpm", "-q", "neuron-collectd")
    assert os.path.exists(b.path("/var/lib/neuron-collectd"))
    b.write("/etc/sysconfig/neuron-collectd", "ARCHIVE=/srv/archive\n")
    b.shell(f"""install -d -m 1777 /srv/dumps /srv/archive
        systemctl start neuron-collectd
        for place in {jobs} {moved} /srv/archive/{node}; do
            install -d -o neuron-collectd -m 0700 $(dirname $place) $place
            install -o neuron-collectd /dev/null $place/file
        done""")
    b.write("/var/lib/neuron-collectd/link-directories", f"{jobs}\n{moved}\n")
    # a user is faster than the command that removes the links
    swap = "cd /srv/moved; mv .neuron-collectd x; ln -s /srv/archive .neuron-collectd; cd /\n"
    said = b.shell(commands.replace("systemd-run", HOOK + "systemd-run", 1).replace(
        "{ sed", swap + "{ sed", 1))
    assert os.path.exists(b.path(f"/srv/archive/{node}/file")), "a destination is lost"
    assert not os.path.exists(b.path(jobs)) and f"{moved} stays" in said, said
    assert not os.path.exists(b.path("/var/lib/neuron-collectd"))
    assert "not installed" in b.run("rpm", "-q", "neuron-collectd", check=False)


@test
def dnf_installs_upgrades_and_removes_and_starts_nothing():
    b = box()
    b.run("mkdir", "/srv/repository")
    run("cp", *map(rpm, NAMES), *vendor(1), b.path("/srv/repository"))

    def dnf(*command):
        b.run("createrepo_c", "-q", "/srv/repository")
        return b.run("dnf", "-y", "-q", "--repofrompath=local,/srv/repository", "--repo=local",
                     "--nogpgcheck", "--setopt=metadata_expire=0", *command)

    def show(what):
        return b.run("systemctl", "show", "--value", "-p", what, "neuron-collectd.service").strip()

    dnf("install", *NAMES, "aws-neuronx-tools")
    assert hook(b) == ("ours", "1"), hook(b)
    assert show("ActiveState") == "inactive" and show("UnitFileState") == "disabled"
    assert b.run("id", "-un", "neuron-collectd").strip() == "neuron-collectd"
    b.write("/etc/neuron-collectd/neuron-collectd.yaml", CONFIG)
    b.shell("install -d -m 1777 /srv/dumps /srv/archive; "
            "systemctl enable -q --now neuron-collectd.service")
    b.shell("mkdir /srv/dumps/dt-20260527-051233-cid-aa; cd /srv/dumps/dt-*; echo x >a.log; "
            "neuron-collect flush; neuron-collect wait --all --timeout 60s")
    pid = show("MainPID")
    run("cp", *newer(), *vendor(2), b.path("/srv/repository"))
    dnf("upgrade")
    assert hook(b) == ("ours", "2"), hook(b)
    assert "0.1.0-2" in b.run("rpm", "-q", "neuron-collectd")
    assert show("ActiveState") == "active" and show("MainPID") != pid, "it was not restarted"
    assert "1 bundle" in b.shell("neuron-collect wait --all --timeout 60s")
    dnf("downgrade", "neuron-collectd")
    assert show("ActiveState") == "active"
    dnf("remove", "neuron-collectd", "neuron-collectd-hook")
    assert hook(b) == ("2", None), hook(b)
    assert not b.run("find", "/etc/systemd", "-name", "neuron-collectd*").strip()
    assert "neuron-collectd" not in b.run("ps", "-eo", "comm")
    assert os.path.exists(b.path("/etc/neuron-collectd/neuron-collectd.yaml"))


if __name__ == "__main__":
    sys.exit(main(cleanup))
