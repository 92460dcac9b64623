#!/usr/bin/env python3
"""The collector neuron_sysfs over trees of all architectures and over those that a sick or hostile
driver would show (tests/harness/neuron_sysfs.py)."""
import ctypes
import os
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import neuron_sysfs  # noqa: E402
from agent import is_instrumented, need, slowness  # noqa: E402
from neuron_devices import Devices, cleanup, collect, place, run_collector  # noqa: E402
from tap import Late, figures, in_time, main, plain_test, test  # noqa: E402

IN_OPEN, IN_MODIFY, IN_CLOSE_WRITE = 0x20, 0x02, 0x08


def tree(**kwargs):
    root = os.path.join(place(), "sys")
    made = neuron_sysfs.tree(root, **kwargs)
    return root, made


def walk(root, *arguments):
    return collect("neuron_sysfs", f"sysfs_root={root}", *arguments)


def files_of(base):
    """What a walk has to find: all regular files but `reset`, as (path, text)."""
    found = {}
    for directory, _, names in os.walk(base):
        for name in names:
            path = os.path.join(directory, name)
            if name != "reset" and not os.path.islink(path):
                with open(path, encoding="ascii") as f:
                    text = f.read()
                found[os.path.relpath(path, base)] = text[:-1] if text.endswith("\n") else text
    return found


class Watch:
    """inotify on files, through the C library: what was done to them."""

    def __init__(self, paths, mask):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self.libc.inotify_init1(os.O_NONBLOCK)
        self.paths = {self.libc.inotify_add_watch(self.fd, p.encode(), mask): p for p in paths}
        assert min(self.paths) > 0, "inotify_add_watch"

    def events(self):
        try:
            data = os.read(self.fd, 1 << 20)
        except BlockingIOError:
            data = b""
        found, at = [], 0
        while at < len(data):
            watch, mask, _, size = struct.unpack_from("iIII", data, at)
            found.append((self.paths[watch], mask))
            at += 16 + size
        os.close(self.fd)
        return found


@test
def every_file_of_every_architecture_is_read_as_it_is():
    for kind, driver in (("v2", "2.25.4.0"), ("v3", "2.28.0.0"), ("v4", "2.30.2.0")):
        root, made = tree(kind=kind, devices=2, driver=driver)
        result = walk(root)
        values = result.values()
        for number, base in enumerate(made):
            mine = {path: value for (device, path),
                    value in values.items() if device == f"neuron{number}"}
            assert mine == files_of(base), set(mine.items()) ^ set(files_of(base).items())
            assert result.ends()[f"neuron{number}"]["files"] == len(mine)
        assert {e["state"] for e in result.ends().values()} == {"complete"}
        cleanup()


@plain_test
def a_node_of_16_devices_with_8_cores_costs_little_and_is_complete():
    root, made = tree(devices=16)
    walk(root)     # the file system's cache is not what is measured
    runs = [walk(root) for _ in range(3)]
    result = min(runs, key=lambda r: r.figures["cpu_usec"])
    figures.append(f"neuron_sysfs: {len(result.values())} files, "
                   f"{result.figures['cpu_usec'] / 1000:.0f} ms of CPU, "
                   f"{result.figures['used_bytes']} bytes")
    assert len([e for e in result.ends().values() if e["state"] == "complete"]) == 16 == len(made)
    assert len(result.values()) == sum(len(files_of(base)) for base in made) > 13000
    assert result.figures["used_bytes"] < 4 << 20 and not result.figures["cut"]
    if not is_instrumented():
        assert result.figures["cpu_usec"] <= 250_000, result.figures


@test
def reset_is_never_opened_and_nothing_is_opened_for_writing():
    need("strace")
    root, made = tree(devices=2)
    reorganised = os.path.join(place(), "new")
    made += neuron_sysfs.reorganised(reorganised)
    resets = [os.path.join(d, "reset") for base in made for d, _,
              names in os.walk(base) if "reset" in names]
    assert len(resets) == 4
    watch = Watch(resets, IN_OPEN)
    for where in (root, reorganised):
        trace = os.path.join(place(), "trace")
        subprocess.run(["strace", "-f", "-o", trace, "-e",
                        "trace=open,openat,openat2,creat,truncate,ftruncate", run_collector(),
                        "neuron_sysfs",
                        f"sysfs_root={where}"], check=True, capture_output=True, timeout=60,
                       # which does not work below strace
                       env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"})
        with open(trace, encoding="utf-8") as f:
            lines = f.readlines()
        mine = [line for line in lines if "O_NOFOLLOW" in line or "RESOLVE_NO_SYMLINKS" in line]
        assert len(mine) > 60, "the files are seen to be opened"
        bad = [line for line in lines if any(w in line
                                             for w in ("O_WRONLY", "O_RDWR", "O_TRUNC", "O_CREAT",
                                                       "truncate(")) and "/dev/null" not in line]
        assert not bad, bad
        assert not [line for line in lines if '"reset"' in line or '/reset"' in line]
    assert not watch.events(), "somebody opened reset"


@test
def no_counter_is_written():
    root, made = tree(devices=1)
    paths = [os.path.join(d, n) for d, _, names in os.walk(made[0]) for n in names
             if not os.path.islink(os.path.join(d, n))]
    watch = Watch(paths, IN_MODIFY | IN_CLOSE_WRITE)
    before = files_of(made[0])
    assert walk(root).ends()["neuron0"]["state"] == "complete"
    assert not watch.events() and files_of(made[0]) == before


@test
def what_matters_is_found_by_name_in_the_old_tree():
    root, _ = tree(devices=2, ultraserver="1,2,4")
    result = walk(root)
    summary = result.ends()["neuron1"]["summary"]
    assert summary["serial_number"] == "19fcda00f5ff6e01" and summary["core_count"] == "8"
    assert summary["instance_type"] == "Trn2" and summary["device_name"] == "Trainium2" and summary[
        "connected_devices"] == "12, 3, 4, 1"
    assert summary["arch_type"] == "NDv3", "the device's, not a core's"
    assert summary["unhealthy_components"] == "hbm,link_efa"
    assert summary["measures"]["stats/hardware/mem_ecc_uncorrected"] == "1"
    assert summary["measures"]["stats/hardware/health_status/healthcheck_heartbeat"] == "17"
    driver = [r["driver"] for r in result.records if "driver" in r]
    assert driver == [{"version": "2.30.2.0",
                       "parameters": {"no_reset": "0", "nmetric_log_posts": "1"}}], driver
    assert [r["machine"] for r in result.records if "machine" in r] == [
        {"instance_id": "i-0123456789abcdef0", "instance_type": "trn2.48xlarge"}]
    assert result.values()[("class", "ultraserver_mode")] == "1,2,4" and result.values()[
        ("class", "node_id_4")] == "busy"


@test
def what_matters_is_found_by_name_in_a_reorganised_tree():
    root = os.path.join(place(), "sys")
    made = neuron_sysfs.reorganised(root)
    result = walk(root)
    summary = result.ends()["neuron1"]["summary"]
    assert summary["serial_number"] == "19fcda00f5ff6e01" and summary[
        "core_count"] == "8" and summary["unhealthy_components"] == "sram"
    assert summary["device_name"] == "Trainium2" and summary["measures"][
        "health/hbm/ecc_uncorrected/total"] == "6"
    mine = {path: value for (device, path), value in result.values().items() if device == "neuron1"}
    assert mine == files_of(made[1])


def fifteen_others_are_complete(result, hung, path):
    ends = result.ends()
    assert ends[hung]["state"] == "timeout" and path in ends[hung]["detail"], ends[hung]
    others = [e for name, e in ends.items() if name != hung]
    if any(e["state"] == "timeout" for e in others):
        raise Late(f"others than {hung} have not ended in time: {others}")
    assert len(others) == 15 and all(e["state"] == "complete" for e in others), others


@test
def one_hanging_device_leaves_fifteen_complete_and_all_but_what_hung():
    """The file that hangs is one of a file system whose server does not answer: mounted over the
    directory of the sick device's ECC counters."""
    devices = Devices(count=1)
    root, made = tree(devices=16)
    devices.control("0 open-attached hang")
    sick = os.path.join(made[5], "stats", "hardware")
    shutil.rmtree(sick)
    os.mkdir(sick)
    subprocess.run(["mount", "--bind", devices.directory, sick], check=True)
    try:
        result = walk(root, "timeout=2s")
    finally:
        subprocess.run(["umount", "-l", sick], check=True)
    fifteen_others_are_complete(result, "neuron5", "stats/hardware/neuron0")
    in_time(result.seconds, 2.5 * slowness())
    assert result.ends()["neuron5"]["summary"][
        "serial_number"] == "19fcda00f5ff6e05", "what was known before it hung"
    mine = {path for device, path in result.values() if device == "neuron5"}
    assert mine == set(files_of(made[5])), "the sick counters are read last"


@test
def an_ecc_file_that_hangs_is_read_last_wherever_it_lies():
    """Nothing else in its path tells that the hardware is asked."""
    devices = Devices(count=1)
    root = os.path.join(place(), "sys")
    made = neuron_sysfs.reorganised(root, devices=2)
    devices.control("0 open-attached hang")
    sick = os.path.join(made[0], "aaa", "ecc_uncorrected")
    os.makedirs(sick)
    subprocess.run(["mount", "--bind", devices.directory, sick], check=True)
    try:
        result = walk(root, "timeout=2s")
    finally:
        subprocess.run(["umount", "-l", sick], check=True)
    end = result.ends()["neuron0"]
    assert end["state"] == "timeout" and "aaa/ecc_uncorrected/neuron0" in end["detail"], end
    mine = {path for device, path in result.values() if device == "neuron0"}
    ours = {path for path in files_of(made[0]) if not any(word in path
                                                          for word in ("ecc", "health"))}
    assert ours <= mine and end["summary"]["serial_number"] == "19fcda00f5ff6e00", ours - mine
    assert result.ends()["neuron1"]["state"] == "complete"


@test
def a_directory_that_hangs_is_the_timeout_of_its_device_only():
    devices = Devices(count=1)
    root, made = tree(devices=16)
    os.mkdir(os.path.join(made[3], "stats", "stuck"))
    devices.control("0 open-attached hang")
    subprocess.run(["mount", "--bind", devices.directory, os.path.join(made[3], "stats", "stuck")],
                   check=True)
    try:
        result = walk(root, "timeout=1s")
    finally:
        subprocess.run(["umount", "-l", os.path.join(made[3], "stats", "stuck")], check=True)
    fifteen_others_are_complete(result, "neuron3", "stats/stuck/neuron0")


@test
def links_fifos_and_triggers_are_left_alone():
    root, made = tree(devices=1)
    secret = os.path.join(place(), "secret")
    neuron_sysfs.put(secret, "planted\n")
    os.symlink(secret, os.path.join(made[0], "info", "link"))
    os.symlink(place(), os.path.join(made[0], "info", "directory"))
    os.symlink("/", os.path.join(made[0], "neuron_core99"))
    os.mkfifo(os.path.join(made[0], "info", "fifo"))
    os.mkfifo(os.path.join(made[0], "stats", "hardware", "fifo_ecc"))
    neuron_sysfs.put(os.path.join(made[0], "info", "trigger"), "planted\n", 0o200)
    os.symlink(made[0], os.path.join(root, "devices", "virtual", "neuron_device", "neuron7"))
    result = walk(root)
    assert "planted" not in result.text and list(result.ends()) == ["neuron0"]
    assert result.ends()["neuron0"]["state"] == "complete"
    in_time(result.seconds, 2.5 * slowness())


@test
def a_long_file_is_cut_and_marked_as_cut():
    root, made = tree(devices=1)
    neuron_sysfs.put(os.path.join(made[0], "info", "long"), "x" * 100_000)
    neuron_sysfs.put(os.path.join(made[0], "info", "page"), "y" * 4096)
    result = walk(root)
    values = result.values()
    assert (len(values[("neuron0", "info/long")]) == 4096
            and values[("neuron0", "info/page")] == "y" * 4096)
    assert [r["cut"] for r in result.records if "cut" in r] == [["long"]]
    assert result.ends()["neuron0"]["state"] == "cut" and "4096" in result.ends()["neuron0"][
        "detail"]


@test
def depth_is_bounded():
    root, made = tree(devices=1)
    directory = made[0]
    for i in range(12):
        directory = os.path.join(directory, f"d{i}")
        neuron_sysfs.put(os.path.join(directory, "value"), f"{i}\n")
    result = walk(root)
    depths = [path.count("/") for device, path in result.values() if "/d0/" in f"/{path}"]
    assert max(depths) == 8 and "deeper than 8" in result.ends()["neuron0"]["detail"]


@test
def the_files_of_a_device_are_bounded():
    root, made = tree(devices=2)
    for i in range(5000):
        neuron_sysfs.put(os.path.join(made[0], "new_metric_1", f"f{i}"), "1\n")
    result = walk(root)
    ends = result.ends()
    assert ends["neuron0"]["state"] == "cut" and 3488 < ends["neuron0"][
        "files"] <= 4000 and "4000" in ends["neuron0"]["detail"]
    assert ends["neuron0"]["summary"]["measures"][
        "stats/hardware/mem_ecc_uncorrected"] == "0", "what matters most has its room"
    assert ends["neuron1"]["state"] == "complete"


@test
def the_files_of_all_devices_are_bounded():
    root, made = tree(devices=7)
    for base in made:
        for i in range(3100):
            neuron_sysfs.put(os.path.join(base, "new_metric_1", f"f{i}"), "1\n")
    result = walk(root)
    assert 19_900 <= len([1 for device, _ in result.values() if device != "class"]) <= 20_000
    assert any("20000" in e.get("detail", "") for e in result.ends().values())


@test
def one_device_with_much_output_does_not_use_the_others_room():
    root, made = tree(devices=4)
    for i in range(900):
        neuron_sysfs.put(os.path.join(made[2], "new_metric_1", f"f{i}"), "z" * 4000)
    result = walk(root, "max_bytes=1MiB")
    ends = result.ends()
    assert ends["neuron2"]["state"] == "cut" and "share" in ends["neuron2"]["detail"]
    assert all(ends[f"neuron{i}"]["state"] == "complete" for i in (0, 1, 3)), ends
    assert ends["neuron2"]["summary"]["device_name"] == "Trainium2" and ends["neuron2"]["summary"][
        "measures"]["stats/hardware/mem_ecc_uncorrected"] == "2"


@test
def a_file_that_cannot_be_read_is_labelled():
    """A device file of the emulator that fails stands in for one whose show function does."""
    devices = Devices(count=1)
    root, made = tree(devices=1)
    devices.control("0 open-attached errno 5")
    os.mkdir(os.path.join(made[0], "sick"))
    subprocess.run(["mount", "--bind", devices.directory, os.path.join(made[0], "sick")],
                   check=True)
    try:
        result = walk(root)
    finally:
        subprocess.run(["umount", "-l", os.path.join(made[0], "sick")], check=True)
    assert [r["errors"] for r in result.records if "errors"
            in r] == [{"neuron0": "EIO: Input/output error"}]
    assert result.ends()["neuron0"]["state"] == "complete" and result.ends()["neuron0"][
        "unreadable"] == 1


@test
def values_that_are_no_text_and_secrets_become_valid_json():
    root, made = tree(devices=1)
    with open(os.path.join(made[0], "info", "binary"), "wb") as f:
        f.write(bytes(range(256)))
    neuron_sysfs.put(os.path.join(root, "module", "neuron", "parameters", "odd"),
                     "api_key=AKIAIOSFODNN7EXAMPLE more\n")
    result = walk(root)       # parses each record
    assert ("neuron0", "info/binary") in result.values()
    assert "AKIAIOSFODNN7EXAMPLE" not in result.text


@test
def two_snapshots_of_one_tree_differ_only_in_what_changed():
    root, made = tree(devices=1)
    before = walk(root).values()
    neuron_sysfs.put(os.path.join(made[0], "neuron_core0", "stats", "status", "oob_error",
                                  "total"), "77\n")
    after = walk(root).values()
    assert before.keys() == after.keys()
    assert {k for k in before
            if before[k] != after[k]} == {("neuron0", "neuron_core0/stats/status/oob_error/total")}


@test
def a_machine_without_the_driver_is_reported_as_such():
    result = walk(place())
    assert any("no device" in r.get("error", "") for r in result.records)
    assert any("no module" in r.get("driver", {}).get("error", "") for r in result.records)


@test
def names_that_are_no_device_are_not_walked():
    root, _ = tree(devices=1)
    for name in ("neuron64", "neuron-1", "neuron", "neuronx", "other0"):
        neuron_sysfs.put(os.path.join(root, "devices", "virtual", "neuron_device", name, "value"),
                         "1\n")
    assert list(walk(root).ends()) == ["neuron0"]


if __name__ == "__main__":
    sys.exit(main(cleanup))
