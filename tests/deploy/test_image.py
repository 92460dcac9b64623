#!/usr/bin/env python3
"""The image: what is in it, and the agent in a container of it."""
import filecmp
import glob
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../harness"))
import make_dump  # noqa: E402
from agent import wait_for  # noqa: E402
from image import build, image, layers, load, podman, scratch, unpack  # noqa: E402
from packages import package, run  # noqa: E402
from tap import figures, in_time, main, test  # noqa: E402

MIB = 2**20
CAPABILITIES = {"cap_dac_read_search", "cap_fowner", "cap_lease"}
CONFIG = f"""
version: 1
node: {{instance_id: {make_dump.DEFAULT_INSTANCE}}}
sources:
  - {{name: core-dumps, kind: neuron-core-dump, path: /dumps/dt-%d-cid-%c, settle: 1s}}
destinations:
  - {{name: volume, type: volume, path: /archive/%d-%c}}
"""


def files(root):
    for top, _, names in os.walk(root):
        for name in names:
            path = os.path.join(top, name)
            yield "/" + os.path.relpath(path, root), os.lstat(path)


@test
def it_is_small():
    manifest, tars = layers(image())
    n_bytes = sum(info.size for tar in tars for info in tar)
    n_gzipped = sum(layer["size"] for layer in manifest["layers"])
    figures.append(f"image: {n_bytes / MIB:.1f} MiB, {n_gzipped / 1e6:.1f} MB gzipped")
    assert n_bytes <= 90 * MIB and n_gzipped <= 35e6


@test
def two_builds_are_the_same_bytes():
    later = dict(os.environ, TZ="Pacific/Auckland", LC_ALL="C",
                 TMPDIR=tempfile.mkdtemp(dir=scratch()))
    again = build("again.tar", shutil.copy(package("neuron-collectd"), scratch()), env=later,
                  cwd="/", umask=0o077)
    assert filecmp.cmp(image(), again, shallow=False)


@test
def its_only_programs_are_ours():
    root = unpack(image())
    programs = {path for path, st in files(root) if stat.S_ISREG(st.st_mode) and st.st_mode & 0o111}
    ours = {"/usr/sbin/neuron-collectd", "/usr/bin/neuron-collect",
            "/usr/libexec/neuron-collectd/neuron-dump"}
    # the loader and the C library can be executed, and so print what they are
    rest = {p for p in programs - ours
            if not re.fullmatch(r"/usr/lib/(\S+/)?(ld-linux|libc)\S*", p)}
    assert ours <= programs and not rest, rest
    for path, st in files(root):
        if stat.S_ISREG(st.st_mode):
            with open(root + path, "rb") as f:
                assert f.read(2) != b"#!", path
            assert not st.st_mode & 0o6000, path


@test
def every_library_that_is_wanted_is_there():
    root = unpack(image())
    wanted, there = set(), set()
    for path, st in files(root):
        there.add(os.path.basename(path))
        if stat.S_ISREG(st.st_mode) and "/zoneinfo/" not in path:
            found = subprocess.run(["readelf", "-d", root + path], check=False, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
            wanted |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", found))
    assert len(wanted) > 40 and not wanted - there, wanted - there


@test
def scanners_see_debians_packages_and_whose_licences_they_have():
    root = unpack(image())
    known = dict(line.split() for line in run(
        "dpkg-query", f"--admindir={root}/var/lib/dpkg", "-W",
        "-f=${Package} ${Version}\n").splitlines())
    assert {"neuron-collectd", "libc6", "libssl3", "libcurl4", "ca-certificates",
            "tzdata"} <= set(known) or {"libssl3t64", "libcurl4t64"} <= set(known), known
    assert not {"openssl", "dpkg", "apt", "bash", "dash", "perl-base", "systemd"} & set(known)
    for name in known:
        assert os.path.lexists(f"{root}/usr/share/doc/{name}"), name
    with open(f"{root}/etc/os-release", encoding="utf-8") as f:
        assert "ID=debian" in f.read().splitlines()


@test
def certificates_and_time_zones_are_there():
    root = unpack(image())
    found = run("openssl", "storeutl", "-noout", "-certs",
                f"{root}/etc/ssl/certs/ca-certificates.crt")
    assert int(re.search(r"Total found: (\d+)", found)[1]) > 100, found
    zone = dict(os.environ, TZ=f":{root}/usr/share/zoneinfo/Asia/Tokyo")
    assert run("date", "-d", "@0", "+%H %Z", env=zone).strip() == "09 JST"


class Agent:
    """The agent in a container as the DaemonSet describes it, without a network."""
    places = {"etc": "/etc/neuron-collectd", "run": "/run/neuron-collectd",
              "state": "/var/lib/neuron-collectd", "dumps": "/dumps", "archive": "/archive"}

    def __init__(self):
        self.top = tempfile.mkdtemp(dir=scratch())
        for name in self.places:
            os.makedirs(self.path(name))
        os.chmod(self.path("dumps"), 0o1777)
        with open(self.path("etc", "neuron-collectd.yaml"), "w", encoding="utf-8") as f:
            f.write(CONFIG)
        name = load(image())
        self.id = podman(
            "create", "--network=none", "--read-only", "--read-only-tmpfs=false", "--cap-drop=all",
            *(f"--cap-add={c}" for c in sorted(CAPABILITIES)), "--security-opt=no-new-privileges",
            *(f"--volume={self.path(here)}:{there}" for here, there in self.places.items()),
            name).split()[-1]
        begun = time.monotonic()
        podman("start", self.id)
        wait_for("it is healthy", self.is_healthy)
        self.ready_seconds = time.monotonic() - begun
        self.pid = int(podman("inspect", "-f", "{{.State.Pid}}", self.id))

    def path(self, *parts):
        return os.path.join(self.top, *parts)

    def is_healthy(self):
        return subprocess.run(["curl", "-sf", "--unix-socket", self.path("run", "api.sock"),
                               "http://agent/healthz"], stdout=subprocess.DEVNULL,
                              check=False).returncode == 0

    def proc(self, name):
        with open(f"/proc/{self.pid}/{name}", encoding="utf-8") as f:
            return f.read()

    def remove(self):
        podman("rm", "--force", self.id)


def mask(names):
    with open("/usr/include/linux/capability.h", encoding="utf-8") as f:
        numbers = dict(re.findall(r"#define (CAP_\w+)\s+(\d+)", f.read()))
    return sum(1 << int(numbers[name.upper()]) for name in names)


@test
def it_is_ready_within_two_seconds():
    agent = Agent()
    figures.append(f"ready in {agent.ready_seconds:.2f} s")
    agent.remove()
    in_time(agent.ready_seconds, 2, "the start of the container")


@test
def a_dump_of_another_user_is_delivered_with_three_capabilities_and_no_write_elsewhere():
    agent = Agent()
    make_dump.make_dump(agent.path("dumps"), size=MIB, owner=(1000, 1000), mode=0o600)
    try:
        wait_for("the bundle is there", lambda: glob.glob(
            agent.path("archive", "**/*.manifest.json"), recursive=True), 30)
    finally:
        podman("logs", agent.id)
    status = dict(line.split(":\t") for line in agent.proc("status").splitlines())
    for name in ("CapPrm", "CapEff", "CapBnd"):
        assert int(status[name], 16) == mask(CAPABILITIES), (name, status[name])
    assert int(status["CapAmb"], 16) == 0
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2", status
    devices = {name for name in os.listdir(f"/proc/{agent.pid}/root/dev")
               if stat.S_ISCHR(os.stat(f"/proc/{agent.pid}/root/dev/{name}").st_mode)}
    assert devices <= {"null", "zero", "full", "tty", "random", "urandom", "ptmx", "console",
                       "stdin", "stdout", "stderr"}, devices
    mounts = [line.split() for line in agent.proc("mountinfo").splitlines()]
    assert [m for m in mounts if m[4] == "/" and m[5].split(",")[0] == "ro"], mounts
    assert {m[4] for m in mounts} >= set(agent.places.values())
    # nothing but what the runtime made to mount on
    assert {line.split()[1] for line in podman("diff", agent.id).splitlines()} <= {
        "/etc", *agent.places.values()}
    agent.remove()


@test
def it_has_a_command_line_and_no_shell():
    agent = Agent()
    assert "core-dumps" in podman("exec", agent.id, "neuron-collect", "status")
    assert "no such file" in podman("exec", agent.id, "/bin/sh", "-c", "true", check=False)
    podman("stop", "--time=20", agent.id)
    assert podman("inspect", "-f", "{{.State.ExitCode}}", agent.id).strip() == "0"
    agent.remove()


if __name__ == "__main__":
    sys.exit(main())
