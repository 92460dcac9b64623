"""Trees as the Neuron driver shows them in sysfs, below a directory of the test's own.

Names and forms are those of the reference (drivers 2.25.4 to 2.30.2). The tree of driver 2.31 is
not public: `reorganised` is an invention that keeps the names of files and moves everything else,
which is all that is known of it. A plain file system shows sysfs' names, modes and contents; it
does not refuse writes, generate values or have its own idea of a file's size.

By hand: python3 neuron_sysfs.py DIRECTORY [v2|v3|v4] [DEVICES]
"""
import os
import sys

ARCHITECTURES = {
    "v2": {"cores": 2, "instance": "Trn1", "name": "Trainium1", "device": "NDv2", "core": "NCv2",
           "type": "trn1.32xlarge"},
    "v3": {"cores": 8, "instance": "Trn2", "name": "Trainium2", "device": "NDv3", "core": "NCv3",
           "type": "trn2.48xlarge"},
    "v4": {"cores": 8, "instance": "Trn3", "name": "Trainium3", "device": "NDv4", "core": "NCv4",
           "type": "trn3s.48xlarge"},
}
STATUS = """
success failure timeout exec_bad_input hw_error execute_completed_with_error
execute_completed_with_num_error generic_error resource_error resource_nc_error
execute_failed_to_queue invalid_error unsupported_neff_version oob_error hw_collectives_error
hw_hbm_ue_error hw_nc_ue_error hw_dma_abort_error execute_sw_nq_overflow
execute_sw_semaphore_error execute_sw_event_error execute_sw_psum_collision
execute_sw_sequencer_fatal hw_repairable_hbm_ue_error
""".split()
DEVICE_MEMORY = """
model_code tensors constants model_shared_scratchpad runtime_memory driver_memory collectives
nonshared_scratchpad notifications dma_rings uncategorized
""".split()
HOST_MEMORY = """
dma_buffers tensors constants application_memory driver_memory notifications dma_rings
uncategorized
""".split()
OTHER = """
model_load_count reset_req_count reset_fail_count inference_count flop_count nc_time_in_use
""".split()


def put(path, text, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as f:
        f.write(text)
    os.chmod(path, mode)


def version_of(driver):
    return tuple(int(n) for n in driver.split("."))


def counter(directory, names, value=0):
    for name in names:
        put(os.path.join(directory, name), f"{value}\n")


def core(directory, architecture, number):
    put(f"{directory}/info/architecture/arch_type", architecture["core"] + "\n")
    for i, name in enumerate(STATUS):
        counter(f"{directory}/stats/status/{name}", ("total", "present"), i if number == 0 else 0)
    for where in ("host_mem", "device_mem"):
        counter(f"{directory}/stats/memory_usage/{where}", ("total", "present", "peak"), 1 << 30)
    for name in DEVICE_MEMORY:
        counter(f"{directory}/stats/memory_usage/device_mem/{name}", ("total", "present", "peak"),
                123456789)
    for name in OTHER:
        counter(f"{directory}/stats/other_info/{name}", ("total", "present"))
    if architecture["cores"] == 8:
        put(f"{directory}/stats/tensor_engine/pe_cntrs", "0 0 0 0\n")


def device(root, number, architecture, driver, devices):
    base = f"{root}/devices/virtual/neuron_device/neuron{number}"
    mode = 0o444 if version_of(driver) >= (2, 28) else 0o400
    put(f"{base}/dev", f"246:{number}\n", 0o444)
    put(f"{base}/uevent", f"MAJOR=246\nMINOR={number}\nDEVNAME=neuron{number}\n")
    put(f"{base}/power/control", "auto\n")
    put(f"{base}/core_count", str(architecture["cores"]), mode)
    put(f"{base}/connected_devices", "12, 3, 4, 1\n" if devices > 1 else "", mode)
    put(f"{base}/reset", "1", 0o600)
    put(f"{base}/info/notify_delay", "-1\n")
    put(f"{base}/info/serial_number", f"{0x19fcda00f5ff6e00 + number:016x}\n")
    put(f"{base}/info/architecture/arch_type", architecture["device"] + "\n")
    put(f"{base}/info/architecture/instance_type", architecture["instance"] + "\n")
    put(f"{base}/info/architecture/device_name", architecture["name"] + "\n")
    for name in ("sram_ecc_uncorrected", "mem_ecc_uncorrected", "mem_ecc_repairable_uncorrected"):
        put(f"{base}/stats/hardware/{name}", f"{number}\n")
    if version_of(driver) >= (2, 28):
        put(f"{base}/stats/hardware/health_status/hbm_ecc_err_count", "0\n")
        put(f"{base}/stats/hardware/health_status/hw_error_event", "0\n")
    if version_of(driver) >= (2, 29):
        put(f"{base}/stats/power/utilization_raw", "POWER_STATUS_VALID,1748323295,1,2,1\n")
    if version_of(driver) >= (2, 30, 2):
        put(f"{base}/stats/hardware/health_status/unhealthy_components",
            "hbm,link_efa\n" if number == 1 else "\n")
        put(f"{base}/stats/hardware/health_status/healthcheck_heartbeat", "17\n")
        put(f"{base}/stats/hardware/sram_ecc_corrected", "3\n")
        put(f"{base}/stats/hardware/mem_ecc_corrected", "4\n")
    for name in HOST_MEMORY:
        counter(f"{base}/stats/memory_usage/host_mem/{name}", ("total", "present", "peak"), 4096)
    put(f"{base}/stats/power/utilization", "POWER_STATUS_VALID,1748323295,10,30,20\n")
    for i in range(architecture["cores"]):
        core(f"{base}/neuron_core{i}", architecture, i)
    os.symlink("../../../../class/neuron_device", f"{base}/subsystem")
    os.makedirs(f"{root}/class/neuron_device", exist_ok=True)
    os.symlink(f"../../devices/virtual/neuron_device/neuron{number}",
               f"{root}/class/neuron_device/neuron{number}")
    return base


def machine(root, instance_type="trn2.48xlarge", driver="2.30.2.0"):
    put(f"{root}/devices/virtual/dmi/id/board_asset_tag", "i-0123456789abcdef0\n", 0o444)
    put(f"{root}/devices/virtual/dmi/id/product_name", instance_type + "\n", 0o444)
    if driver:
        put(f"{root}/module/neuron/version", driver + "\n", 0o444)
        put(f"{root}/module/neuron/parameters/nmetric_log_posts", "1\n", 0o444)
        put(f"{root}/module/neuron/parameters/no_reset", "0\n", 0o444)


def tree(root, kind="v3", devices=16, driver="2.30.2.0", ultraserver=None):
    """@param ultraserver  e.g. "1,2,4": the class attributes of such nodes  @return the devices'
    directories"""
    architecture = ARCHITECTURES[kind]
    machine(root, architecture["type"], driver)
    made = [device(root, i, architecture, driver, devices) for i in range(devices)]
    if ultraserver is not None:
        put(f"{root}/class/neuron_device/ultraserver_mode", ultraserver + "\n", 0o444)
        put(f"{root}/class/neuron_device/server_id_4", "00000000deadbeef\n", 0o444)
        put(f"{root}/class/neuron_device/node_id_4", "busy\n", 0o444)
    return made


def reorganised(root, devices=2, driver="2.31.7.0"):
    """Names of files kept, everything moved."""
    machine(root, "trn2.48xlarge", driver)
    made = []
    for i in range(devices):
        base = f"{root}/devices/virtual/neuron_device/neuron{i}"
        put(f"{base}/identity/serial_number", f"{0x19fcda00f5ff6e00 + i:016x}\n")
        put(f"{base}/identity/device_name", "Trainium2\n")
        put(f"{base}/identity/instance_type", "Trn2\n")
        put(f"{base}/topology/core_count", "8")
        put(f"{base}/topology/connected_devices", "1\n")
        put(f"{base}/health/components/unhealthy_components", "sram\n")
        for part in ("hbm", "sram"):
            put(f"{base}/health/{part}/ecc_uncorrected/total", f"{i + 5}\n")
        for j in range(8):
            put(f"{base}/cores/{j}/identity/arch_type", "NCv3\n")
            put(f"{base}/cores/{j}/execution/oob_error/total", "2\n")
        put(f"{base}/control/reset", "1", 0o600)
        made.append(base)
    return made


if __name__ == "__main__":
    tree(sys.argv[1], *(sys.argv[2:3] or ["v3"]), devices=int((sys.argv[3:4] or ["16"])[0]))
