"""A Kubernetes 1.20 of several nodes on one machine, from Debian's source package: etcd, API
server, controllers and scheduler in this process's network namespace (tests/harness/network.py),
and for each node a network and a mount namespace with containerd and kubelet.

The directories of nodes that our DaemonSet mounts are each node's own; everything else of their
file system is the machine's. Building takes ten minutes of both cores, once: see CACHE.
"""
import atexit
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

import image
import network
from agent import need, need_root, run as run_quietly, wait_for
from kubernetes import fetch_debian, kubectl
from packages import CACHE, run
from tap import Skip

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
HOST_DIRECTORIES = ("/var/lib/neuron-collectd", "/var/lib/neuron-collectd-hook",
                    "/var/lib/neuron-dumps", "/run/neuron-collectd")
SYSCTLS = ("vm.overcommit_memory", "vm.panic_on_oom", "kernel.panic", "kernel.panic_on_oops",
           "kernel.keys.root_maxkeys", "kernel.keys.root_maxbytes")  # kubelet sets them
API = f"https://{network.HUB}:16443"
ETCD = "http://127.0.0.1:12379"
TOKEN = "cluster-administrator"


def build():
    """@return the directory of Kubernetes' programs"""
    place = os.path.join(CACHE, "kubernetes-1.20", "bin")
    if all(os.path.exists(os.path.join(place, p)) for p in PROGRAMS):
        return place
    need("dpkg-source", "rsync")
    go = "/usr/lib/go-1.19/bin"
    if not os.path.isdir(go):
        raise Skip("golang-1.19-go is not installed")
    sources = fetch_debian("kubernetes", "bookworm", "deb-src")
    with tempfile.TemporaryDirectory(dir=CACHE) as top:
        dsc = [name for name in os.listdir(sources) if name.endswith(".dsc")][0]
        tree = os.path.join(top, "tree")
        run("dpkg-source", "--no-check", "-x", os.path.join(sources, dsc), tree)
        os.makedirs(os.path.join(tree, ".go/src/k8s.io"))
        os.symlink("../../..", os.path.join(tree, ".go/src/k8s.io/kubernetes"))
        run("make", "WHAT=" + " ".join("cmd/" + p for p in PROGRAMS), cwd=tree, env=dict(
            os.environ, PATH=f"{go}:{os.environ['PATH']}", HOME=top, GOPATH=f"{tree}/.go",
            GOCACHE=f"{top}/cache", GOFLAGS="-mod=vendor", GOPROXY="off", FORCE_HOST_GO="y",
            KUBE_GIT_VERSION="v1.20.2", KUBE_GIT_COMMIT="debian", KUBE_GIT_TREE_STATE="clean"))
        os.makedirs(place, exist_ok=True)
        for program in PROGRAMS:
            shutil.copy(os.path.join(tree, "_output/bin", program), place)
    return place


def make_archive(name, command, files=()):
    """An image of a few files and links to the node's /usr, in a tar that containerd imports.
    @return its path"""
    root = tempfile.mkdtemp(dir=image.scratch())
    for link in ("bin", "lib", "lib64"):
        os.symlink(f"usr/{link}", os.path.join(root, link))
    for file in files:
        shutil.copy(file, root)
    layer, path = root + ".layer.tar", root + ".tar"
    run("tar", "-C", root, "-cf", layer, ".")
    image.podman("import", "--change", f"ENTRYPOINT {json.dumps(command)}", layer, name)
    image.podman("save", "-q", "--format=docker-archive", "-o", path, name)
    return path


class Node:
    def __init__(self, cluster, number):
        self.cluster, self.number = cluster, number
        self.name = f"i-{number:017x}"  # as an instance, so that dumps are this node's
        self.address = f"10.77.0.{number}"
        self.group = f"nc-{os.getpid()}-{number}"
        self.veth = f"node{number}"
        self.containerd = None
        os.makedirs(self.path("cni"))

    def path(self, *parts):
        return self.cluster.path(self.veth, *parts)

    def host(self, path):
        """Where a directory of HOST_DIRECTORIES of this node is."""
        return self.path("host") + path

    def start(self):
        for directory in HOST_DIRECTORIES:
            os.makedirs(self.host(directory))
            os.chmod(self.host(directory), 0o755)
        for controller in os.listdir("/sys/fs/cgroup"):
            os.makedirs(f"/sys/fs/cgroup/{controller}/{self.group}", exist_ok=True)
        for name in ("cpus", "mems"):
            with open(f"/sys/fs/cgroup/cpuset/cpuset.{name}", encoding="ascii") as source, open(
                    f"/sys/fs/cgroup/cpuset/{self.group}/cpuset.{name}", "w",
                    encoding="ascii") as f:
                f.write(source.read())
        self._write_configuration()
        mounts = "".join(f"mount --bind {self.host(d)} {d}; " for d in HOST_DIRECTORIES)
        self.containerd = self.cluster.spawn(
            f"{self.veth}/containerd", "unshare", "--mount", "--net", "sh", "-euc",
            f"{mounts} ip link set lo up; exec containerd -c {self.path('containerd.toml')}")
        wait_for("the node has a network namespace", lambda: os.readlink(
            f"/proc/{self.containerd.pid}/ns/net") != os.readlink("/proc/self/ns/net"))
        run("ip", "link", "add", self.veth, "type", "veth", "peer", "name", "eth0", "netns",
            str(self.containerd.pid))
        run("ip", "link", "set", self.veth, "master", "hub0", "up")
        self.inside("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.inside("ip", "link", "set", "eth0", "up")
        self.inside("ip", "route", "add", "default", "via", network.HUB)
        wait_for("containerd answers", lambda: run_quietly(
            "ctr", "-a", self.path("containerd.sock"), "version").returncode == 0)
        for archive in self.cluster.archives:
            self.ctr("images", "import", archive)
        self.cluster.spawn(
            f"{self.veth}/kubelet", "nsenter", "-t", str(self.containerd.pid), "-m", "-n",
            os.path.join(self.cluster.programs, "kubelet"), f"--config={self.path('kubelet.yaml')}",
            f"--kubeconfig={self.cluster.kubeconfig}", "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{self.path('containerd.sock')}",
            f"--hostname-override={self.name}", f"--node-ip={self.address}",
            f"--root-dir={self.path('root')}", f"--cert-dir={self.path('pki')}")

    def _write_configuration(self):
        files = {
            "cni/10.conf": json.dumps({
                "cniVersion": "0.4.0", "name": "pods", "type": "bridge", "bridge": "pods0",
                "isGateway": True, "ipam": {"type": "host-local", "dataDir": self.path("ipam"),
                                            "subnet": f"10.81.{self.number}.0/24"}}),
            # root may not lower OOM scores or raise limits here
            "containerd.toml": f"""version = 2
root = "{self.path('containerd-root')}"
state = "{self.path('containerd-state')}"
[grpc]
address = "{self.path('containerd.sock')}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/pause:1"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{self.path('cni')}"
""",
            "kubelet.yaml": f"""kind: KubeletConfiguration
apiVersion: kubelet.config.k8s.io/v1beta1
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
failSwapOn: false
cgroupDriver: cgroupfs
cgroupRoot: /{self.group}
oomScoreAdj: 0
maxOpenFiles: 20000
nodeStatusUpdateFrequency: 2s
enforceNodeAllocatable: []
evictionHard: {{memory.available: 100Mi}}
"""}
        for name, text in files.items():
            with open(self.path(name), "w", encoding="utf-8") as f:
                f.write(text)

    def inside(self, *command):
        return run("nsenter", "-t", str(self.containerd.pid), "-n", *command)

    def ctr(self, *command, check=True):
        return run("ctr", "-a", self.path("containerd.sock"), "-n", "k8s.io", *command, check=check)

    def cut(self):
        run("ip", "link", "set", self.veth, "down")

    def heal(self):
        run("ip", "link", "set", self.veth, "up")

    def end_containers(self):
        for line in self.ctr("tasks", "ls", "-q", check=False).split():
            self.ctr("tasks", "kill", "-s", "KILL", line, check=False)
        for line in self.ctr("containers", "ls", "-q", check=False).split():
            self.ctr("tasks", "rm", "-f", line, check=False)

    def remove_groups(self):
        for controller in os.listdir("/sys/fs/cgroup"):
            for top, _, _ in os.walk(f"/sys/fs/cgroup/{controller}/{self.group}", topdown=False):
                try:
                    os.rmdir(top)
                except OSError:
                    pass  # a process is about to end


class Cluster:
    def __init__(self, archives, n_nodes=2):
        need_root()
        need("etcd", "containerd", "ctr", "runc", "podman", "ip", "nsenter", "unshare")
        if not os.path.isdir("/sys/fs/cgroup/cpuset"):
            raise Skip("Kubernetes 1.20 here wants control groups of version 1")
        self.programs = build()
        network.enter()
        self.archives = archives
        self.top = tempfile.mkdtemp(prefix="neuron-cluster.", dir="/var/tmp")
        self.kubeconfig = self.path("kubeconfig")
        self.processes = {}
        self.sysctls = {name: run("sysctl", "-n", name).strip() for name in SYSCTLS}
        self.made = [d for d in HOST_DIRECTORIES if not os.path.isdir(d)]
        for directory in self.made:
            os.makedirs(directory)
        self.nodes = [Node(self, n + 1) for n in range(n_nodes)]
        atexit.register(self.down)
        self._start_control_plane()
        for node in self.nodes:
            node.start()
        wait_for("the nodes are ready", lambda: self.kubectl("get", "nodes").count(" Ready") ==
                 n_nodes, 120)

    def path(self, *parts):
        return os.path.join(self.top, *parts)

    def spawn(self, name, *command):
        with open(self.path(name + ".log"), "wb") as log:
            self.processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                                                    stderr=log, cwd=self.top,
                                                    start_new_session=True)
        return self.processes[name]

    def _start_control_plane(self):
        run("openssl", "genrsa", "-out", self.path("sa.key"), "2048")
        run("openssl", "rsa", "-in", self.path("sa.key"), "-pubout", "-out", self.path("sa.pub"))
        with open(self.path("tokens.csv"), "w", encoding="ascii") as f:
            f.write(f'{TOKEN},admin,1,"system:masters"\n')
        with open(self.kubeconfig, "w", encoding="ascii") as f:
            f.write(f"""apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "{API}", insecure-skip-tls-verify: true}}}}]
users: [{{name: u, user: {{token: {TOKEN}}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
""")
        self.spawn("etcd", "etcd", "--data-dir", self.path("etcd.d"), "--listen-client-urls", ETCD,
                   "--advertise-client-urls", ETCD, "--listen-peer-urls", "http://127.0.0.1:12380",
                   "--log-level", "error")
        self._kube("kube-apiserver", f"--etcd-servers={ETCD}", f"--bind-address={network.HUB}",
                   "--secure-port=16443", f"--cert-dir={self.path('certs')}",
                   f"--token-auth-file={self.path('tokens.csv')}",
                   f"--service-account-key-file={self.path('sa.pub')}",
                   f"--service-account-signing-key-file={self.path('sa.key')}",
                   "--service-account-issuer=https://kubernetes.default",
                   "--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/24",
                   "--allow-privileged=true", "--kubelet-preferred-address-types=InternalIP")
        wait_for("the API server is ready", lambda: "ok" in self.kubectl(
            "get", "--raw", "/readyz", check=False).splitlines(), 120)
        self._kube("kube-controller-manager", f"--kubeconfig={self.kubeconfig}", "--port=0",
                   f"--service-account-private-key-file={self.path('sa.key')}",
                   "--leader-elect=false", "--node-monitor-period=1s",
                   "--node-monitor-grace-period=8s", "--pod-eviction-timeout=10s")
        self._kube("kube-scheduler", f"--kubeconfig={self.kubeconfig}", "--port=0",
                   "--leader-elect=false")

    def _kube(self, name, *options):
        self.spawn(name, os.path.join(self.programs, name), *options)

    def kubectl(self, *arguments, check=True, **more):
        return run(kubectl(), f"--kubeconfig={self.kubeconfig}", *arguments, check=check, **more)

    def get(self, *arguments):
        return json.loads(self.kubectl("get", "-o", "json", *arguments))

    def apply(self, text, *options, check=True):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            return self.kubectl("apply", *options, "-f", f.name, check=check)

    def end(self, name, number=signal.SIGTERM):
        process = self.processes.pop(name, None)
        if process and process.poll() is None:
            process.send_signal(number)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def down(self):
        for node in self.nodes:
            self.end(f"{node.veth}/kubelet")
        for node in self.nodes:
            if node.containerd:
                node.end_containers()
            self.end(f"{node.veth}/containerd")
        for name in list(self.processes)[::-1]:
            self.end(name)
        for name, value in self.sysctls.items():
            run("sysctl", "-qw", f"{name}={value}", check=False)
        with open("/proc/mounts", encoding="utf-8") as f:
            places = sorted(line.split()[1] for line in f if line.split()[1].startswith(self.top))
        for place in places[::-1]:
            run("umount", "-l", place, check=False)
        time.sleep(1)
        for node in self.nodes:
            node.remove_groups()
        for directory in self.made:
            if os.path.isdir(directory) and not os.listdir(directory):
                os.rmdir(directory)
        if not os.environ.get("NC_KEEP"):
            shutil.rmtree(self.top, ignore_errors=True)
