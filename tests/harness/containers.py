"""Real container runtimes for tests, each with everything of its own below a temporary directory:
no registry, no network, no daemon of the machine's.

A runtime starts a container of a small root directory that has the hook, tells what its own list
says of it (`known()`), and removes it by force. What detaches itself (shims, conmon, rootless
Podman's pause process) becomes a child of this process, which ends it by its number. Root's Podman
keeps an empty /run/runc, and in /var/lib/containers/cache what it knows of layers: there is no
other place for them.
"""
import ctypes
import glob
import hashlib
import io
import json
import os
import secrets
import shutil
import subprocess
import tarfile
import tempfile
import time

from agent import CLI, PATIENCE, clean_environment, need, need_root, run, wait_for
from tap import Skip

USER = 4711  # of jobs that are not root, and of rootless Podman
PR_SET_CHILD_SUBREAPER = 36
GROUP = f"neuron-e2e-{os.getpid()}"  # below it are all control groups of ours, in each hierarchy
UNIFIED = "/sys/fs/cgroup/unified"   # where version 2 is mounted on a machine that has both
NAMESPACES = ("pid", "ipc", "uts", "mount")
CAPABILITIES = ["CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"]  # runc spec's
KERNEL_MOUNTS = [{"destination": "/proc", "type": "proc", "source": "proc"},
                 {"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                  "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]},
                 {"destination": "/sys", "type": "sysfs", "source": "sysfs",
                  "options": ["nosuid", "noexec", "nodev", "ro"]}]

_running = []


class Job:
    """What is to run: `command` with `environment` as `user`; `mounts` are (directory here,
    directory there, "ro" or "rw")."""

    def __init__(self, command, user=0, mounts=(), environment=None):
        self.command, self.user, self.mounts, self.environment = (command, user, mounts,
                                                                  environment or {})


def libraries_of(program):
    return [word for word in run("ldd", program).stdout.split() if word.startswith("/")]


def make_root(where, hook):
    """A root directory with a shell and the hook, the latter where docs/HOOK.md says, with
    libraries unless they are static."""
    for name in ("bin", "dev", "etc", "go", "opt/aws/neuron/bin", "proc", "run/neuron-collectd",
                 "sys", "tmp", "var/lib/neuron-collectd/mailbox", "var/neuron-dumps"):
        os.makedirs(os.path.join(where, name))
    for name in ("tmp", "var/neuron-dumps"):
        os.chmod(os.path.join(where, name), 0o1777)
    programs = {name: shutil.which(name) for name in ("sh", "head", "mkdir", "mv", "sleep")}
    for name, program in programs.items():
        shutil.copy(program, os.path.join(where, "bin", name))
    for library in {library for program in (hook, *programs.values())
                    for library in libraries_of(program)}:
        os.makedirs(where + os.path.dirname(library), exist_ok=True)
        shutil.copy(library, where + library)
    done = run(CLI, "hook", "install", "--to", os.path.join(where, "opt/aws/neuron/bin"), "--from",
               hook)
    assert done.returncode == 0, done
    return where


class Runtime:
    name = None
    uid = {0: 0, USER: USER}  # users inside, and what they are outside
    does_name = True          # the control groups of its containers have its identifiers
    has_run = False           # a container: what fails after that is no reason to skip

    def __init__(self, hook):
        need_root()
        self.dir = tempfile.mkdtemp(prefix="neuron-runtime.")
        os.chmod(self.dir, 0o755)
        self.containers = []
        self.process = None  # its daemon
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        _running.append(self)
        self.set_up(make_root(self.path("root"), hook))

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def do(self, *command, **options):
        done = run(*command, timeout=60, env=clean_environment(), **options)
        if done.returncode != 0:
            self.give_up(str(done.stderr or done.stdout or f"exit status {done.returncode}"))
        return done.stdout

    def list(self, *command):
        """As do(), again where it fails: it may, while a container comes or goes."""
        for _ in range(20):
            done = run(*command, timeout=60, env=clean_environment())
            if done.returncode == 0:
                return done.stdout
            time.sleep(0.1)
        return self.do(*command)

    def give_up(self, why):
        raise (AssertionError if type(self).has_run
               else Skip)(f"{self.name} cannot run here: {why.strip()[-200:]}")

    def start(self, job, **more):
        """@return the identifier that the runtime gave it"""
        container = self.run(job, **more)
        self.containers.append(container)
        type(self).has_run = True
        return container

    def remove(self, container):
        self.containers.remove(container)
        self.take_away(container)

    def stop(self):
        if self.process:
            self.process.terminate()
            self.process.wait(30 * PATIENCE)


class Runc(Runtime):
    """As Docker's daemon uses it: a bundle, its own overlay in a mount namespace that goes with it,
    and Docker's control group."""
    name = "runc"

    def set_up(self, root):
        need("runc", "unshare")
        self.root = root
        self.processes = {}

    def run(self, job, container=None, group="docker/", first_uid=0):
        """@param group  what comes before its identifier in the path of its control group
        @param first_uid  what root inside is outside, others following; not 0: in a user
            namespace"""
        container = container or secrets.token_hex(32)
        bundle = self.path("bundle-" + container)
        os.mkdir(bundle)
        capabilities = {kind: [] if job.user else CAPABILITIES
                        for kind in ("bounding", "effective", "permitted")}
        spec = {"ociVersion": "1.0.2", "root": {"path": os.path.join(bundle, "layers", "merged")},
                "process": {"user": {"uid": job.user, "gid": job.user}, "args": job.command,
                            "cwd": "/", "noNewPrivileges": True, "capabilities": capabilities,
                            "env": ["PATH=/bin"] + [f"{k}={v}" for k,
                                                    v in job.environment.items()]},
                "mounts": KERNEL_MOUNTS + [{"destination": there, "type": "bind", "source": here,
                                            "options": ["rbind", how]}
                                           for here, there, how in job.mounts],
                "linux": {"namespaces": [{"type": kind} for kind in NAMESPACES],
                          "cgroupsPath": f"/{GROUP}/{group}{container}"}}
        if first_uid:
            # which is its network namespace's owner's to mount
            spec["mounts"] = [m for m in spec["mounts"] if m["type"] != "sysfs"]
            spec["linux"]["namespaces"].append({"type": "user"})
            spec["linux"] |= {kind: [{"containerID": 0, "hostID": first_uid, "size": 65536}]
                              for kind in ("uidMappings", "gidMappings")}
        with open(os.path.join(bundle, "config.json"), "w", encoding="utf-8") as f:
            json.dump(spec, f)
        layers = ('mkdir layers; mount -t tmpfs none layers; cd layers; mkdir upper work merged; '
                  'mount -t overlay -o lowerdir="$1",upperdir=upper,workdir=work none merged; '
                  'cd ..; shift; exec "$@"')
        with open(os.path.join(bundle, "said"), "wb") as said:
            self.processes[container] = subprocess.Popen(
                ["unshare", "--mount", "sh", "-ec", layers, "sh", self.root, "runc", "--root",
                 self.path("state"), "run", container], cwd=bundle, stdin=subprocess.DEVNULL,
                stdout=said, stderr=said)
        wait_for(f"{self.name} has started it",
                 lambda: self.processes[container].poll() is not None or container in self.known())
        if self.processes[container].poll():
            with open(os.path.join(bundle, "said"), encoding="utf-8", errors="replace") as f:
                self.give_up(f.read())
        return container

    def known(self):
        listed = json.loads(self.list("runc", "--root", self.path("state"), "list", "--format",
                                      "json")) or []
        return {c["id"]: c["pid"] for c in listed if c["status"] == "running"}

    def take_away(self, container):
        run("runc", "--root", self.path("state"), "delete", "--force", container)
        self.processes.pop(container).wait(30 * PATIENCE)


def add_to(archive, name, content):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


class Containerd(Runtime):
    """With its overlayfs snapshotter and runc, as Kubernetes has it; driven by ctr."""
    name = "containerd"

    def set_up(self, root):
        need("containerd", "ctr", "runc")
        config = (f'version = 2\nroot = "{self.path("data")}"\nstate = "{self.path("state")}"\n'
                  'disabled_plugins = ["io.containerd.grpc.v1.cri", '
                  '"io.containerd.internal.v1.opt"]\n'
                  f'[grpc]\naddress = "{self.path("sock")}"\n[ttrpc]\naddress '
                  f'= "{self.path("sock.ttrpc")}"\n')
        with open(self.path("config.toml"), "w", encoding="utf-8") as f:
            f.write(config)
        # in /run are the sockets of its shims, wherever its state is
        with open(self.path("said"), "wb") as said:
            self.process = subprocess.Popen(["unshare", "--mount", "sh", "-ec",
                                             'mount -t tmpfs none /run; exec "$@"', "sh",
                                             "containerd", "--config", self.path("config.toml")],
                                             stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        wait_for("containerd answers", lambda: run(*self.ctr(), "version").returncode == 0
                 or self.process.poll() is not None)
        self.import_image(self.do("tar", "-C", root, "--owner=0", "--group=0", "-c", ".",
                                  text=False))

    def ctr(self):
        return ("ctr", "--address", self.path("sock"), "--namespace", GROUP)

    def import_image(self, layer):
        """One layer, and an image for each user, which ctr has no option for."""
        digest = "sha256:" + hashlib.sha256(layer).hexdigest()
        manifest = []
        with tarfile.open(self.path("image.tar"), "w") as archive:
            add_to(archive, "layer.tar", layer)
            for user in (0, USER):
                config = json.dumps({"architecture": "amd64" if os.uname().machine == "x86_64"
                                     else "arm64", "os": "linux",
                                     "config": {"User": f"{user}:{user}"},
                                     "rootfs": {"type": "layers", "diff_ids": [digest]}}).encode()
                add_to(archive, f"config-{user}.json", config)
                manifest.append({"Config": f"config-{user}.json",
                                 "RepoTags": [f"localhost/job:{user}"], "Layers": ["layer.tar"]})
            add_to(archive, "manifest.json", json.dumps(manifest).encode())
        self.do(*self.ctr(), "images", "import", self.path("image.tar"))

    def run(self, job):
        container = secrets.token_hex(32)
        mounts = [f"--mount=type=bind,src={here},dst={there},options=rbind:{how}" for here, there,
                  how in job.mounts]
        self.do(*self.ctr(), "run", "--detach", "--null-io", "--runc-root", self.path("runc"),
                "--cgroup", f"/{GROUP}/k8s.io/{container}",
                *mounts, *(f"--env={k}={v}" for k, v in job.environment.items()),
                f"localhost/job:{job.user}", container, *job.command)
        return container

    def known(self):
        lines = [line.split() for line in self.list(*self.ctr(), "tasks", "ls").splitlines()[1:]]
        return {container: int(pid) for container, pid, state in lines if state == "RUNNING"}

    def take_away(self, container):
        run(*self.ctr(), "tasks", "delete", "--force", container)
        run(*self.ctr(), "containers", "delete", container)


class Podman(Runtime):
    """As root, with runc."""
    name = "podman"
    oci_runtime = "runc"
    parent = ["--cgroup-parent", f"/{GROUP}/libpod_parent"]

    def set_up(self, root):
        need("podman", "conmon", self.oci_runtime)
        self.home()
        # Locks in shared memory would be those of each other podman of the machine.
        with open(self.path("containers.conf"), "w", encoding="utf-8") as f:
            f.write('[engine]\nlock_type = "file"\n')
        image = subprocess.Popen(["tar", "-C", root, "--owner=0", "--group=0", "-c", "."],
                                 stdout=subprocess.PIPE)
        done = subprocess.run([*self.podman(), "import", "--quiet", "-", "job:1"],
                              stdin=image.stdout, capture_output=True, text=True,
                              timeout=60 * PATIENCE, check=False)
        image.communicate()
        if done.returncode != 0:
            self.give_up(done.stderr)

    def home(self):
        for name in ("home", "xdg", "data"):
            os.mkdir(self.path(name), 0o700)

    def podman(self):
        return ("env", "--chdir=/",  # ours may be closed to its user
                f"HOME={self.path('home')}", f"XDG_RUNTIME_DIR={self.path('xdg')}",
                f"CONTAINERS_CONF={self.path('containers.conf')}", "podman", "--log-level", "error",
                "--root", self.path("data", "root"), "--runroot", self.path("data", "run"),
                "--tmpdir", self.path("data", "tmp"), "--cgroup-manager", "cgroupfs",
                "--events-backend", "file", "--storage-driver", "overlay", "--runtime",
                self.oci_runtime)

    def run(self, job):
        mounts = [f"--volume={here}:{there}:{how}" for here, there, how in job.mounts]
        # Its own limits need CAP_SYS_RESOURCE.
        said = self.do(*self.podman(), "run", "--detach", "--network=host",
                       "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", "--pids-limit=0",
                       *self.parent, f"--user={job.user}:{job.user}", *mounts,
                       *(f"--env={k}={v}" for k, v in job.environment.items()), "job:1",
                       *job.command)
        return said.split()[-1]

    def known(self):
        return {c["Id"]: c["Pid"] for c in json.loads(self.list(*self.podman(), "ps", "--no-trunc",
                                                                "--format", "json"))}

    def take_away(self, container):
        run(*self.podman(), "rm", "--force", "--time", "0", container)


class RootlessPodman(Podman):
    """As a user who has no ranges of users' numbers: root inside is that user outside. Without
    systemd it makes no control group."""
    name = "rootless podman"
    uid = {0: USER}
    does_name = False
    parent = []

    def home(self):
        super().home()
        for name in ("home", "xdg", "data"):
            os.chown(self.path(name), USER, USER)

    def podman(self):
        return ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups",
                *super().podman())


class RootlessCrun(RootlessPodman):
    """crun, which refuses a machine with both versions of control groups: it is shown one that has
    version 2 alone, with a group that is the user's."""
    name = "rootless podman with crun"
    oci_runtime = "crun"
    does_name = True
    parent = Podman.parent

    def home(self):
        super().home()
        self.unified = UNIFIED if os.path.exists(UNIFIED + "/cgroup.procs") else "/sys/fs/cgroup"
        own = os.path.join(self.unified, GROUP, "podman")
        try:
            os.makedirs(own)
        except OSError as error:
            self.give_up(f"no control group can be made: {error}")
        for group in (own, os.path.dirname(own)):
            for name in ("", "cgroup.procs", "cgroup.subtree_control"):
                os.chown(os.path.join(group, name), USER, USER)

    def podman(self):
        view = (f'echo 0 >"{self.unified}/{GROUP}/podman/cgroup.procs"; [ "{self.unified}" '
                f'= /sys/fs/cgroup ] || mount --bind "{self.unified}" /sys/fs/cgroup; ')
        return ("unshare", "--mount", "sh", "-ec", view + 'exec "$@"', "sh", *super().podman())


# ---- the end ----

def children():
    found = []
    for path in glob.glob("/proc/self/task/*/children"):
        with open(path, encoding="ascii") as f:
            found += map(int, f.read().split())
    return found


def end_strays():
    """What has become our child because its parent ended, until there is none."""
    while children():
        for pid in children():
            try:
                os.kill(pid, 9)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass


def unmount_below(directory):
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as f:
        mounted = [line.split()[1] for line in f]
    for where in reversed([m for m in mounted if m.startswith(directory + "/")]):
        run("umount", "--lazy", where)


def remove_groups():
    for base, _, _ in list(os.walk("/sys/fs/cgroup", topdown=False)):
        if f"/{GROUP}/" in base + "/":
            os.rmdir(base)


def end_all():
    """To be called when nothing else runs that this process has started."""
    while _running:
        runtime = _running.pop()
        for container in list(runtime.containers):
            runtime.remove(container)
        runtime.stop()
        end_strays()
        unmount_below(runtime.dir)
        shutil.rmtree(runtime.dir)
    remove_groups()
