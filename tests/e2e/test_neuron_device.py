#!/usr/bin/env python3
"""The collector neuron_device against devices that answer, fail and hang as the driver does
(tests/harness/neuron_devices.c)."""
import contextlib
import json
import mmap
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import neuron_sysfs  # noqa: E402
from agent import need, slowness, wait_for  # noqa: E402
from neuron_devices import Devices, cleanup, collect, place, run_collector  # noqa: E402
from tap import Late, in_time, main, test  # noqa: E402

FREE = {"0x40084e64", "0x80084e6a", "0x40084e5d", "0x80184e6e", "0xc1044e73", "0xc0104e78",
        "0xc1044e79", "0xc1144e7a"}


def examine(devices, *arguments, driver="2.30.2.0", kind="v3", ultraserver=None, instance_type=None,
         proc_root=None):
    root = os.path.join(place(), "sys")
    if not os.path.exists(root):
        neuron_sysfs.tree(root, kind, devices=1, driver=driver or "2.30.2.0",
                          ultraserver=ultraserver)
        if not driver:
            os.remove(f"{root}/module/neuron/version")
        if instance_type:
            neuron_sysfs.machine(root, instance_type, driver)
    return collect("neuron_device", f"sysfs_root={root}", f"device_directory={devices.directory}",
                   f"proc_root={proc_root or '/proc'}", *arguments)


def only(result, device, query):
    answers = result.answers(device, query)
    assert len(answers) == 1, answers
    return answers[0]["values"]


@test
def the_free_tier_reports_what_each_device_is():
    devices = Devices()
    result = examine(devices)
    assert {e["state"] for e in result.ends().values()} == {"complete"} and len(result.ends()) == 16
    for i in range(16):
        assert only(result, f"neuron{i}", "device_basic_info") == {"architecture": 3, "revision": 1}
        assert only(result, f"neuron{i}",
                    "device_bdf_ext") == {"pci_address": f"0000:{0x10 + i:02x}:1e.0"}
    assert only(result, "neuron0", "driver_info")["features"] == ["DMABUF", "ZEROCOPY"]
    assert only(result, "neuron0", "compatible_version") == {"min": 10, "max": 11}
    assert len(only(result, "neuron0", "host_device_id_to_rid_map")["rids"]) == 16
    assert only(result, "neuron0", "logical_to_physical_nc_map")["device_and_core"][9] == [1, 1]
    assert only(result, "neuron0", "pod_info") == {"pod_type": 2, "pod_size": 4,
                                                   "pod_id_hex": "706f64"}
    status = only(result, "neuron0", "pod_status")
    assert (status["state"], status["node_id"], status["mode"]) == (2, -1, 2), status
    devices.assert_unharmed()
    assert devices.commands() == FREE


@test
def no_device_is_opened_for_reading():
    devices = Devices()
    examine(devices)
    opens = devices.log("^open")
    assert len(opens) == 17, opens      # each once, and one more for what is asked once a node
    assert all(int(line.split("flags=")[1].split()[0], 16) & os.O_ACCMODE == os.O_WRONLY
               for line in opens), opens


@test
def an_old_driver_is_only_asked_what_it_has():
    devices = Devices(count=1, driver="2.16.7")
    result = examine(devices, driver="2.16.7.0")
    assert devices.commands() == {"0x40084e64", "0x80084e6a", "0x40084e5d", "0x80184e6e",
                                  "0xc1044e73"}
    assert "not requested" in result.answers("neuron0", "pod_info")[0]["error"]


@test
def a_pods_status_is_had_of_drivers_without_its_second_form():
    devices = Devices(count=1, driver="2.22.2")
    status = only(examine(devices, driver="2.22.2.0"), "neuron0", "pod_status")
    assert status["state"] == 2 and "mode" not in status
    assert "0xc1144e7a" not in devices.commands() and "0xc10c4e7a" in devices.commands()


def fifteen_others_are_complete(result, hung, detail):
    ends = result.ends()
    assert ends[hung]["state"] == "timeout" and detail in ends[hung]["detail"], ends[hung]
    others = [e for name, e in ends.items() if name != hung]
    if any(e["state"] == "timeout" for e in others):
        raise Late(f"others than {hung} have not ended in time: {others}")
    assert len(others) == 15 and all(e["state"] == "complete" for e in others), others


@test
def one_device_whose_ioctl_hangs_leaves_fifteen_complete():
    devices = Devices()
    devices.control("5 0x80084e6a hang")
    result = examine(devices, "timeout=2s")
    fifteen_others_are_complete(result, "neuron5", "device_bdf_ext")
    in_time(result.seconds, 2.5 * slowness())
    assert only(result, "neuron5",
                "device_basic_info")["architecture"] == 3, "what it said before it hung"
    assert only(result, "neuron0", "pod_info")


@test
def one_device_whose_open_blocks_leaves_fifteen_complete():
    devices = Devices()
    devices.control("0 open-free block")
    result = examine(devices, "timeout=2s")
    fifteen_others_are_complete(result, "neuron0", "'open'")
    assert result.answers("neuron1",
                          "pod_info"), "what is asked once a node is asked of one that answers"


@test
def nobody_has_a_copy_of_a_descriptor():
    """The driver does much at each close, also that of a copy which a fork has made."""
    devices = Devices(count=2)
    examine(devices)
    wait_for("all is closed", lambda: len(devices.log("^close")) == len(devices.log("^open")))
    assert len(devices.log("^flush")) == len(devices.log("^open")) == 3


@test
def failures_are_labelled_by_their_errno_and_positive_returns_are_failures():
    devices = Devices(count=6)
    for device, fault in enumerate(("errno 14", "errno 16", "errno 25", "errno 1", "return 8")):
        devices.control(f"{device} 0x80084e6a {fault}")
    result = examine(devices)
    for device, word in enumerate(("EFAULT", "EBUSY", "ENOTTY", "EPERM", "returned 8")):
        assert word in result.answers(f"neuron{device}", "device_bdf_ext")[0]["error"]
        assert result.ends()[f"neuron{device}"]["state"] == "complete"
    assert "values" in result.answers("neuron5", "device_bdf_ext")[0]


@test
def counts_without_measure_are_cut_to_their_bounds():
    devices = Devices(count=1)
    for command in FREE - {"0x40084e64"}:
        devices.control(f"0 {command} garbage")
    result = examine(devices)
    assert result.ends()["neuron0"]["state"] == "complete"
    assert len(only(result, "neuron0", "host_device_id_to_rid_map")["rids"]) == 64
    assert len(only(result, "neuron0", "logical_to_physical_nc_map")["device_and_core"]) == 128
    devices.assert_unharmed()


@test
def an_ultraserver_that_is_idle_is_not_opened():
    devices = Devices(count=3)
    procfs = os.path.join(place(), "proc")      # with a process that has something else open
    os.makedirs(os.path.join(procfs, "17", "fd"))
    os.symlink("/dev/null", os.path.join(procfs, "17", "fd", "3"))
    result = examine(devices, ultraserver="1,2,4", proc_root=procfs)
    for end in result.ends().values():
        assert end["state"] == "skipped" and "no process uses a device" in end["detail"], end
    assert len(result.ends()) == 3 and not devices.log("^open")


@test
def an_ultraserver_is_known_by_its_instance_type_too():
    devices = Devices(count=1)
    for kind, is_one in (("trn2u.48xlarge", True), ("trn2eu.48xlarge", True),
                         ("trn2es.48xlarge", True), ("trn3s.48xlarge", True),
                         ("trn3pd98.3xlarge", True), ("trn2.48xlarge", False),
                         ("trn1.32xlarge", False), ("inf2.48xlarge", False)):
        shutil.rmtree(os.path.join(place(), "sys"), ignore_errors=True)
        result = examine(devices, instance_type=kind)
        assert result.ends()["neuron0"]["state"] == ("skipped" if is_one
                                                     else "complete"), (kind, result.ends())
        assert bool(devices.log("^open")) != is_one, kind


@contextlib.contextmanager
def in_use(path, mode="rb"):
    """We are a job that has this device open, and the runtime mapped."""
    library = os.path.join(place(), "libnrt.so.1")
    with open(library, "wb") as f:
        f.write(bytes(mmap.PAGESIZE))
    with open(path, mode,
              buffering=0), open(library, "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ):
        yield


@test
def who_holds_a_device_of_an_ultraserver_without_the_runtime_does_not_use_it():
    devices = Devices(count=2)
    # as a monitor may
    procfs = process_with(os.path.join(devices.directory, "neuron1"), library="libnccom.so.2")
    result = examine(devices, ultraserver="1,2,4", proc_root=procfs)
    for end in result.ends().values():
        assert end["state"] == "skipped" and "no process uses a device" in end["detail"], end
    assert len(result.ends()) == 2 and not devices.log("^open")


@test
def an_ultraserver_in_use_is_opened():
    devices = Devices(count=2)
    with in_use(os.path.join(devices.directory, "neuron1")):
        result = examine(devices, ultraserver="1,2,4")
    assert {e["state"] for e in result.ends().values()} == {"complete"}


def process_with(path, library="libnrt.so.1"):
    """@return a procfs of one process that has the file open, O_RDWR, and the runtime mapped, or
    another library"""
    process = os.path.join(place(), "proc", "17")
    os.makedirs(os.path.join(process, "fd"))
    os.makedirs(os.path.join(process, "fdinfo"))
    os.symlink(path, os.path.join(process, "fd", "3"))
    for name, text in (("fdinfo/3", "pos:\t0\nflags:\t0100002\n"),
                       ("maps",
                        f"7f0000000000-7f0000001000 r--p 00000000 08:01 77 /opt/{library}\n"),
                       ("stat", "17 (python3) S 1 17 17 0 -1 4194304" + " 1" * 8
                        + " 20 0 3 0 99 1000 200 18446744073709551615\n")):
        with open(os.path.join(process, name), "w", encoding="ascii") as f:
            f.write(text)
    return os.path.dirname(process)


@test
def a_strangers_file_that_is_called_like_a_device_is_none():
    devices = Devices(count=2)
    os.makedirs(os.path.join(place(), "x"))
    with open(os.path.join(place(), "x", "neuron0"), "wb"):
        pass
    procfs = process_with(os.path.join(place(), "x", "neuron0"))
    result = examine(devices, ultraserver="1,2,4", proc_root=procfs)
    for end in result.ends().values():
        assert end["state"] == "skipped" and "no process uses a device" in end["detail"], end
    assert len(result.ends()) == 2 and not devices.log("^open")


@test
def a_strangers_character_device_that_is_called_like_a_device_is_none():
    devices = Devices(count=1)
    os.makedirs(os.path.join(place(), "x"))
    os.makedirs(os.path.join(place(), "real"))
    for path, minor in (("x", 3), ("real", 5)):      # null and zero
        os.mknod(os.path.join(place(), path, "neuron0"), 0o600 | stat.S_IFCHR, os.makedev(1, minor))
    try:
        with in_use(os.path.join(place(), "x", "neuron0"), "r+b"):
            devices.directory = os.path.join(place(), "real")
            assert examine(devices, ultraserver="2").ends()["neuron0"]["state"] == "skipped"
        with in_use(os.path.join(place(), "real", "neuron0"), "r+b"):
            assert examine(devices, ultraserver="2").ends()["neuron0"][
                "state"] != "skipped", "the one that is ours is known by its number"
    finally:
        devices.directory = os.path.join(place(), "dev")


@test
def a_device_whose_last_user_has_gone_is_not_opened_again():
    run_collector()  # or this is skipped, before a thread waits for it
    devices = Devices(count=1)
    procfs = process_with(os.path.join(devices.directory, "neuron0"))
    devices.control("0 0x80084e6a block")

    def leave():
        wait_for("it is asked", lambda: devices.log("0x80084e6a"))
        os.unlink(os.path.join(procfs, "17", "fd", "3"))
        devices.control("release")
    user = threading.Thread(target=leave)
    user.start()
    result = examine(devices, "timeout=20s", ultraserver="1,2,4", proc_root=procfs)
    user.join()
    assert only(result, "neuron0",
                "device_basic_info")["architecture"] == 3, "while it was used it was asked"
    assert "no process uses a device any more" in result.answers("neuron0", "open")[0]["error"]
    assert len(devices.log("^open")) == 1


@test
def who_has_a_device_of_an_ultraserver_open_for_writing_only_does_not_use_it():
    devices = Devices(count=2)
    with in_use(os.path.join(devices.directory, "neuron1"), "wb"):
        result = examine(devices, ultraserver="1,2,4")
    assert {e["state"] for e in result.ends().values()} == {"skipped"}


@test
def a_server_of_one_node_is_no_ultraserver():
    devices = Devices(count=1)
    assert examine(devices, ultraserver="1").ends()["neuron0"]["state"] == "complete"


@test
def without_procfs_an_ultraserver_is_left_alone():
    devices = Devices(count=1)
    with in_use(os.path.join(devices.directory, "neuron0")):
        result = examine(devices, ultraserver="2", proc_root="/nonexistent")
    assert "unknown" in result.ends()["neuron0"]["detail"] and len(devices.log("^open")) == 1


@test
def processes_that_may_not_be_examined_may_use_an_ultraserver():
    """As without CAP_SYS_PTRACE: a directory that cannot be opened, for whoever is not root in
    truth."""
    need("setpriv")
    devices = Devices(count=1)
    root = os.path.join(place(), "sys")
    neuron_sysfs.tree(root, devices=1, ultraserver="2")
    os.chmod(place(), 0o755)
    done = subprocess.run(["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", "--",
                           run_collector(), "neuron_device", f"sysfs_root={root}",
                           f"device_directory={devices.directory}"], capture_output=True,
                           text=True, timeout=60, check=False)
    assert "whether a process uses one is unknown" in done.stdout, done
    assert not devices.log("^open")


@test
def sysfs_that_hangs_leaves_the_devices_alone():
    devices = Devices(count=1)
    root = os.path.join(place(), "sys")
    neuron_sysfs.tree(root, devices=1)
    os.remove(f"{root}/module/neuron/version")
    os.symlink(os.path.join(devices.directory, "neuron0"), f"{root}/module/neuron/version")
    devices.control("0 open-attached hang")
    result = examine(devices, "timeout=2s")
    assert "did not answer" in result.ends()["neuron0"]["detail"]
    assert not devices.log("^ioctl")
    in_time(result.seconds, 2.5 * slowness())


@test
def a_collector_that_is_killed_leaves_no_part_with_a_device():
    devices = Devices(count=4)
    root = os.path.join(place(), "sys")
    neuron_sysfs.tree(root, devices=1)
    devices.control("* 0x80084e6a block")
    with subprocess.Popen([run_collector(), "neuron_device", f"sysfs_root={root}",
                           f"device_directory={devices.directory}", "timeout=60s"],
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as p:
        wait_for("all hang", lambda: len(devices.log("0x80084e6a")) == 4)
        p.send_signal(signal.SIGKILL)
    wait_for("all devices are closed", lambda: len(devices.log("^close")) == 4)


@test
def who_holds_devices_is_found_without_opening_one():
    devices = Devices(count=3)
    with open(os.path.join(devices.directory, "neuron1"), "rb", buffering=0):
        mine = devices.log("^open")
        result = collect("jobs", f"device_directory={devices.directory}")
        assert devices.log("^open") == mine and len(mine) == 1, devices.log("^open")
    assert not devices.log("^ioctl"), devices.log("^ioctl")
    holders = {r["pid"]: r["devices"] for r in result.records if r.get("devices")}
    assert holders == {os.getpid(): [1]}, holders
    assert result.records[0]["device_holders"] == 1, result.records[0]


@test
def a_device_whose_group_we_are_not_in_comes_with_the_remedy():
    """AWS's guide to security gives the devices to a group, 0660; capabilities do not make up for
    that."""
    need("setpriv")
    os.chmod(place(), 0o755)
    shutil.copy(run_collector(), os.path.join(place(), "collector"))
    os.makedirs(os.path.join(place(), "dev"))
    path = os.path.join(place(), "dev", "neuron0")
    with open(path, "wb"):
        os.chown(path, 0, 4711)
    for mode, remedy in ((0o660, "SupplementaryGroups=4711"), (0o600, "only its owner")):
        os.chmod(path, mode)
        done = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--",
                               os.path.join(place(), "collector"), "neuron_device",
                               f"sysfs_root={place()}", f"device_directory={place()}/dev"],
                               capture_output=True, text=True, timeout=60, check=False)
        end = [r for r in map(json.loads, done.stdout.splitlines()) if "state" in r]
        assert len(end) == 1 and end[0]["state"] == "failed", done
        assert "EACCES" in end[0]["detail"] and remedy in end[0]["detail"] and (
            "drop-in" in end[0]["detail"]) == (mode == 0o660), end


@test
def no_devices_is_an_answer_too():
    os.makedirs(os.path.join(place(), "dev"))
    os.symlink("/dev/null", os.path.join(place(), "dev", "neuron64"))
    result = collect("neuron_device", f"sysfs_root={place()}", f"device_directory={place()}/dev")
    assert len(result.records) == 1 and "no device" in result.records[0]["error"]


@test
def a_symlink_in_place_of_a_device_is_not_followed():
    os.makedirs(os.path.join(place(), "dev"))
    target = os.path.join(place(), "target")
    with open(target, "w", encoding="ascii"):
        pass
    os.symlink(target, os.path.join(place(), "dev", "neuron0"))
    os.mkfifo(os.path.join(place(), "dev", "neuron1"))
    ends = collect("neuron_device", f"sysfs_root={place()}",
                   f"device_directory={place()}/dev").ends()
    assert ends["neuron0"]["state"] == "failed" and "ELOOP" in ends["neuron0"]["detail"]
    assert ends["neuron1"]["state"] == "failed"


if __name__ == "__main__":
    sys.exit(main(cleanup))
