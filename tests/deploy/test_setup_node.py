#!/usr/bin/env python3
"""deploy/slurm/setup-node in boxes that look like ParallelCluster's, HyperPod's and plain nodes: a
second run changes nothing, and head nodes are left alone. The aws command and the metadata service
are stand-ins."""
import hashlib
import http.server
import json
import os
import shlex
import sys
import threading

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../harness"))
from packages import (SRCDIR, Box, dependencies, package, root_of_boxes, run,  # noqa: E402
                      this_release)
from tap import main, test  # noqa: E402

CONFIG = """version: 1
node: {instance_id: i-0a1b2c3d4e5f60718}
sources:
  - {name: core-dumps, kind: neuron-core-dump, path: /var/lib/neuron-dumps/job-%l-dt-%d-cid-%c}
destinations:
  - {name: archive, type: volume, path: /srv/archive/%d-%c, durable: true, min_free: 0}
"""
# Fetches from a directory that stands for a bucket, and writes down what else it is told.
AWS = """#!/bin/sh
case $1 in
s3) cp /srv/bucket/"${4##*/}" "$5" ;;
*) echo "$@" >>/root/aws.log ;;
esac
"""
PACKAGES = ("s3://bucket/agent.deb", "s3://bucket/hook.deb")
_boxes = []


def cleanup(failed):  # pylint: disable=unused-argument
    while _boxes:
        _boxes.pop().remove()


def box():
    b = Box(root_of_boxes(this_release(), *dependencies(package("neuron-collectd")), "curl",
                          "hostname", "python3-minimal", "libpython3-stdlib", "apt"))
    _boxes.append(b)
    os.makedirs(b.path("/srv/bucket"))
    os.makedirs(b.path("/srv/archive"))
    os.chmod(b.path("/srv/archive"), 0o777)
    for name, file in (("neuron-collectd", "agent.deb"), ("neuron-collectd-hook", "hook.deb")):
        run("cp", package(name), b.path("/srv/bucket/" + file))
    b.write("/srv/bucket/node.yaml", CONFIG)
    b.write("/usr/local/bin/aws", AWS, 0o755)
    with open(os.path.join(SRCDIR, "deploy/slurm/setup-node"), encoding="utf-8") as f:
        b.write("/opt/setup-node", f.read(), 0o755)
    return b


def setup(b, *more):
    arguments = [a for p in PACKAGES for a in ("--package", p)]
    return b.shell("cd /opt && ./setup-node " + " ".join(
        ["--config", "s3://bucket/node.yaml", *arguments, *more]))


def fails(b):
    """@return what it says"""
    text = b.shell("cd /opt; if ./setup-node --config s3://bucket/node.yaml; then echo DONE; fi",
                   check=False)
    assert "DONE" not in text, text
    return text


def everything(b):
    """Files with their times and content, packages, and processes of the agent."""
    left_out = " -o ".join(f"-path {p}" for p in (
        "/proc", "/sys", "/run", "/dev", "/tmp", "/var/log", "/var/lib/neuron-collectd"))
    return b.shell(f"find / -xdev \\( {left_out} \\) -prune -o "
                   "-printf '%p %m %u %s %T@ %i\\n' | sort; dpkg-query -W; "
                   "systemctl show -p MainPID,ExecMainStartTimestampMonotonic,NRestarts "
                   "neuron-collectd; systemctl list-unit-files --no-legend 'neuron*' | sort")


def leave(b, job, dumps="/var/lib/neuron-dumps"):
    """What a job of another user leaves is delivered."""
    n = len(delivered(b))
    b.shell(f"setpriv --reuid 1000 --clear-groups sh -c 'mkdir {dumps}/"
            f"job-{job}-dt-20260527-051233-cid-d99e36ea74c263ca && cd {dumps}/job-{job}-* && "
            "echo x >i-0a1b2c3d4e5f60718-nrt-pid-1.log'")
    b.shell("neuron-collect flush && neuron-collect wait --all --timeout 60s")
    assert len(delivered(b)) == n + 1


def delivered(b):
    return b.run("find", "/srv/archive", "-name", "*.manifest.json").split()


def assert_works(b, *more):
    """It delivers after the first run, and the second run changes nothing."""
    setup(b, *more)
    assert b.run("systemctl", "is-active", "neuron-collectd").strip() == "active"
    assert b.run("systemctl", "is-enabled", "neuron-collectd").strip() == "enabled"
    assert b.run("stat", "-c", "%a %U", "/var/lib/neuron-dumps").strip() == "1777 root"
    before = everything(b)
    setup(b, *more)
    assert everything(b) == before, "the second run has changed something"
    leave(b, 7)


def assert_left_alone(b):
    before = everything(b)
    assert "left alone" in setup(b)
    assert everything(b) == before


@test
def a_plain_node_delivers_and_a_second_run_changes_nothing():
    b = box()
    assert_works(b)
    assert b.run("id", "-u", "neuron-collectd").strip() == "733"
    pid = b.run("systemctl", "show", "-p", "MainPID", "neuron-collectd")
    b.write("/srv/bucket/node.yaml", CONFIG + "log: {level: debug}\n")
    setup(b)
    assert "level: debug" in b.read("/etc/neuron-collectd/neuron-collectd.yaml")
    assert b.run("systemctl", "show", "-p", "MainPID", "neuron-collectd") == pid, "it was no reload"


@test
def parallelclusters_compute_nodes_are_set_up_and_others_left_alone():
    b = box()
    for role in ("HeadNode", "LoginNode"):
        b.write("/etc/parallelcluster/cfnconfig", f"cfn_region=us-east-1\ncfn_node_type={role}\n")
        assert_left_alone(b)
    b.write("/etc/parallelcluster/cfnconfig", "cfn_node_type=ComputeFleet\n")
    assert_works(b, "--uid", "4733")
    assert b.run("id", "-u", "neuron-collectd").strip() == "4733"


@test
def hyperpods_workers_are_set_up_and_others_left_alone():
    b = box()
    address = b.run("hostname", "-I").split()[0]
    b.write("/opt/provisioning_parameters.json", json.dumps(
        {"workload_manager": "slurm", "controller_group": "head", "login_group": "doors"}))
    for group in ("head", "doors", "workers"):
        b.write("/opt/ml/config/resource_config.json", json.dumps({"InstanceGroups": [
            {"Name": "elsewhere", "Instances": [{"CustomerIpAddress": "192.0.2.1"}]},
            {"Name": group, "Instances": [{"CustomerIpAddress": address}]}]}))
        if group != "workers":
            assert_left_alone(b)
    assert_works(b)
    b.write("/opt/ml/config/resource_config.json", json.dumps({"InstanceGroups": [
        {"Name": "elsewhere", "Instances": [{"CustomerIpAddress": "192.0.2.1"}]}]}))
    assert "no instance group" in fails(b)


@test
def a_faulty_configuration_is_an_error_and_the_old_one_stays():
    b = box()
    setup(b)
    b.write("/srv/bucket/node.yaml", CONFIG + "no_such_key: 1\n")
    before = everything(b)
    assert "no_such_key" in fails(b)
    assert b.read("/etc/neuron-collectd/neuron-collectd.yaml") == CONFIG
    assert everything(b) == before
    os.unlink(b.path("/srv/bucket/node.yaml"))
    before = everything(b)
    fails(b)
    assert everything(b) == before


@test
def a_package_of_another_digest_is_refused_before_anything_is_installed():
    b = box()
    digests = []
    for file in ("agent.deb", "hook.deb"):
        with open(b.path("/srv/bucket/" + file), "rb") as f:
            digests.append(hashlib.sha256(f.read()).hexdigest())
    command = ("cd /opt && ./setup-node --config s3://bucket/node.yaml "
               "--package s3://bucket/agent.deb"
               " --sha256 {} --package s3://bucket/hook.deb --sha256 {}")
    before = everything(b)
    for faulty in ([digests[0], digests[0]], digests[::-1], [digests[0], "x"]):
        text = b.shell(f"! {{ {command.format(*faulty)}; }}")
        assert "checksum" in text, text
        assert everything(b) == before, faulty
    b.shell("! /opt/setup-node --sha256 x --config x")
    assert "--sha256" in b.shell(f"! {{ {command.format(digests[0], chr(39) * 2)}; }}")
    assert everything(b) == before
    b.shell(command.format(*digests))
    assert b.run("systemctl", "is-active", "neuron-collectd").strip() == "active"


@test
def what_a_failed_run_has_placed_is_applied_by_the_next():
    b = box()
    setup(b)
    dumps = "/srv/dumps"
    config = CONFIG.replace("/var/lib/neuron-dumps", dumps)
    b.write("/srv/bucket/node.yaml", config + "nonsense: 1\n")
    before = everything(b)
    arguments = f"--config s3://bucket/node.yaml --dumps {dumps}"
    assert "nonsense" in b.shell(f"! /opt/setup-node {arguments}")
    assert everything(b) == before
    # It is interrupted when its files are there.
    b.write("/srv/bucket/node.yaml", config)
    b.write("/usr/local/bin/systemctl",
            "#!/bin/sh\n[ $1 = show ] || exit 1\nexec /usr/bin/systemctl \"$@\"\n", 0o755)
    b.shell(f"! /opt/setup-node {arguments}")
    os.unlink(b.path("/usr/local/bin/systemctl"))
    b.shell(f"/opt/setup-node {arguments}")
    before = everything(b)
    b.shell(f"/opt/setup-node {arguments}")
    assert everything(b) == before
    leave(b, 7, dumps)


@test
def the_directory_of_dumps_is_never_what_a_symlink_names():
    b = box()
    setup(b)
    b.shell("mkdir -m 1777 /srv/scratch; mkdir -m 700 /srv/secret; setpriv --reuid 1000 "
            "--clear-groups ln -s /srv/secret /srv/scratch/dumps")
    b.shell("! /opt/setup-node --config s3://bucket/node.yaml --dumps /srv/scratch/dumps")
    assert b.run("stat", "-c", "%a", "/srv/secret").strip() == "700"
    assert "symlink" in b.shell("journalctl -u neuron-collectd")
    b.shell("rm /srv/scratch/dumps; setpriv --reuid 1000 --clear-groups mkdir /srv/scratch/dumps; "
            "/opt/setup-node --config s3://bucket/node.yaml --dumps /srv/scratch/dumps/")
    assert b.run("stat", "-c", "%a %U", "/srv/scratch/dumps").strip() == "1777 root"


@test
def a_hook_and_a_group_of_any_name_reach_the_command():
    b = box()
    hook, group = "drain/1", 'all "trn" 100%s $HOME of \\n'
    setup(b, "--lifecycle-hook", shlex.quote(hook), "--group", shlex.quote(group))
    pid = b.run("systemctl", "show", "-P", "MainPID", "neuron-collectd-termination").strip()
    told = b.shell(f"tr '\\0' '\\n' </proc/{pid}/cmdline").splitlines()
    assert told[-2:] == [hook, group], told
    # another one counts at once, and without the option none does
    setup(b, "--lifecycle-hook", "other", "--group", shlex.quote(group))
    other = b.run("systemctl", "show", "-P", "MainPID", "neuron-collectd-termination").strip()
    assert b.shell(f"tr '\\0' '\\n' </proc/{other}/cmdline").splitlines()[-2:] == ["other", group]
    before = everything(b)
    setup(b, "--lifecycle-hook", "other", "--group", shlex.quote(group))
    assert everything(b) == before
    setup(b)
    assert "termination" not in b.run("systemctl", "list-units", "--all", "--no-legend", "neuron*")
    assert not b.run("find", "/etc/systemd", "-name", "*termination*").strip()
    before = everything(b)
    setup(b)
    assert everything(b) == before


@test
def a_url_with_a_query_names_its_file():
    """As a presigned one of S3; the query may have slashes."""
    b = box()
    b.write("/usr/local/bin/curl", """#!/bin/sh
echo "$@" >>/root/curl.log
while [ "$1" != -o ]; do shift; done
name=${3##*bucket/}
cp "/srv/bucket/${name%%[?]*}" "$2"
""", 0o755)
    query = "?X-Amz-Credential=AKIA/20261128/us-east-1/s3/aws4_request&X-Amz-Signature=0a"
    b.shell(f"cd /opt && ./setup-node --config 'https://bucket/node.yaml{query}' "
            f"--package 'https://bucket/agent.deb{query}'")
    assert b.run("systemctl", "is-active", "neuron-collectd").strip() == "active"
    for line in b.read("/root/curl.log").splitlines():
        for option in ("--connect-timeout", "--speed-limit", "--speed-time"):
            assert option in line, line


@test
def a_package_that_an_interruption_left_half_installed_is_completed():
    b = box()
    b.shell("dpkg --unpack /srv/bucket/agent.deb; : >/var/lib/dpkg/updates/0001; "
            "apt-get install curl 2>&1 | grep 'dpkg was interrupted'")
    setup(b)
    assert b.run("dpkg-query", "-W", "-f", "${db:Status-Status}", "neuron-collectd") == "installed"


@test
def an_older_package_takes_the_place_of_a_newer():
    b = box()
    setup(b)
    b.shell("cd /root && dpkg-deb -R /srv/bucket/hook.deb x && "
            "sed -i 's/^Version: .*/Version: 0.0.1/' x/DEBIAN/control && "
            "dpkg-deb -b x /srv/bucket/hook.deb && rm -r x")
    setup(b)
    version = b.run("dpkg-query", "-W", "-f", "${Version}", "neuron-collectd-hook")
    assert version == "0.0.1", version


@test
def the_configuration_is_checked_with_the_services_variables():
    b = box()
    b.write("/srv/bucket/node.yaml", CONFIG.replace("/srv/archive/%d-%c", '"${ARCHIVE}/%d-%c"'))
    assert "ARCHIVE" in fails_after_packages(b)
    b.write("/etc/default/neuron-collectd", "ARCHIVE=/elsewhere\n")
    b.write("/etc/neuron-collectd/environment", "# of the service\nARCHIVE='/srv/archive'\n", 0o600)
    assert_works(b)


def fails_after_packages(b):
    return b.shell("cd /opt; ! ./setup-node --config s3://bucket/node.yaml "
                   "--package s3://bucket/agent.deb")


# As dlami-nvme.service of Deep Learning AMIs: a volume that no mount unit names.
LATE_SERVICE = """[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=sleep 3
ExecStart=mkdir -p /opt/dlami/nvme
ExecStart=mount -t tmpfs volume /opt/dlami/nvme
[Install]
WantedBy=multi-user.target
"""
LATE_MOUNT = """[Unit]
DefaultDependencies=no
Requires=late.service
After=late.service
[Mount]
What=volume
Where=/opt/dlami/nvme
Type=tmpfs
[Install]
WantedBy=multi-user.target
"""
LATE = "[Service]\nType=oneshot\nExecStart=sleep 3\n"


def assert_late_volume(*units):
    """The agent waits for it, at the boot in which it is set up and at the next, when the volume is
    empty."""
    b = box()
    dumps = "/opt/dlami/nvme/neuron-dumps"
    b.write("/srv/bucket/node.yaml", CONFIG.replace("/var/lib/neuron-dumps", dumps))
    for name, text in units:
        b.write("/etc/systemd/system/" + name, text)
    b.shell(f"systemctl daemon-reload; systemctl enable -q {units[0][0]}; "
            f"systemctl start --no-block {units[0][0]}")
    setup(b, "--dumps", dumps)
    assert_on_volume(b, 7, dumps)
    b.reboot()
    assert_on_volume(b, 8, dumps)


def assert_on_volume(b, job, dumps):
    assert b.run("findmnt", "-n", "-o", "SOURCE", "-T", dumps).strip() == "volume"
    leave(b, job, dumps)


@test
def a_volume_that_a_service_mounts_late_is_waited_for():
    assert_late_volume(("dlami-nvme.service", LATE_SERVICE))


@test
def a_mount_unit_that_starts_late_is_waited_for():
    assert_late_volume(("opt-dlami-nvme.mount", LATE_MOUNT), ("late.service", LATE))


# What apt-get says on a machine that does not know the packages yet, and what it is told.
APT_GET = """#!/bin/sh
echo "$@" >>/root/apt.log
case $* in
*update*) touch /root/known ;;
*) [ -e /root/known ] && exec /usr/bin/apt-get "$@" || exit 100 ;;
esac
"""


@test
def a_package_is_installed_beside_the_systems_own_updates():
    b = box()
    b.write("/usr/local/bin/apt-get", APT_GET, 0o755)
    b.shell("python3 -c 'import fcntl, time; f = open(\"/var/lib/dpkg/lock-frontend\", \"w\"); "
            "fcntl.lockf(f, fcntl.LOCK_EX); open(\"/root/locked\", \"w\"); time.sleep(10)' "
            ">/dev/null 2>&1 & until [ -e /root/locked ]; do sleep 0.1; done")
    text = setup(b)
    assert "Waiting for cache lock" in text, text
    told = [line.split()[-2:] for line in b.read("/root/apt.log").splitlines()]
    assert [t[0] if t[1] != "update" else "update" for t in told] == [
        "install", "update", "install", "install"], told


class Metadata(http.server.BaseHTTPRequestHandler):
    """IMDSv2 of an instance in an Auto Scaling group."""
    state = "InService"

    def log_message(self, format, *args):  # pylint: disable=redefined-builtin
        pass

    def answer(self, text):
        self.send_response(200 if text else 404)
        self.send_header("Content-Length", str(len(text or "")))
        self.end_headers()
        self.wfile.write((text or "").encode())

    def do_PUT(self):  # pylint: disable=invalid-name
        self.answer("token" if self.path == "/latest/api/token" else None)

    def do_GET(self):  # pylint: disable=invalid-name
        if self.headers["X-aws-ec2-metadata-token"] != "token":
            return self.answer(None)
        return self.answer({
            "/latest/meta-data/autoscaling/target-lifecycle-state": Metadata.state,
            "/latest/meta-data/instance-id": "i-0a1b2c3d4e5f60718",
            "/latest/meta-data/placement/region": "eu-north-1"}.get(self.path))


@test
def auto_scaling_gets_its_word_when_all_is_delivered():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        b = box()
        b.write("/etc/systemd/system/neuron-collectd-termination.service.d/test.conf",
                "[Service]\nEnvironment=AWS_EC2_METADATA_SERVICE_ENDPOINT="
                f"http://127.0.0.1:{server.server_port}\n")
        assert_works(b, "--lifecycle-hook", "drain", "--group", "trn")
        # The store is away: nothing is said.
        b.shell("mkdir /srv/hidden && mv /srv/archive /srv/hidden/; cd /var/lib/neuron-dumps; "
                "mkdir job-8-dt-20260527-051233-cid-aa && cd job-8-* && echo x >a.log")
        Metadata.state = "Terminated"
        b.shell("for i in $(seq 300); do neuron-collect status | grep -q -i drain && exit; "
                "sleep 0.1; done; exit 1")
        assert "complete" not in b.shell("cat /root/aws.log 2>/dev/null || :")
        b.shell("mv /srv/hidden/archive /srv/archive; for i in $(seq 600); do "
                "[ -s /root/aws.log ] && exit; sleep 0.1; done; exit 1")
        assert b.read("/root/aws.log").split() == [
            "autoscaling", "complete-lifecycle-action", "--lifecycle-action-result", "CONTINUE",
            "--lifecycle-hook-name", "drain", "--auto-scaling-group-name", "trn", "--instance-id",
            "i-0a1b2c3d4e5f60718", "--region", "eu-north-1"], b.read("/root/aws.log")
        assert len(b.run("find", "/srv/archive", "-name", "*.manifest.json").split()) == 2
    finally:
        Metadata.state = "InService"
        server.shutdown()


if __name__ == "__main__":
    sys.exit(main(cleanup))
