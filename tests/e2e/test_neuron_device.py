#!/usr/bin/env python3
"""The collector neuron_device against devices that answer, fail and hang as the driver does (tests/harness/neuron_devices.c)."""
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

FREE = {"0x40084e64", "0x80084e6a", "0x40084e5d", "0x80184e6e", "0xc1044e73", "0xc0104e78", "0xc1044e79", "0xc1144e7a"}
ATTACHED = {"0x80084e03", "0x80084e07", "0x40084e5c", "0x80084e47", "0x80084e48", "0xc0084e20", "0xc0084e25", "0xc0084e2b", "0xc0084e2e"}


def look(devices, *arguments, driver="2.30.2.0", kind="v3", ultraserver=None, instance_type=None, proc_root=None):
    root = os.path.join(place(), "sys")
    if not os.path.exists(root):
        neuron_sysfs.tree(root, kind, devices=1, driver=driver or "2.30.2.0", ultraserver=ultraserver)
        if not driver:
            os.remove(f"{root}/module/neuron/version")
        if instance_type:
            neuron_sysfs.machine(root, instance_type, driver)
    return collect("neuron_device", f"sysfs_root={root}", f"device_directory={devices.directory}", f"proc_root={proc_root or '/proc'}", *arguments)


def only(result, device, query):
    answers = result.answers(device, query)
    assert len(answers) == 1, answers
    return answers[0]["values"]


@test
def the_free_tier_says_what_each_device_is():
    devices = Devices()
    result = look(devices)
    assert {e["state"] for e in result.ends().values()} == {"complete"} and len(result.ends()) == 16
    for i in range(16):
        assert only(result, f"neuron{i}", "device_basic_info") == {"architecture": 3, "revision": 1}
        assert only(result, f"neuron{i}", "device_bdf_ext") == {"pci_address": f"0000:{0x10 + i:02x}:1e.0"}
    assert only(result, "neuron0", "driver_info")["features"] == ["DMABUF", "ZEROCOPY"]
    assert only(result, "neuron0", "compatible_version") == {"min": 10, "max": 11}
    assert len(only(result, "neuron0", "host_device_id_to_rid_map")["rids"]) == 16
    assert only(result, "neuron0", "logical_to_physical_nc_map")["device_and_core"][9] == [1, 1]
    assert only(result, "neuron0", "pod_info") == {"pod_type": 2, "pod_size": 4, "pod_id_hex": "706f64"}
    status = only(result, "neuron0", "pod_status")
    assert (status["state"], status["node_id"], status["mode"]) == (2, -1, 2), status
    devices.assert_unharmed()
    assert devices.commands() == FREE


@test
def without_attached_ioctls_no_device_is_opened_for_reading():
    devices = Devices()
    look(devices)
    opens = devices.log("^open")
    assert len(opens) == 17, opens      # each once, and one more for what is asked once a node
    assert all(int(line.split("flags=")[1].split()[0], 16) & os.O_ACCMODE == os.O_WRONLY for line in opens), opens
    assert not devices.log("mode=attached")


@test
def the_attached_tier_reads_everything_within_bounds():
    devices = Devices(count=2)
    result = look(devices, "attached_ioctls=on")
    assert {e["attached"] for e in result.ends().values()} == {"complete"}
    info = only(result, "neuron1", "device_info")
    assert info["connected"] == [12, 3] and info["bar_bytes"] == [1 << 26, 0]
    apps = only(result, "neuron1", "apps_info")["apps"]
    assert [a["pid"] for a in apps] == [4711] and apps[0]["models"][0] == "0123456789abcdef" * 2 and apps[0]["device_bytes"] == 1 << 30
    assert only(result, "neuron1", "nc_model_started_count") == {"by_core": list(range(10, 18))}
    semaphores = [r["values"] for r in result.answers("neuron1", "semaphore_read")]
    assert [s["core"] for s in semaphores] == list(range(8)) and semaphores[7]["by_index"] == list(range(7000, 7256))
    assert len(result.answers("neuron1", "event_get")) == 8
    engines = {r["values"]["engine"]: r["values"] for r in result.answers("neuron1", "dma_eng_get_state")}
    assert sorted(engines) == list(range(132))
    assert engines[3]["tx_state"] == 3 and engines[3]["in_use"], "an aborted engine's queues are what is looked for"
    assert engines[0]["in_use"] == [{"queue": 0, "tx": [3, 2, 64, 5, 6, 7], "rx": [3, 2, 64, 5, 6, 7]}]
    for closed in (5, 7, 11):
        assert not devices.log(f"0xc0084e25 mode=attached {closed} "), f"queues of engine {closed}, disabled or reset, were asked"
    assert len(devices.log("^ioctl neuron1 0xc0084e25 mode=attached 9 ")) == 4
    devices.assert_unharmed()
    assert devices.commands() == FREE | ATTACHED


@test
def a_kernels_addresses_are_seen_nowhere():
    result = look(Devices(count=1), "attached_ioctls=on")
    assert result.answers("neuron0", "device_info") and result.answers("neuron0", "dma_eng_get_state")
    for address in (0xffff888012345678, 0xffff888087654321, 0xffff888011112222):
        assert str(address) not in result.text and f"{address:x}" not in result.text


@test
def a_datastore_is_read_and_given_back():
    devices = Devices(count=1)
    result = look(devices, "attached_ioctls=on")
    store = only(result, "neuron0", "datastore")
    assert store["pid"] == 4711 and store["device_counters"] == {"DEVICE_CLUSTER_ID": 0xc1}
    cores = store["core_counters"]
    assert cores[0] == {"INFER_COMPLETED": 88154} and cores[1] == {"DMA_ABORT": 2} and cores[3] == {"OOB": 6}
    assert cores[6] == {"MODEL_LOAD_COUNT": 9} and len(cores) == 8
    assert [line.split()[2] for line in devices.log("0x80084e4[78]")] == ["0x80084e47", "0x80084e48"]
    assert all(" 4711 " in line for line in devices.log("0x80084e4[78]"))


@test
def a_datastore_is_mapped_for_reading_only():
    need("strace")
    devices = Devices(count=1)
    root = os.path.join(place(), "sys")
    neuron_sysfs.tree(root, devices=1)
    trace = os.path.join(place(), "trace")
    subprocess.run(["strace", "-f", "-y", "-o", trace, "-e", "trace=mmap,mprotect", run_collector(), "neuron_device", f"sysfs_root={root}",
                    f"device_directory={devices.directory}", "attached_ioctls=on"], check=True, capture_output=True, timeout=60,
                       env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"})  # which does not work below strace
    with open(trace, encoding="utf-8") as f:
        maps = [line for line in f if "/neuron0>" in line]
    assert len(maps) == 1 and "PROT_READ, MAP_SHARED" in maps[0], maps


@test
def engines_beyond_those_of_a_v2_are_never_asked():
    devices = Devices(count=1, architecture=2)
    result = look(devices, "attached_ioctls=on", kind="v2")
    assert sorted(r["values"]["engine"] for r in result.answers("neuron0", "dma_eng_get_state")) == list(range(34))
    assert len(result.answers("neuron0", "semaphore_read")) == 2
    devices.assert_unharmed()


@test
def a_driver_before_2_26_5_is_not_attached_to():
    for version in ("2.26.4.0", "2.25.4.0", "2.16.7.0"):
        devices = Devices(count=2, driver=version[:-2])
        result = look(devices, "attached_ioctls=on", driver=version)
        for end in result.ends().values():
            assert end["state"] == "complete" and "2.26.5" in end["attached"], end
        devices.assert_unharmed()
        assert not devices.log("mode=attached") and devices.log("mode=free")
        cleanup()


@test
def a_driver_whose_version_is_unknown_is_not_attached_to():
    devices = Devices(count=1)
    result = look(devices, "attached_ioctls=on", driver=None)
    assert "not known" in result.ends()["neuron0"]["attached"]
    assert not devices.log("mode=attached")


@test
def an_old_driver_is_only_asked_what_it_has():
    devices = Devices(count=1, driver="2.16.7")
    result = look(devices, driver="2.16.7.0")
    assert devices.commands() == {"0x40084e64", "0x80084e6a", "0x40084e5d", "0x80184e6e", "0xc1044e73"}
    assert "not asked" in result.answers("neuron0", "pod_info")[0]["error"]


@test
def a_pods_status_is_had_of_drivers_without_its_second_form():
    devices = Devices(count=1, driver="2.22.2")
    status = only(look(devices, driver="2.22.2.0"), "neuron0", "pod_status")
    assert status["state"] == 2 and "mode" not in status
    assert "0xc1144e7a" not in devices.commands() and "0xc10c4e7a" in devices.commands()


@test
def an_unknown_architecture_is_not_attached_to():
    devices = Devices(count=1)
    devices.control("0 0x40084e64 garbage")
    result = look(devices, "attached_ioctls=on")
    assert only(result, "neuron0", "device_basic_info")["architecture"] == 77
    assert "architecture" in result.ends()["neuron0"]["attached"]
    assert not devices.log("mode=attached")


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
    result = look(devices, "timeout=2s")
    fifteen_others_are_complete(result, "neuron5", "device_bdf_ext")
    in_time(result.seconds, 2.5 * slowness())
    assert only(result, "neuron5", "device_basic_info")["architecture"] == 3, "what it said before it hung"
    assert only(result, "neuron0", "pod_info")


@test
def one_device_whose_open_blocks_leaves_fifteen_complete():
    devices = Devices()
    devices.control("0 open-free block")
    result = look(devices, "timeout=2s")
    fifteen_others_are_complete(result, "neuron0", "'open'")
    assert result.answers("neuron1", "pod_info"), "what is asked once a node is asked of one that answers"


@test
def a_reset_in_progress_blocks_only_the_attached_part_of_its_device():
    devices = Devices(count=3)
    devices.control("1 open-attached block")
    result = look(devices, "attached_ioctls=on", "timeout=8s")
    ends = result.ends()
    assert ends["neuron1"]["state"] == "timeout" and "open_attached" in ends["neuron1"]["detail"]
    assert only(result, "neuron1", "device_basic_info")["architecture"] == 3, "what needs no slot was had before"
    assert ends["neuron0"]["attached"] == ends["neuron2"]["attached"] == "complete"


@test
def a_close_that_waits_for_a_reset_costs_nothing_that_was_read():
    devices = Devices(count=2)
    devices.control("1 close block")
    result = look(devices, "attached_ioctls=on", "timeout=6s")
    end = result.ends()["neuron1"]
    assert end["state"] == "timeout" and "'close'" in end["detail"], end
    assert len(result.answers("neuron1", "event_get")) == 8 and result.ends()["neuron0"]["attached"] == "complete"


@test
def nobody_has_a_copy_of_an_attached_descriptor():
    """The driver does much at each close, also that of a copy which a fork has made."""
    devices = Devices(count=2)
    look(devices, "attached_ioctls=on")
    wait_for("all is closed", lambda: len(devices.log("^close")) == len(devices.log("^open")))
    assert len(devices.log("^flush")) == len(devices.log("^open")) == 5


@test
def a_device_with_all_slots_taken_is_said_to_be_busy():
    devices = Devices(count=2)
    devices.control("1 slots 16")
    result = look(devices, "attached_ioctls=on")
    assert "EBUSY" in result.answers("neuron1", "open_attached")[0]["error"]
    assert result.ends()["neuron1"]["state"] == "complete" and result.ends()["neuron1"]["attached"] == "not complete"
    assert result.ends()["neuron0"]["attached"] == "complete"


@test
def failures_are_labelled_by_their_errno_and_positive_returns_are_failures():
    devices = Devices(count=6)
    for device, fault in enumerate(("errno 14", "errno 16", "errno 25", "errno 1", "return 8")):
        devices.control(f"{device} 0x80084e6a {fault}")
    result = look(devices)
    for device, word in enumerate(("EFAULT", "EBUSY", "ENOTTY", "EPERM", "returned 8")):
        assert word in result.answers(f"neuron{device}", "device_bdf_ext")[0]["error"]
        assert result.ends()[f"neuron{device}"]["state"] == "complete"
    assert "values" in result.answers("neuron5", "device_bdf_ext")[0]


@test
def a_device_that_fails_everything_is_not_asked_thousands_of_times():
    devices = Devices(count=1)
    for command in ATTACHED:
        devices.control(f"0 {command} errno 5")
    result = look(devices, "attached_ioctls=on")
    assert len(devices.log("mode=attached")) < 100
    assert "EIO" in result.answers("neuron0", "semaphore_read")[0]["values"]["first_error"]


@test
def counts_without_measure_are_cut_to_their_bounds():
    devices = Devices(count=1)
    for command in ATTACHED | (FREE - {"0x40084e64"}):
        devices.control(f"0 {command} garbage")
    result = look(devices, "attached_ioctls=on")
    assert result.ends()["neuron0"]["state"] == "complete"
    assert len(only(result, "neuron0", "host_device_id_to_rid_map")["rids"]) == 64
    assert len(only(result, "neuron0", "logical_to_physical_nc_map")["device_and_core"]) == 128
    assert len(only(result, "neuron0", "device_info")["connected"]) == 8
    assert len(only(result, "neuron0", "apps_info")["apps"]) == 15     # 16 slots, one of them the reader's
    assert all(int(line.split()[-1]) < 16 for line in devices.log("0xc0084e25"))
    devices.assert_unharmed()


@test
def an_ultraserver_that_is_idle_is_not_opened():
    devices = Devices(count=3)
    procfs = os.path.join(place(), "proc")      # with a process that has something else open
    os.makedirs(os.path.join(procfs, "17", "fd"))
    os.symlink("/dev/null", os.path.join(procfs, "17", "fd", "3"))
    result = look(devices, "attached_ioctls=on", ultraserver="1,2,4", proc_root=procfs)
    for end in result.ends().values():
        assert end["state"] == "skipped" and "no process uses a device" in end["detail"], end
    assert len(result.ends()) == 3 and not devices.log("^open")


@test
def an_ultraserver_is_known_by_its_instance_type_too():
    devices = Devices(count=1)
    for kind, is_one in (("trn2u.48xlarge", True), ("trn2eu.48xlarge", True), ("trn2es.48xlarge", True), ("trn3s.48xlarge", True),
                         ("trn3pd98.3xlarge", True), ("trn2.48xlarge", False), ("trn1.32xlarge", False), ("inf2.48xlarge", False)):
        shutil.rmtree(os.path.join(place(), "sys"), ignore_errors=True)
        result = look(devices, instance_type=kind)
        assert result.ends()["neuron0"]["state"] == ("skipped" if is_one else "complete"), (kind, result.ends())
        assert bool(devices.log("^open")) != is_one, kind


@contextlib.contextmanager
def in_use(path, mode="rb"):
    """We are a job that has this device open, and the runtime mapped."""
    library = os.path.join(place(), "libnrt.so.1")
    with open(library, "wb") as f:
        f.write(bytes(mmap.PAGESIZE))
    with open(path, mode, buffering=0), open(library, "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ):
        yield


@test
def who_holds_a_device_of_an_ultraserver_without_the_runtime_does_not_use_it():
    devices = Devices(count=2)
    procfs = process_with(os.path.join(devices.directory, "neuron1"), library="libnccom.so.2")  # as a monitor may
    result = look(devices, ultraserver="1,2,4", proc_root=procfs)
    for end in result.ends().values():
        assert end["state"] == "skipped" and "no process uses a device" in end["detail"], end
    assert len(result.ends()) == 2 and not devices.log("^open")


@test
def an_ultraserver_in_use_is_opened():
    devices = Devices(count=2)
    with in_use(os.path.join(devices.directory, "neuron1")):
        result = look(devices, ultraserver="1,2,4")
    assert {e["state"] for e in result.ends().values()} == {"complete"}


def process_with(path, library="libnrt.so.1"):
    """@return a procfs of one process that has the file open, O_RDWR, and the runtime mapped, or another library"""
    process = os.path.join(place(), "proc", "17")
    os.makedirs(os.path.join(process, "fd"))
    os.makedirs(os.path.join(process, "fdinfo"))
    os.symlink(path, os.path.join(process, "fd", "3"))
    for name, text in (("fdinfo/3", "pos:\t0\nflags:\t0100002\n"), ("maps", f"7f0000000000-7f0000001000 r--p 00000000 08:01 77 /opt/{library}\n"),
                       ("stat", "17 (python3) S 1 17 17 0 -1 4194304" + " 1" * 8 + " 20 0 3 0 99 1000 200 18446744073709551615\n")):
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
    result = look(devices, "attached_ioctls=on", ultraserver="1,2,4", proc_root=procfs)
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
            assert look(devices, ultraserver="2").ends()["neuron0"]["state"] == "skipped"
        with in_use(os.path.join(place(), "real", "neuron0"), "r+b"):
            assert look(devices, ultraserver="2").ends()["neuron0"]["state"] != "skipped", "the one that is ours is known by its number"
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
    result = look(devices, "attached_ioctls=on", "timeout=20s", ultraserver="1,2,4", proc_root=procfs)
    user.join()
    assert only(result, "neuron0", "device_basic_info")["architecture"] == 3, "while it was used it was asked"
    assert "no process uses a device any more" in result.answers("neuron0", "open_attached")[0]["error"]
    assert len(devices.log("^open")) == 1 and not devices.log("mode=attached")


@test
def an_ultraserver_in_use_is_attached_to_and_the_parts_are_no_users_of_it():
    devices = Devices(count=3)
    with in_use(os.path.join(devices.directory, "neuron1")):
        result = look(devices, "attached_ioctls=on", ultraserver="1,2,4")
    assert {e["attached"] for e in result.ends().values()} == {"complete"}


@test
def who_has_a_device_of_an_ultraserver_open_for_writing_only_does_not_use_it():
    devices = Devices(count=2)
    with in_use(os.path.join(devices.directory, "neuron1"), "wb"):
        result = look(devices, ultraserver="1,2,4")
    assert {e["state"] for e in result.ends().values()} == {"skipped"}


@test
def a_server_of_one_node_is_no_ultraserver():
    devices = Devices(count=1)
    assert look(devices, ultraserver="1").ends()["neuron0"]["state"] == "complete"


@test
def without_procfs_an_ultraserver_is_left_alone():
    devices = Devices(count=1)
    with in_use(os.path.join(devices.directory, "neuron0")):
        result = look(devices, ultraserver="2", proc_root="/nonexistent")
    assert "unknown" in result.ends()["neuron0"]["detail"] and len(devices.log("^open")) == 1


@test
def processes_that_may_not_be_looked_into_may_use_an_ultraserver():
    """As without CAP_SYS_PTRACE: a directory that cannot be opened, for whoever is not root in truth."""
    need("setpriv")
    devices = Devices(count=1)
    root = os.path.join(place(), "sys")
    neuron_sysfs.tree(root, devices=1, ultraserver="2")
    os.chmod(place(), 0o755)
    done = subprocess.run(["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", "--", run_collector(), "neuron_device", f"sysfs_root={root}",
                           f"device_directory={devices.directory}"], capture_output=True, text=True, timeout=60, check=False)
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
    result = look(devices, "timeout=2s")
    assert "did not answer" in result.ends()["neuron0"]["detail"]
    assert not devices.log("mode=free")
    in_time(result.seconds, 2.5 * slowness())


@test
def a_collector_that_is_killed_leaves_no_part_with_a_device():
    devices = Devices(count=4)
    root = os.path.join(place(), "sys")
    neuron_sysfs.tree(root, devices=1)
    devices.control("* 0x80084e6a block")
    with subprocess.Popen([run_collector(), "neuron_device", f"sysfs_root={root}", f"device_directory={devices.directory}", "timeout=60s"],
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
    """AWS's guide to security gives the devices to a group, 0660; capabilities do not make up for that."""
    need("setpriv")
    os.chmod(place(), 0o755)
    shutil.copy(run_collector(), os.path.join(place(), "collector"))
    os.makedirs(os.path.join(place(), "dev"))
    path = os.path.join(place(), "dev", "neuron0")
    with open(path, "wb"):
        os.chown(path, 0, 4711)
    for mode, remedy in ((0o660, "SupplementaryGroups=4711"), (0o600, "only its owner")):
        os.chmod(path, mode)
        done = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--", os.path.join(place(), "collector"), "neuron_device",
                               f"sysfs_root={place()}", f"device_directory={place()}/dev"], capture_output=True, text=True, timeout=60, check=False)
        end = [r for r in map(json.loads, done.stdout.splitlines()) if "state" in r]
        assert len(end) == 1 and end[0]["state"] == "failed", done
        assert "EACCES" in end[0]["detail"] and remedy in end[0]["detail"] and ("drop-in" in end[0]["detail"]) == (mode == 0o660), end


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
    ends = collect("neuron_device", f"sysfs_root={place()}", f"device_directory={place()}/dev").ends()
    assert ends["neuron0"]["state"] == "failed" and "ELOOP" in ends["neuron0"]["detail"]
    assert ends["neuron1"]["state"] == "failed"


if __name__ == "__main__":
    sys.exit(main(cleanup))
