#!/usr/bin/env python3
"""neuron-collect doctor: what is wrong with the runtime's hook, its socket and mailbox, and with
what a snapshot needs; each with its remedy."""
import json
import os
import socket
import subprocess
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
# pylint: disable=wrong-import-position
from cli_test import CLI, CannedApi, golden_api, main, run, test

from agent import clean_environment, need_root
from hook_place import ASIDE, NAME, NEWER, Place, program


class Sick(Place):
    def __init__(self, **more):
        super().__init__(**more)
        self.sysfs = os.path.join(self.top, "sys")
        os.makedirs(self.sysfs + "/module/neuron")
        self.options = []
        for name in ("out", "mailbox"):
            os.mkdir(os.path.join(self.top, name))
        os.chmod(self.top + "/mailbox", 0o1733)
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.server.bind(self.top + "/hook.sock")
        self.server.listen(64)
        os.chmod(self.top + "/hook.sock", 0o666)
        with open(self.config, encoding="ascii") as f:
            self.text = f.read()

    def __exit__(self, *_):
        self.server.close()
        super().__exit__()

    def driver(self, version):
        with open(self.sysfs + "/module/neuron/version", "w", encoding="ascii") as f:
            f.write(version + "\n")

    def findings(self, snapshot=""):
        with open(self.config, "w", encoding="ascii") as f:
            f.write(self.text + f"snapshot: {{sysfs_root: "
                                f"{self.sysfs}{snapshot}}}\nstate_directory: {self.top}/state\n"
                    f"api: {{socket: {self.top}/api.sock}}\nnode: {{instance_id: "
                    f"i-0a1b2c3d4e5f60718}}\n")
        result = run(CLI, "--config", self.config, "--json", *self.options, "doctor",
                     "--hook-directory", self.dir, env=clean_environment(HOME="/nonexistent"))
        found = json.loads(result.stdout)["findings"]
        assert result.returncode == (1 if any(f["state"] == "FAILED" for f in found) else 0), result
        return [f for f in found if f["what"].startswith(("hook", "snapshot"))]

    def reports(self, what, state, text, remedy="", **more):
        found = self.findings(**more)
        fitting = [f for f in found if f["what"] == what and f["state"] == state
                   and text in f["detail"] and remedy in (f["remedy"] or "")]
        assert len(fitting) == 1, (what, state, text, found)


@test
def a_hook_of_ours_with_all_that_it_needs_is_well():
    with Sick() as p:
        p.good("install")
        p.chain(ASIDE)
        p.put(program(), p.ours)
        found = p.findings()
        # what is installed for real on this machine may be another one, or none
        assert [f["what"] for f in found] == ["hook", "hook socket", "hook mailbox",
                                              "snapshot"], found
        assert "is ours, version 9.8.7" in found[0]["detail"] or "is ours, version 9.8.7, but" in found[0][
            "detail"], found


@test
def each_state_of_the_hook_has_its_remedy():
    with Sick() as p:
        p.reports("hook", "warning", "is not ours: dumps are only found by watching",
                  "neuron-collect hook install")
        p.good("install")
        p.chain(ASIDE)
        p.put(NEWER)
        p.reports("hook", "FAILED", "a package upgrade has replaced", "neuron-collect hook install")
        os.unlink(p.path())
        p.reports("hook", "FAILED", "or removed it", "neuron-collect hook install")
        os.mkdir(p.path())
        p.reports("hook", "FAILED", "no longer ours", "neuron-collect hook install")
        os.rmdir(p.path())
        p.good("install")
        os.chmod(p.path(), 0o700)
        p.reports("hook", "FAILED", "cannot be executed by every user",
                  "neuron-collect hook install")
        p.good("install")
        os.chmod(p.path("neuron-dump.vendor"), 0o600)
        p.reports("hook", "FAILED", "the chained hook 'neuron-dump.vendor' cannot be executed",
                  "remove neuron-dump.chain")
        p.chain(NAME)
        p.reports("hook", "FAILED", "is neuron-collectd's own hook", "remove neuron-dump.chain")
    with Sick(vendor=None) as p:
        p.reports("hook", "warning", "without it the runtime writes no core dumps",
                  "neuron-collect hook install")
        os.mkdir(p.path())
        p.reports("hook", "FAILED", "cannot be used", "move it away")


@test
def a_socket_or_mailbox_that_jobs_cannot_use_is_found():
    with Sick() as p:
        p.good("install")
        os.chmod(p.top + "/hook.sock", 0o660)
        p.reports("hook socket", "FAILED", "has mode 0660", "chmod 0666")
        os.chmod(p.top + "/hook.sock", 0o666)
        p.reports("hook socket", "ok", "accepts notes from every user")
        p.server.close()
        p.reports("hook socket", "warning", "Connection refused; they wait in the mailbox",
                  "start the agent")
        os.unlink(p.top + "/hook.sock")
        p.reports("hook socket", "warning", "No such file", "start the agent")
        p.reports("hook mailbox", "ok", "accepts notes while the agent does not run")
        os.chmod(p.top + "/mailbox", 0o755)
        p.reports("hook mailbox", "FAILED", "jobs cannot leave notes there", "chmod 1733")
        os.chmod(p.top + "/mailbox", 0o777)
        p.reports("hook mailbox", "FAILED", "read or remove each other's notes", "chmod 1733")
        os.chmod(p.top + "/mailbox", 0o1733)
        os.chmod(p.top, 0o700)
        p.reports("hook mailbox", "FAILED", "jobs cannot reach", "o+x")
        os.rmdir(p.top + "/mailbox")
        p.reports("hook mailbox", "warning", "notes are lost", "systemd-tmpfiles")


@test
def the_driver_and_whether_snapshots_are_on_are_shown():
    with Sick() as p:
        p.reports("snapshot", "ok", "no Neuron driver is loaded here")
        p.driver("2.26.4.9")
        p.reports("snapshot", "ok", "the Neuron driver is 2.26.4.9")
        p.reports("snapshot", "warning", "is switched off", "snapshot.enabled",
                  snapshot=", enabled: false")


@test
def an_agent_without_the_rights_for_a_snapshot_needs_the_unit_that_has_them():
    need_root()
    status = golden_api("status")[1]
    with Sick() as p, subprocess.Popen(["sleep", "60"], user=65534, group=65534,
                                       extra_groups=[]) as process:
        try:
            status["agent"]["pid"] = process.pid
            with CannedApi({"GET /v1/status": status}) as api:
                p.options = ["--socket", api.path]
                p.reports("snapshot", "warning", f"there is no '{p.top}/probe.sock'",
                          "enable --now neuron-collectd-probe.socket")
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
                    s.bind(p.top + "/probe.sock")
                    s.listen()
                    p.reports("snapshot", "ok", f"'{p.top}/probe.sock' exists")
                    s.setblocking(False)
                    try:
                        raise AssertionError(f"doctor has connected: {s.accept()}")
                    except BlockingIOError:
                        pass
                p.reports("snapshot", "warning", f"no process listens on '{p.top}/probe.sock'",
                          "restart neuron-collectd-probe.socket")
                os.unlink(p.top + "/probe.sock")
                status["agent"]["pid"] = os.getpid()  # one that runs as root needs none
                assert not [f for f in p.findings() if "probe.sock" in f["detail"]]
        finally:
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
