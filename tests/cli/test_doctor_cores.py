#!/usr/bin/env python3
"""neuron-collect doctor: what kernel.core_pattern and RLIMIT_CORE do with the cores of jobs. The
pattern of this machine is read and never written: others are those of a proc root made of files."""
import os
import re
import resource
import signal
import subprocess
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
# pylint: disable=wrong-import-position
from cli_test import CLI, Skip, check_golden, main, run, session, test

from agent import Agent, cleanup, clean_environment

APPORT = "|/usr/share/apport/apport -p%p -s%s -c%c -d%d -P%P -u%u -g%g -F%F -- %E"
LIMITS = """Limit                     Soft Limit           Hard Limit           Units     
Max stack size            8388608              unlimited            bytes
Max core file size        {:<20} {:<20} bytes
"""


class Node(Agent):
    """An agent's configuration on a node whose /proc and devices are files."""

    def __init__(self, pattern=None, uses_pid="0"):
        super().__init__()
        os.makedirs(self.path("dev"))
        self.put("dev/neuron0", "")
        self.config["snapshot"] = {"device_directory": self.path("dev")}
        if pattern is not None:
            self.config["snapshot"]["proc_root"] = self.path("proc")
            self.put("proc/sys/kernel/core_pattern", pattern + "\n")
            self.put("proc/sys/kernel/core_uses_pid", uses_pid + "\n")

    def put(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)

    def runs(self, pid, comm, soft, hard="unlimited", device=True):
        self.put(f"proc/{pid}/stat", f"{pid} ({comm}) S 1 {pid} {pid} 0 -1 4194304 1 2 3 4 5 6 7 8 "
                 "20 0 3 0 77 1000 200 18446744073709551615\n")
        self.put(f"proc/{pid}/limits", LIMITS.format(soft, hard))
        os.makedirs(self.path(f"proc/{pid}/fd"))
        os.symlink(self.path("dev/neuron0") if device else "/dev/null",
                   self.path(f"proc/{pid}/fd/5"))

    def doctor(self):
        self.write_config()
        return run(CLI, "--config", self.config_file, "doctor",
                   env=clean_environment(HOME="/nonexistent", AWS_EC2_METADATA_DISABLED="true"))

    def cores(self):
        """[(state, text)] of what it says of cores."""
        result = self.doctor()
        assert result.returncode == 0, result
        return re.findall(r"(?m)^(ok|warning|FAILED) +process cores: (.*)$", result.stdout)


@test
def apport_and_jobs_without_a_limit_are_reported_with_what_to_write():
    a = Node(APPORT)
    a.runs(4711, "python3", "0")
    a.runs(4712, "python3", "unlimited")
    result = a.doctor()
    result.stdout = "".join(line + "\n" for line in result.stdout.splitlines()
                            if "process cores:" in line)
    check_golden("doctor-cores", session(["doctor"], result, [(a.dir, "DIR")]))


@test
def what_it_says_to_write_ends_the_warnings():
    a = Node("core")
    a.runs(4711, "python3", "unlimited")
    assert a.cores()[0][0] == "warning", a.cores()
    a.config["sources"].append(a.source("cores", "process-core", "cores"))
    remedy = a.cores()[0][1]
    pattern, install = re.search(r"'kernel.core_pattern=(.*?)'.*`(install [^`]*)`", remedy).groups()
    assert os.path.dirname(pattern) == a.path("cores"), remedy
    a.put("proc/sys/kernel/core_pattern", pattern + "\n")
    states = [state for state, _ in a.cores()]
    assert states == ["ok", "warning", "ok"], ("the directory is missing", a.cores())
    subprocess.run(install.split(), check=True)
    found = a.cores()
    assert [state for state, _ in found] == ["ok", "ok"], found
    assert "covered by source cores" in found[0][1] and "unlimited in 1 of 1" in found[1][1], found


@test
def without_a_job_the_services_that_start_jobs_are_looked_at():
    a = Node("|/bin/sh %c")
    a.runs(1, "systemd", "0", device=False)
    assert "is not known" in a.cores()[1][1], a.cores()
    a.runs(700, "slurmd", "0", hard="0", device=False)
    state, text = a.cores()[1]
    assert state == "warning" and "services that start jobs: unlimited in 0 of 1; 'slurmd' (pid " \
        "700) has 0 B, at most 0 B" in text and "limits.conf" in text, text
    a.runs(4711, "python3", "unlimited")
    assert "hold a Neuron device: unlimited in 1 of 1" in a.cores()[1][1], a.cores()


@test
def a_kernel_setting_that_is_not_there_or_hostile_costs_nothing():
    a = Node("core")
    os.unlink(a.path("proc/sys/kernel/core_pattern"))
    assert not a.cores()
    a.put("proc/sys/kernel/core_pattern", "|/x\x1b[2J\u009b %c\n")
    a.runs(9, "sshd\x1b[2J", "0")
    text = a.doctor().stdout
    assert r"|/x\x1b[2J" in text and "\x1b" not in text and "\u009b" not in text, text


def crash(a, limit):
    """A process that holds the device and crashes when doctor has looked.
    @return (what doctor says of the limit, the files it left)"""
    place = a.path(f"work-{limit}")
    os.mkdir(place)
    with open(a.path("dev/neuron0"), "rb") as device:
        process = subprocess.Popen(
            ["sleep", "600"], cwd=place, pass_fds=[device.fileno()], preexec_fn=lambda: (
                resource.setrlimit(resource.RLIMIT_CORE,
                                   (limit, resource.getrlimit(resource.RLIMIT_CORE)[1]))))
    with process:
        try:
            said = a.cores()
            assert any(f"(pid {process.pid})" in text for _, text in said) == (limit == 0), said
        finally:
            process.send_signal(signal.SIGABRT)
    return said, os.listdir(place)


@test
def the_kernel_does_what_doctor_says():
    with open("/proc/sys/kernel/core_pattern", encoding="utf-8") as f:
        pattern = f.read().strip()
    if not pattern or pattern[0] in "/|@":
        raise Skip("kernel.core_pattern names no plain file")
    if resource.getrlimit(resource.RLIMIT_CORE)[1] != resource.RLIM_INFINITY:
        raise Skip("the hard limit of RLIMIT_CORE is not unlimited")
    a = Node()
    said, left = crash(a, 0)
    assert "working directory" in said[0][1] and said[-1][0] == "warning" and not left, (said, left)
    said, left = crash(a, resource.RLIM_INFINITY)
    assert said[-1] == ("ok", "RLIMIT_CORE of processes that hold a Neuron device: unlimited in 1 "
                        "of 1") and len(left) == 1, (said, left)


if __name__ == "__main__":
    sys.exit(main(cleanup))
