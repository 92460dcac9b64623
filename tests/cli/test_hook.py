#!/usr/bin/env python3
"""neuron-collect hook install, remove, status: at every moment there is a whole hook, the vendor's
is never lost, and what is wrong is told."""
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
# pylint: disable=wrong-import-position
from cli_test import (CLI, Skip, check_golden, main, run, run_in_terminal, session, test,
                      assert_harmless)

from agent import BUILD_DIR, clean_environment, need, need_root
from hook_place import ASIDE, CHAIN, NAME, NEWER, VENDOR, Place, program

CHANGING = "openat,write,fsync,fchmod,linkat,renameat,renameat2,rename,unlinkat,flock,close"


def need_strace():
    need("strace")
    if run("strace", "-qq", "-o", "/dev/null", "true").returncode != 0:
        raise Skip("strace may not trace here")
    with open(CLI, "rb") as f:
        if b"__asan_init" in f.read():
            raise Skip("a sanitizer does not work under strace")


@test
def install_puts_ours_there_and_keeps_the_vendors_and_remove_puts_it_back():
    with Place() as p:
        os.chmod(p.path(), 0o751)
        text = session(["hook", "status"], p.hook("status"))
        text += session(["hook", "install"], p.hook("install"))
        assert p.content() == program() and p.content(ASIDE) == VENDOR and p.names() == [
            NAME, ASIDE], p.names()
        st = os.stat(p.path())
        assert stat.S_IMODE(st.st_mode) == 0o755 and (os.geteuid() != 0
                                                      or st.st_uid == st.st_gid == 0)
        text += session(["hook", "install"], p.hook("install"))
        text += session(["hook", "status"], p.hook("status"))
        p.chain(ASIDE)
        text += session(["hook", "status"], p.hook("status"))
        assert p.content(ASIDE) == VENDOR, "ours is never kept aside"
        text += session(["hook", "remove"], p.hook("remove"))
        assert p.content() == VENDOR and p.names() == [NAME] and stat.S_IMODE(
            os.stat(p.path()).st_mode) == 0o751
        text += session(["hook", "remove"], p.hook("remove"))
        assert p.content() == VENDOR and p.names() == [NAME], p.names()
        check_golden("hook", text.replace(p.top, "DIR"))


@test
def where_there_was_none_remove_leaves_none():
    with Place(vendor=None) as p:
        assert p.hook("status").returncode == 1
        p.good("install")
        assert p.names() == [NAME]
        assert p.hook("status").returncode == 0
        p.good("remove")
        assert p.names() == []
        assert "no hook of neuron-collectd" in p.good("remove")


@test
def an_upgrade_is_reported_and_a_new_installation_keeps_the_newer_file_aside():
    with Place() as p:
        p.good("install")
        p.chain(ASIDE)
        p.put(NEWER)
        result = p.hook("status")
        assert result.returncode == 1 and "no longer neuron-collectd's" in result.stdout, result
        p.good("install")
        assert p.content() == program() and p.content(ASIDE) == NEWER and p.content(
            CHAIN) == NEWER, "the chain leads to the newer one"
        p.good("install")
        assert p.content() == program() and p.content(ASIDE) == NEWER
        # a package that is removed takes the file with it
        os.unlink(p.path())
        p.good("install")
        assert p.content() == program() and p.content(ASIDE) == NEWER
        p.good("remove")
        assert p.content() == NEWER and p.names() == [NAME]


@test
def remove_also_removes_what_a_killed_installation_has_left():
    with Place() as p:
        p.good("install")
        p.put(b"left", p.path(".neuron-dump.new"))
        p.good("remove")
        assert p.names() == [NAME] and p.content() == VENDOR


@test
def another_version_of_ours_is_replaced_and_never_kept_aside():
    with Place() as p:
        p.good("install")
        for version in ("9.8.8", "10.0~rc1", "1"):
            p.put(program(version), p.ours)
            result = p.hook("status")
            assert (result.returncode == 0
                    and f"this program has version {version}; " in result.stdout), result
            p.good("install")
            assert p.content() == program(version) and p.content(ASIDE) == VENDOR
            assert f"version {version}\n" in p.hook("status").stdout
        os.chmod(p.path(), 0o700)
        assert p.hook("status").returncode == 1, "not every user can execute it"
        p.good("install")
        assert p.hook("status").returncode == 0
        # a symlink to ours is ours, and becomes a file: the chain is looked for beside it
        os.unlink(p.path())
        os.symlink(p.ours, p.path())
        p.good("install")
        assert not os.path.islink(p.path()) and p.content(ASIDE) == VENDOR


@test
def ours_is_known_by_its_marker_and_nothing_else():
    with Place(vendor=None) as p:
        marker = b"neuron-collectd neuron-dump "
        for content, ours in ((program(before=4), True), (program(before=65536 - 10), True),
                              (program(before=65536 - 33), True),
                              (program(before=3 * 65536 + 7), True),
                              (b"\x7fELF" + marker + b"1.2.3\n", True),
                              (b"\x7fELF" + marker + b"\0" + marker + b"1\0", True),
                              (b"#!/bin/sh\n# " + marker + b"1.2.3\n", False),
                              (b"\x7fELF" + marker + b"\0", False),
                              (b"\x7fELF" + marker + b"1.2 3\0", False),
                              (b"\x7fELF" + marker + b"1.2.3", False),
                              (b"\x7fELF" + marker + b"1" * 40 + b"\0", False), (b"", False),
                              (b"\x7fELF" + b"z" * (64 << 20) + marker + b"1.2.3\0", False)):
            p.put(content)
            answer = json.loads(p.hook("status", "--json").stdout)
            assert (answer["state"] == "ours") == ours, (content[:80], len(content), answer)


@test
def the_program_that_is_built_carries_the_marker():
    built = os.path.join(BUILD_DIR, "neuron-dump")
    if not os.path.exists(built):
        raise Skip("neuron-dump is not built")
    with Place() as p:
        p.ours = built
        p.good("install")
        answer = json.loads(p.hook("status", "--json").stdout)
        version = run(CLI, "--version").stdout.split()[1]
        assert answer["state"] == "ours" and answer["version"] == version and answer[
            "current"] is True, answer


@test
def what_is_installed_runs_the_vendors_or_ones_own_with_the_runtimes_arguments():
    built = os.path.join(BUILD_DIR, "neuron-dump")
    if not os.path.exists(built):
        raise Skip("neuron-dump is not built")
    script = (b'#!/bin/sh\nfor a; do printf "%s\\n" "$a"; done >"$(dirname "$(readlink -f '
              b'"$0")")/they.args"\n')
    with Place(vendor=script) as p:
        p.ours = built
        custom = p.put(script, os.path.join(p.top, "custom"))
        dump = os.path.join(p.top, "dump")
        arguments = ["--error-code=NRT_EXEC_OOB", "--pid", "7", "--tid", "8", "--log-id", "9",
                     "--instance-id", "i-0a1b2c3d", "--new", "--local-output-dir", dump, "--x",
                     "a b"]
        env = clean_environment(NEURON_COLLECTD_HOOK_SOCKET=p.top + "/none.sock",
                                NEURON_COLLECTD_MAILBOX=p.top + "/mailbox",
                                NEURON_COLLECTD_SYSFS=p.top)
        os.mkdir(p.top + "/mailbox")
        p.good("install")
        for target, where in ((None, None), (ASIDE, p.dir), (custom, p.top)):
            p.chain(target)
            result = run(p.path(), *arguments, env=env)
            assert result.returncode == 0, result
            record = "i-0a1b2c3d-neuron-dump-pid-7-tid-8-lid-9.json"
            assert os.listdir(dump) == [record], os.listdir(dump)
            shutil.rmtree(dump)
            for directory in (p.dir, p.top):
                told = os.path.join(directory, "they.args")
                assert os.path.exists(told) == (directory == where), (target, directory)
                if directory == where:
                    with open(told, encoding="ascii") as f:
                        assert f.read().splitlines() == arguments, target
                    os.unlink(told)


def ways_to_die(p, *arguments):
    """Runs it once for each system call that could change something, and kills it there. Yields
    after each death."""
    for call in CHANGING.split(","):
        for number in range(1, 200):
            result = p.hook(*arguments, wrap=("strace", "-qq", "-o", "/dev/null", "-e",
                                              f"trace={call}", "-e",
                                              f"inject={call}:signal=KILL:when={number}"))
            if result.returncode not in (-signal.SIGKILL, 128 + signal.SIGKILL):
                break
            yield f"{arguments} {call} {number}"
        else:
            raise AssertionError(f"there is no end to its {call}")


@test
def whatever_kills_it_the_vendors_file_is_there_and_the_next_run_fixes_it():
    need_strace()
    deaths = 0
    with Place() as p:
        for where in ways_to_die(p, "install"):
            deaths += 1
            assert p.content() in (VENDOR, program()), (where,
                                                        "the name has no whole hook under it")
            assert VENDOR in (p.content(name) for name in p.names()), (where, p.names())
            p.good("install")
            assert p.content() == program() and p.content(ASIDE) == VENDOR and p.names() == [
                NAME, ASIDE], (where, p.names())
            p.good("remove")
            assert p.everything().keys() == {NAME} and p.content() == VENDOR, (where, p.names())
        p.good("remove")
        p.good("install")
        p.chain(ASIDE)
        for where in ways_to_die(p, "remove"):
            deaths += 1
            assert p.content() in (VENDOR, program()), (where,
                                                        "the name has no whole hook under it")
            assert VENDOR in (p.content(name) for name in p.names()), (where, p.names())
            p.good("remove")
            assert p.names() == [NAME] and p.content() == VENDOR, (where, p.names())
            p.good("install")
            p.chain(ASIDE)
    assert deaths > 20, deaths


@test
def many_at_once_do_not_lose_the_vendors_file():
    with Place() as p:
        for _ in range(5):
            command = [CLI, "hook", "install", "--to", p.dir, "--from", p.ours]
            runs = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                    for _ in range(12)]
            for process in runs:
                _, errors = process.communicate(timeout=120)
                assert process.returncode == 0, errors
            assert p.content() == program() and p.content(ASIDE) == VENDOR and p.names() == [
                NAME, ASIDE], p.names()
            p.good("remove")
            assert p.content() == VENDOR


@test
def a_chain_that_does_not_work_is_reported_and_one_of_ones_own_stays():
    with Place() as p:
        custom = p.put(b"#!/bin/sh\nexit 0\n", os.path.join(p.top, "custom"))
        p.good("install")
        assert "chain: off" in p.good("status")
        p.chain(custom)
        assert f"chain: '{custom}' runs as well" in p.good("status")
        os.chmod(custom, 0o644)
        assert "which cannot be executed by every user; remove" in p.good("status")
        p.chain(NAME)
        assert "which is neuron-collectd's own hook; remove" in p.good("status")
        p.chain(custom)
        p.good("install")
        assert os.readlink(p.path(CHAIN)) == custom
        p.good("remove")
        assert os.readlink(p.path(CHAIN)) == custom, "it does not lead to what was kept aside"


@test
def what_cannot_be_replaced_is_reported_with_what_to_do():
    with Place(vendor=None) as p:
        os.mkdir(p.path())
        p.bad("install", says="cannot be used: Is a directory; move it away")
        assert json.loads(p.hook("status", "--json").stdout)["state"] == "unusable"
        p.good("remove")  # it is not ours: left alone
        os.rmdir(p.path())
        os.symlink(NAME, p.path())
        p.bad("install", says="Too many levels of symbolic links; move it away")
        os.unlink(p.path())
        os.mkfifo(p.path())
        p.bad("install", says="cannot be used: ")
        os.unlink(p.path())
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(p.path())
        p.bad("install", says="cannot be used: ")
        os.unlink(p.path())
        os.symlink("/nowhere", p.path())
        p.good("install")  # where nothing is to be run, nothing is to be kept
        assert p.content() == program() and p.names() == [NAME]
        p.good("remove")
        p.put(VENDOR, p.ours)
        p.bad("install", says="is not neuron-collectd's neuron-dump")
        os.unlink(p.ours)
        p.bad("install", says="--from")
        os.rmdir(p.dir)
        for command in ("install", "remove"):
            result = p.hook(command)
            assert (result.returncode == 1 and "aws-neuronx-tools" in result.stderr
                    and "mkdir -p" in result.stderr), result
        result = p.hook("status")
        assert (result.returncode == 1 and "does not exist" in result.stdout
                and not result.stderr), result


@test
def without_leave_or_on_a_read_only_disk_it_reports_so_and_changes_nothing():
    need_root()
    with Place() as p:
        # the build may lie where nobody else may go
        copy = shutil.copy(CLI, os.path.join(p.top, "neuron-collect"))
        for command in ("install", "remove"):  # of the vendor's, then of ours
            before = p.everything()
            result = run(copy, "hook", command, "--to", p.dir, "--from", p.ours, user=65534,
                         group=65534, extra_groups=[])
            assert result.returncode == 1 and result.stderr.rstrip().endswith(
                "run it as root"), result
            assert p.everything() == before
            p.good("install")
        script = ('mount -t tmpfs none "$1" && cp "$2" "$1/neuron-dump" && mount -o remount,ro '
                  '"$1" && exec "$3" hook install --to "$1" --from "$2"')
        result = run("unshare", "--mount", "sh", "-c", script, "sh", p.dir, p.config, CLI)
        if result.returncode == 1 and "unshare" in result.stderr:
            raise Skip("no mount namespaces here")
        result = run("unshare", "--mount", "sh", "-c", script.replace('cp "$2"', 'cp "$4"'), "sh",
                     p.dir, p.ours, CLI, "/bin/true")
        assert result.returncode == 1 and "mount it read-write" in result.stderr, result
        # a disk that is full: what is there stays
        script = ('mount -t tmpfs -o size=64k none "$1" && cp "$4" "$1/neuron-dump" && "$3" hook '
                  'install --to "$1" --from "$2"; echo $?; cmp "$4" "$1/neuron-dump" && ls -A "$1"')
        result = run("unshare", "--mount", "sh", "-c", script, "sh", p.dir, p.ours, CLI,
                     "/bin/true")
        assert result.stdout == "1\nneuron-dump\n" and "free some space" in result.stderr, result


@test
def a_directory_for_the_dumps_of_all_users_is_made_with_the_hook():
    need_root()
    with Place() as p:
        dumps = os.path.join(p.top, "host", "dumps")
        for _ in range(2):
            p.good("install", "--dumps", dumps)
            assert oct(os.stat(dumps).st_mode)[-4:] == "1777" and p.content() == program()
            os.chmod(dumps, 0o755)
        os.chown(dumps, 65534, 65534)
        p.bad("install", "--dumps", dumps, says="belongs to uid 65534, who could rename")
        assert oct(os.stat(dumps).st_mode)[-4:] == "0755"
        os.symlink(p.dir, os.path.join(p.top, "link"))
        p.bad("install", "--dumps", os.path.join(p.top, "link"), says="cannot be a directory")
        result = p.hook("status", "--dumps", dumps)
        assert result.returncode == 2 and "--dumps is for `install`" in result.stderr, result


@test
def a_file_system_without_hard_links_will_do():
    need_strace()
    with Place() as p:
        wrap = ("strace", "-qq", "-o", "/dev/null", "-e", "trace=linkat", "-e",
                "inject=linkat:error=EPERM")
        p.good("install", wrap=wrap)
        assert p.content() == program() and p.content(ASIDE) == VENDOR and p.names() == [
            NAME, ASIDE]
        p.put(NEWER)
        p.good("install", wrap=wrap)
        assert p.content() == program() and p.content(ASIDE) == NEWER
        p.good("remove", wrap=wrap)
        assert p.content() == NEWER and p.names() == [NAME]


@test
def what_a_killed_installation_has_left_is_overwritten():
    with Place() as p:
        new = p.path(".neuron-dump.new")
        with open(new, "wb") as f:
            f.write(program()[:7000])  # a copy that was cut
        os.chmod(new, 0o600)
        p.good("install")
        assert p.names() == [NAME, ASIDE] and p.content(
            ASIDE) == VENDOR and p.content() == program()
        p.good("remove")
        os.link(p.path(), p.path(ASIDE))  # killed before ours had the name
        p.good("remove")
        assert p.names() == [NAME] and p.content() == VENDOR


@test
def status_reports_whose_hook_it_is_and_what_it_runs():
    with Place() as p:
        p.good("install")
        ours = {"directory": p.dir, "state": "ours", "version": "9.8.7", "current": True,
                "executable": True, "vendor_kept_aside": True, "chain": None}
        assert json.loads(p.good("status", "--json")) == ours
        p.put(program("9.8.8"), p.ours)
        os.chmod(p.path(), 0o700)
        # what others wrote drives no terminal
        p.chain("\x1b[2J\x9b31m")
        answer = p.hook("status", "--json")
        assert answer.returncode == 1 and json.loads(answer.stdout) == {
            **ours, "current": False, "executable": False, "chain": "\x1b[2J\u009b31m"}, answer
        _, out = run_in_terminal("--config", p.config, "hook", "status", "--to", p.dir)
        assert_harmless(out.replace(b"\r\n", b"\n"), "status")
    with Place() as p:
        answer = p.hook("status", "--json")
        assert answer.returncode == 1 and json.loads(answer.stdout)["state"] == "other"


@test
def json_reports_what_was_done():
    with Place() as p:
        def outcome(*arguments):
            answer = json.loads(p.good(*arguments, "--json"))
            assert answer.pop("directory") == p.dir
            return answer.pop("outcome") if len(answer) == 1 else answer
        assert outcome("install") == "placed-other-kept"
        assert outcome("install") == "placed"
        p.put(NEWER)
        assert outcome("remove") == "stays"
        assert p.content() == NEWER and p.content(
            ASIDE) == VENDOR, "what is not ours is left, and so is what was aside"
        os.unlink(p.path())
        assert outcome("remove") == "restored"
        os.unlink(p.path())
        assert outcome("remove") == "nothing"
        assert outcome("install") == "placed"
        assert outcome("remove") == "removed"


@test
def wrong_usage_is_reported():
    for arguments in (["hook"], ["hook", "fix"], ["hook", "install", "now"],
                      ["hook", "install", "--to"], ["hook", "install", "--to="],
                      ["hook", "install", "--again"]):
        result = run(CLI, *arguments)
        assert (result.returncode == 2 and not result.stdout
                and "see neuron-collect hook --help" in result.stderr), (arguments, result)


if __name__ == "__main__":
    sys.exit(main())
