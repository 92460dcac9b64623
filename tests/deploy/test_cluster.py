#!/usr/bin/env python3
"""The DaemonSet on two nodes of Kubernetes 1.20, the oldest that its base is for: what a job's pod
leaves is delivered whatever happens to the agent, its container, its node or its image."""
import base64
import hashlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../harness"))
import image  # noqa: E402
import make_dump  # noqa: E402
import network  # noqa: E402
from agent import wait_for  # noqa: E402
from cluster import Cluster, make_archive  # noqa: E402
from credential_server import CredentialServer  # noqa: E402
from kubernetes import dump, render  # noqa: E402
from packages import SRCDIR, run  # noqa: E402
from s3_server import S3Server  # noqa: E402
from tap import figures, main, notes, test  # noqa: E402

MIB = 2**20
UPLOAD_BYTES = int(os.environ.get("NC_CLUSTER_BYTES", 2048 * MIB))
CONNECTIONS = 2
DUMPS = "/var/lib/neuron-dumps"
SUBJECT = "system:serviceaccount:neuron-collectd:neuron-collectd"
DRAIN_SECONDS = 20
WRITABLE = {"agent": {"/run/neuron-collectd", "/run/neuron-collectd/hook", DUMPS,
                      "/var/lib/neuron-collectd"}, "probe": {"/run/neuron-collectd"}}
OF_THE_RUNTIME = {"/dev", "/dev/shm", "/dev/mqueue"}  # memory of each container
CAPABILITIES = {"agent": {2, 3, 28}, "probe": {2, 19, 34}}  # linux/capability.h
CONFIG = """
version: 1
node: {{instance_id: "${{NODE_NAME}}"}}
sources:
  - {{name: core-dumps, kind: neuron-core-dump, settle: 2s,
     path: /var/lib/neuron-dumps/dt-%d-cid-%c}}
destinations:
  - {{name: archive, type: s3, bucket: "${{BUCKET}}", endpoint: "{endpoint}", prefix: neuron/%d-%c,
     part_size: 5MiB, connections: {connections}}}
limits: {{upload_rate: 20MiB/s}}
api: {{listen: "${{API_LISTEN}}"}}
hook: {{socket: /run/neuron-collectd/hook/hook.sock}}
"""
PATCH = f"""
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: neuron-collectd}}
spec:
  template:
    spec:
      terminationGracePeriodSeconds: {2 * DRAIN_SECONDS}
      containers:
        - name: probe
        - name: agent
          lifecycle:
            preStop: {{exec: {{command: [neuron-collect, drain, --timeout, {DRAIN_SECONDS}s]}}}}
"""
# What the runtime does: it writes its files, then calls the hook; the process fails.
FAILING = """
import os, subprocess, sys
sys.path.insert(0, "/harness")
import make_dump
node, pid = os.environ["NODE"], str(os.getpid())
unit = make_dump.make_dump("%s", instance_id=node, pid=int(pid), rank=3, world_size=8, size=1 << 20)
date, cluster = unit.rsplit("dt-", 1)[1].split("-cid-")
sys.exit(subprocess.run(["/opt/aws/neuron/bin/neuron-dump", "--neff-name", "model.neff",
    "--neff-uuid", "00ff", "--date-time", date, "--pid", pid, "--tid", pid, "--log-id", "1",
    "--instance-id", node, "--cluster-id", cluster, "--error-location", "nrt_execute",
    "--error-code", "1005", "--local-output-dir", unit]).returncode or 7)
""" % DUMPS
JOB = """
apiVersion: v1
kind: Pod
metadata: {{name: train, labels: {{neuron-collectd/collect: "true"}}}}
spec:
  nodeName: {node}
  restartPolicy: Never
  securityContext: {{runAsUser: 1000, runAsGroup: 1000}}
  containers:
    - name: train
      image: localhost/job:1
      command: [/usr/bin/env, python3, -c, {program}]
      env:
        - {{name: PATH, value: /usr/local/bin:/usr/bin}}
        - {{name: PYTHONDONTWRITEBYTECODE, value: "1"}}
        - {{name: NODE, valueFrom: {{fieldRef: {{fieldPath: spec.nodeName}}}}}}
        - {{name: RANK, value: "3"}}
        - {{name: WORLD_SIZE, value: "8"}}
        - {{name: LOCAL_RANK, value: "3"}}
        - {{name: MASTER_ADDR, value: train-0}}
        - {{name: MASTER_PORT, value: "29500"}}
        - {{name: TORCHELASTIC_RUN_ID, value: run-7}}
      volumeMounts:
        - {{name: usr, mountPath: /usr, readOnly: true}}
        - {{name: harness, mountPath: /harness, readOnly: true}}
  volumes:
    - {{name: usr, hostPath: {{path: /usr}}}}
    - {{name: harness, hostPath: {{path: {harness}}}}}
"""


def kernel_log(bundle):
    with tempfile.TemporaryDirectory() as top:
        subprocess.run(["tar", "--zstd", "-xf", "-", "-C", top], input=bundle, check=True)
        found = [os.path.join(base, "snapshot.json") for base, _, names in os.walk(top)
                 if "snapshot.json" in names]
        with open(found[0], encoding="utf-8") as f:
            sections = json.load(f)["sections"]
    return [s for s in sections if s["name"] == "kmsg"][0]


def incompressible_dump(node, cluster_id, n_bytes):
    unit = node.host(f"{DUMPS}/dt-20260527-060000-cid-{cluster_id}")
    os.makedirs(unit)
    os.chown(unit, 1000, 1000)
    with open(os.path.join(unit, f"{node.name}-nd0-nc0-pid-1-tid-1-lid-1"), "wb") as f:
        for _ in range(n_bytes // (4 * MIB)):
            f.write(os.urandom(4 * MIB))
        os.fchown(f.fileno(), 1000, 1000)
        os.fchmod(f.fileno(), 0o600)
    return unit


def decode(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Sts(CredentialServer):
    """Checks tokens as AWS does, with the keys that the cluster publishes: signature, audience,
    time and whose it is."""

    def __init__(self, keys, jwks):
        super().__init__(keys, address=network.HUB)
        self.jwks = {key["kid"]: key for key in jwks["keys"]}
        self.refused = []

    def fault_of(self, token):
        head, claims, signature = (decode(part) for part in token.split("."))
        key = self.jwks.get(json.loads(head)["kid"])
        if json.loads(head)["alg"] != "RS256" or not key:
            return "no key of the cluster's"
        n, e = (int.from_bytes(decode(key[name]), "big") for name in "ne")
        plain = pow(int.from_bytes(signature, "big"), e, n).to_bytes(len(decode(key["n"])), "big")
        wanted = bytes.fromhex("3031300d060960864801650304020105000420") + hashlib.sha256(
            token.rsplit(".", 1)[0].encode()).digest()  # RFC 8017: DigestInfo of SHA-256
        if plain != b"\0\1" + b"\xff" * (len(plain) - len(wanted) - 3) + b"\0" + wanted:
            return "signature"
        claims = json.loads(claims)
        if claims["aud"] != ["sts.amazonaws.com"] or claims["sub"] != SUBJECT:
            return "audience or subject"
        return None if claims["nbf"] <= time.time() + 60 and time.time() < claims["exp"] else "time"

    def sts(self, h, form):
        fault = self.fault_of(form.get("WebIdentityToken", ""))
        self.web_token = None if fault else form["WebIdentityToken"]
        if fault:
            self.refused.append(fault)
            form = {}
        super().sts(h, form)


class Lab:
    """The cluster, a store, an STS and the DaemonSet, made by the first test that wants it."""
    _lab = None

    @classmethod
    def get(cls):
        if not cls._lab:
            cls._lab = cls.__new__(cls)  # not tried again when it fails
            cls._lab.start()
        assert hasattr(cls._lab, "sts"), "there is no cluster"
        return cls._lab

    def start(self):
        pause = ["/usr/bin/catatonit", "/usr/libexec/podman/catatonit"]
        archives = [image.image(),
                    make_archive("localhost/pause:1", ["/catatonit", "-P"],
                                 [p for p in pause if os.path.exists(p)][:1]),
                    make_archive("localhost/job:1", ["/bin/sh"])]
        self.cluster = Cluster(archives)
        self.nodes = self.cluster.nodes
        self.s3 = S3Server(token="session-token", address=network.HUB).start()
        keys = self.s3
        keys.token = "session-token"
        self.sts = Sts(keys, json.loads(self.cluster.kubectl("get", "--raw", "/openid/v1/jwks")))
        # Before the agents: what other programs write to the machine's log starts snapshots, too.
        self.mark = f"neuron: written by test {os.getpid()} at {time.time_ns()}"
        with open("/dev/kmsg", "w", encoding="ascii") as f:
            f.write(self.mark)
        self.apply()

    def rendered(self, components, config=CONFIG):
        version = re.search(r"neuron-collectd:([\w.-]+)", image.podman("load", "-q", "-i",
                                                                       image.image()))[1]
        return render(
            components=components, namespace="neuron-collectd",
            images=[{"name": "neuron-collectd", "newName": "localhost/neuron-collectd",
                     "newTag": version}],
            files={"neuron-collectd.yaml": config.format(endpoint=self.s3.endpoint,
                                                         connections=CONNECTIONS)},
            patches=[{"patch": PATCH}],
            configMapGenerator=[
                {"name": "neuron-collectd", "behavior": "replace",
                 "files": ["neuron-collectd.yaml"]},
                {"name": "neuron-collectd-environment", "literals": [
                    "BUCKET=" + self.s3.bucket, "AWS_REGION=us-east-1",
                    "AWS_EC2_METADATA_DISABLED=true",
                    "AWS_ROLE_ARN=arn:aws:iam::123456789012:role/x",
                    "AWS_ENDPOINT_URL_STS=" + self.sts.endpoint]}])

    def apply(self, *components, **more):
        objects = [o for o in self.rendered(["irsa", *components], **more)
                   if o["kind"] != "PodMonitor"]
        self.cluster.apply(dump(sorted(objects, key=lambda o: o["kind"] != "Namespace")))

    def kubectl(self, *arguments, **more):
        return self.cluster.kubectl("-n", "neuron-collectd", *arguments, **more)

    def pods(self):
        return [p for p in self.cluster.get("pods", "-n", "neuron-collectd")["items"]]

    def pod(self, node):
        found = [p for p in self.pods() if p["spec"].get("nodeName") == node.name and
                 "deletionTimestamp" not in p["metadata"]]
        return found[0] if found else None

    def status(self, node, container):
        pod = self.pod(node)
        found = [c for c in (pod or {}).get("status", {}).get("containerStatuses", [])
                 if c["name"] == container]
        return found[0] if found else {}

    def is_ready(self, node):
        return all(self.status(node, c).get("ready") for c in ("agent", "probe"))

    def wait_ready(self, timeout=90):
        wait_for("the pods are ready", lambda: all(map(self.is_ready, self.nodes)), timeout)

    def pid(self, node, container):
        wanted = self.status(node, container)["containerID"].removeprefix("containerd://")
        for line in node.ctr("tasks", "ls").splitlines():
            if line.split()[0] == wanted:
                return int(line.split()[1])
        raise AssertionError(f"{container} has no process")

    def collect(self, node, *arguments, check=True):
        return self.kubectl("exec", self.pod(node)["metadata"]["name"], "-c", "agent", "--",
                            "neuron-collect", *arguments, check=check)

    def manifests(self):
        return [json.loads(o.body) for key, o in sorted(self.s3.objects.items())
                if key.endswith(".manifest.json")]

    def bundle(self, cluster_id, kind="neuron-core-dump"):
        """@return key and body of the only bundle of a failure of this kind"""
        found = [k for k in self.s3.objects if cluster_id in k and k.endswith(".tar.zst")
                 and k.rpartition("/")[2].startswith(kind)]
        assert len(found) == 1, found
        return found[0], self.s3.objects[found[0]].body

    def aws(self, command):
        """What another's client sees in the store."""
        done = subprocess.run(
            ["aws", "--endpoint-url", self.s3.endpoint, "--region", self.s3.region, "--output",
             "json", "s3api", command, "--bucket", self.s3.bucket], text=True, check=True,
            env=dict(os.environ, **self.s3.environment()), stdout=subprocess.PIPE)
        return json.loads(done.stdout or "{}")

    def do_not_yield(self, node, cluster_id):
        """An agent that drains gives way to no other programs: the machine runs other tests."""
        wait_for("the dump is found", lambda: cluster_id in self.collect(node, "--json", "list",
                                                                         check=False), 60)
        self.collect(node, "drain", "--timeout", "1s", check=False)

    def dump(self, node, cluster_id, size=MIB):
        make_dump.make_dump(node.host(DUMPS), instance_id=node.name, cluster_id=cluster_id,
                            size=size, owner=(1000, 1000), mode=0o600)

    def wait_delivered(self, cluster_id, timeout=90, kind="neuron-core-dump"):
        def found():
            return [m for m in self.manifests() if cluster_id in json.dumps(m)
                    and m["bundle"]["kind"] == kind]
        return wait_for(f"{cluster_id} is delivered", found, timeout)

    def explain(self):
        """For the reader of a failure."""
        self.kubectl("get", "pods", "-o", "wide", check=False)
        self.kubectl("describe", "pods", check=False)
        for pod in self.pods():
            for container in ("agent", "probe"):
                self.kubectl("logs", "--tail=40", pod["metadata"]["name"], "-c", container,
                             check=False)


def cleanup(failed):
    if failed and hasattr(Lab._lab, "sts"):  # pylint: disable=protected-access
        notes.clear()
        Lab.get().explain()
        for note in notes:
            print("# " + note.replace("\n", "\n# "), flush=True)


@test
def it_runs_on_nodes_with_neuron_devices_only_and_is_rolled_out():
    lab = Lab.get()
    wait_for("the controller has seen it", lambda: lab.cluster.get(
        "daemonset", "-n", "neuron-collectd", "neuron-collectd")["status"].get(
            "observedGeneration"), 30)
    assert not lab.pods(), "no node has an instance type yet"
    begun = time.monotonic()
    lab.cluster.kubectl("label", "nodes", "--all", "node.kubernetes.io/instance-type=trn1.32xlarge")
    lab.wait_ready()
    figures.append(f"roll-out on two nodes: {time.monotonic() - begun:.0f} s")
    for node in lab.nodes:
        assert oct(os.stat(node.host(DUMPS)).st_mode)[-4:] == "1777"
        assert os.access(node.host("/var/lib/neuron-collectd-hook/neuron-dump"), os.X_OK)
        assert os.listdir(node.host("/run/neuron-collectd/hook")) == ["hook.sock"]
        listening = node.inside("ss", "-Htln")
        assert ":9733" not in listening and ":7733" not in listening, listening
        with open("/etc/resolv.conf", "rb") as ours, open(
                f"/proc/{lab.pid(node, 'agent')}/root/etc/resolv.conf", "rb") as theirs:
            # dnsPolicy: Default
            assert {line for line in ours if line.startswith(b"nameserver")} == {
                line for line in theirs if line.startswith(b"nameserver")}


@test
def the_base_has_no_field_younger_than_this_kubernetes():
    lab = Lab.get()
    objects = lab.rendered(["irsa"])
    assert "error" not in lab.cluster.apply(dump(objects), "--dry-run=server")
    daemonset = [o for o in objects if o["kind"] == "DaemonSet"][0]
    daemonset["spec"]["template"]["spec"]["hostUsers"] = False  # of 1.25
    said = lab.cluster.apply(dump(objects), "--dry-run=server", check=False)
    assert 'unknown field "hostUsers"' in said, said


@test
def the_containers_have_exactly_their_capabilities():
    lab = Lab.get()
    for container, numbers in CAPABILITIES.items():
        with open(f"/proc/{lab.pid(lab.nodes[0], container)}/status", encoding="ascii") as f:
            status = dict(line.rstrip().split(":\t", 1) for line in f)
        for name in ("CapPrm", "CapEff", "CapBnd"):
            assert int(status[name], 16) == sum(1 << n for n in numbers), (container, name, status)
        for name in ("CapInh", "CapAmb"):
            assert int(status[name], 16) == 0, (container, name, status)
        assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2", status


def inside(pid):
    return json.loads(run(sys.executable, os.path.join(SRCDIR, "tests/deploy/inside.py"), str(pid)))


@test
def a_container_opens_no_device_and_writes_into_its_mounts_alone():
    lab = Lab.get()
    for container, places in WRITABLE.items():
        pid = lab.pid(lab.nodes[0], container)
        said = inside(pid)
        assert said["before"] == {"/dev/neuron0": "ENXIO", "/dev/kmsg": "", "/dev/null": ""}, said
        assert said["devices"] == {"/dev/neuron0": "EPERM", "/dev/kmsg": "EPERM",
                                   "/dev/null": ""}, said
        writable = set(said["writable"]) - OF_THE_RUNTIME
        assert places <= writable, (container, said)
        assert not [w for w in writable
                    if not any((w + "/").startswith(p + "/") for p in places)], (container, said)
        devices = {entry.name for entry in os.scandir(f"/proc/{pid}/root/dev")
                   if stat.S_ISCHR(entry.stat(follow_symlinks=False).st_mode)}
        assert devices == {"null", "zero", "full", "tty", "random", "urandom"}, devices


@test
def a_pod_of_another_user_fails_and_the_bundle_has_rank_container_and_snapshot():
    lab, node = Lab.get(), Lab.get().nodes[0]
    job = JOB.format(node=node.name, program=json.dumps(FAILING),
                     harness=os.path.join(SRCDIR, "tests/harness"))
    lab.cluster.apply(dump(render(None, ["job"], files={"resource-job.yaml": job})))

    def state():
        status = lab.cluster.get("pod", "train")["status"].get("containerStatuses", [{}])[0]
        return status if "terminated" in status.get("state", {}) else None
    status = wait_for("the job has failed", state, 60)
    lab.cluster.kubectl("logs", "train", check=False)
    assert status["state"]["terminated"]["exitCode"] == 7, status
    manifest = lab.wait_delivered(make_dump.DEFAULT_CLUSTER)[0]
    assert manifest["failure"]["container"] == status["containerID"].removeprefix("containerd://")
    assert manifest["incident"]["job"]["rank"] == 3, manifest["incident"]
    snapshot = lab.wait_delivered(make_dump.DEFAULT_CLUSTER, 150, "snapshot")[0]
    assert "snapshot.json" in {m["path"] for m in snapshot["members"]}, snapshot["members"]
    assert snapshot["bundle"]["related"][0]["id"] == manifest["bundle"]["id"], snapshot["bundle"]
    # without a number: by syslog(2), since /dev/kmsg is refused to the probe
    log = kernel_log(lab.bundle(make_dump.DEFAULT_CLUSTER, "snapshot")[1])
    lines = [line for line in log["records"] if line.get("text", "").endswith(lab.mark)]
    assert len(lines) == 1 and not lines[0]["from_kernel"] and "seq" not in lines[0], log


@test
def the_probes_container_takes_the_snapshots_and_reads_the_kernel_log():
    lab, node = Lab.get(), Lab.get().nodes[1]
    document = json.loads(lab.collect(node, "--json", "snapshot"))
    sections = {s["name"]: s for s in document["sections"]}
    assert sections["kmsg"]["state"] == "complete", sections["kmsg"]
    # started by the probe's container: its children, not the agent's
    agent, probe = lab.pid(node, "agent"), lab.pid(node, "probe")
    children = {pid: subprocess.run(["pgrep", "-P", str(pid), "-a"], text=True, check=False,
                                    stdout=subprocess.PIPE).stdout for pid in (agent, probe)}
    assert "--child=probe" in children[probe] and "--child=probe" not in children[agent], children


@test
def the_projected_token_of_the_agent_is_accepted_by_the_keys_of_the_cluster():
    lab = Lab.get()
    assert "web identity" in lab.sts.asked and not lab.sts.refused, lab.sts.refused
    forged = "e30.e30.AAAA"
    head = base64.urlsafe_b64encode(json.dumps({"alg": "RS256", "kid": next(iter(lab.sts.jwks))}
                                               ).encode()).decode().rstrip("=")
    assert lab.sts.fault_of(head + forged[3:]) == "signature"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
               "spec": {"audiences": ["sts.amazonaws.com"]}}
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="ascii") as f:
        f.write(json.dumps(request))
        f.flush()
        of_another = json.loads(lab.cluster.kubectl(
            "create", "--raw", "/api/v1/namespaces/default/serviceaccounts/default/token", "-f",
            f.name))["status"]["token"]
    assert lab.sts.fault_of(of_another) == "audience or subject"
    with open(f"/proc/{lab.pid(lab.nodes[0], 'probe')}/environ", encoding="utf-8") as f:
        assert "AWS_WEB_IDENTITY_TOKEN_FILE" not in f.read()
    tokens = [os.path.exists(f"/proc/{lab.pid(lab.nodes[0], c)}/root/var/run/secrets/sts/token")
              for c in ("agent", "probe")]
    assert tokens == [True, False]


@test
def an_agent_that_hangs_is_restarted():
    lab, node = Lab.get(), Lab.get().nodes[0]
    before, begun = lab.status(node, "agent")["restartCount"], time.monotonic()
    os.kill(lab.pid(node, "agent"), signal.SIGSTOP)
    wait_for("it is restarted", lambda: lab.status(node, "agent").get("restartCount", 0) > before,
             150)
    figures.append(f"restarted {time.monotonic() - begun:.0f} s after SIGSTOP")
    lab.wait_ready()
    lab.dump(node, "00000000000000a1")
    lab.wait_delivered("00000000000000a1")


@test
def a_rolling_update_in_an_upload_continues_it():
    lab, node, cluster_id = Lab.get(), Lab.get().nodes[0], "00000000000000a2"
    unit = incompressible_dump(node, cluster_id, UPLOAD_BYTES)
    begun = time.monotonic()
    lab.do_not_yield(node, cluster_id)

    def parts():
        return [r for r in lab.s3.seen("UploadPart") if cluster_id in r.key]
    wait_for("a fifth of it is sent",
             lambda: sum(r.body_bytes for r in parts()) >= UPLOAD_BYTES // 5, 300, 0.2)
    old = lab.pod(node)["metadata"]["uid"]
    updated = time.monotonic()
    lab.kubectl("rollout", "restart", "daemonset/neuron-collectd")
    wait_for("the pod is another one", lambda: (lab.pod(node) or {"metadata": {"uid": old}})[
        "metadata"]["uid"] != old and lab.is_ready(node), 180)
    assert not [m for m in lab.manifests() if cluster_id in json.dumps(m)], "too fast"
    lab.do_not_yield(node, cluster_id)
    lab.kubectl("rollout", "status", "daemonset/neuron-collectd", "--timeout=180s")
    seconds = time.monotonic() - updated
    lab.wait_delivered(cluster_id, 300)
    figures.append(f"rolling update of two nodes, one with an upload: {seconds:.0f} s")
    # as aws sees it: a bundle and its manifest for each failure, and no upload that was left
    keys = [o["Key"] for o in lab.aws("list-objects-v2")["Contents"] if cluster_id in o["Key"]]
    key, body = lab.bundle(cluster_id)
    assert sorted(k.rsplit(".", 2)[-2:] for k in keys if "/.incidents/" not in k and
                  not k.endswith("/incident.json")) == [["manifest", "json"], ["tar", "zst"]], keys
    assert not lab.aws("list-multipart-uploads").get("Uploads")
    for operation in ("CreateMultipartUpload", "CompleteMultipartUpload"):
        assert [r.status for r in lab.s3.seen(operation, key=key)] == [200], operation
    ids = {r.query["uploadId"] for r in parts()}
    assert len(ids) == 1 and {r.key for r in parts()} == {key}, ids
    twice = sum(r.body_bytes for r in parts()) - len(body)
    figures.append(f"{UPLOAD_BYTES / MIB:.0f} MiB in {time.monotonic() - begun:.0f} s, one upload "
                   f"id, {len({r.part for r in parts()})} parts, {twice / MIB:.1f} MiB sent twice")
    assert UPLOAD_BYTES <= len(body) <= UPLOAD_BYTES + 64 * MIB
    assert twice <= CONNECTIONS * max(r.body_bytes for r in parts()), twice
    same = subprocess.run(["tar", "--zstd", "--compare", "-f", "-", "-C", unit], input=body,
                          check=False, capture_output=True)
    assert same.returncode == 0, same.stdout + same.stderr
    del lab.s3.objects[key]  # memory
    lab.collect(node, "resume")


@test
def a_store_that_is_down_stops_no_rollout_and_restarts_no_agent():
    lab, node = Lab.get(), Lab.get().nodes[0]
    lab.wait_ready()
    old = {p["metadata"]["uid"] for p in lab.pods()}

    def says_so():
        return "empty reply from server" in lab.collect(node, "status")
    lab.s3.fault("*", drop="head", times=None)
    try:
        lab.dump(node, "00000000000000a5")
        wait_for("the agent says that the store is down", says_so, 60, 1)
        lab.apply("podmonitor", "probe-privileged")
        lab.kubectl("rollout", "status", "daemonset/neuron-collectd", "--timeout=240s")
        lab.wait_ready()
        wait_for("the new one says so", says_so, 90, 1)
        with urllib.request.urlopen(f"http://{node.address}:9733/metrics") as metrics:
            assert b"\nneuron_collectd_build_info" in metrics.read(), "what podmonitor opens"
        # no driver has it, but the probe's container could open it
        assert [inside(lab.pid(node, c))["devices"]["/dev/neuron0"] for c in ("agent", "probe")
                ] == ["EPERM", "ENXIO"]
    finally:
        lab.s3.clear_faults()
    assert old.isdisjoint(p["metadata"]["uid"] for p in lab.pods())
    assert [lab.status(n, "agent")["restartCount"] for n in lab.nodes] == [0, 0]
    lab.wait_delivered("00000000000000a5", 180)


@test
def a_typo_in_the_configuration_stops_the_rollout_at_its_first_node():
    lab = Lab.get()
    lab.wait_ready()
    old = {p["metadata"]["uid"] for p in lab.pods()}

    def failed():
        return [n for n in lab.nodes if lab.status(n, "agent").get("restartCount", 0) > 1 and
                not lab.is_ready(n)]

    def said():  # the kubelet removes the log of a container that failed before
        pod = lab.pod(node)["metadata"]["name"]
        return "destinatons: unknown key; did you mean 'destinations'?" in lab.kubectl(
            "logs", pod, "-c", "agent", check=False)
    try:
        lab.apply(config=CONFIG.replace("destinations:", "destinatons:"))
        node, = wait_for("the agent of a new pod has failed twice", failed, 120, 0.5)
        wait_for("its log names the line", said, 60, 0.5)
        other, = [n for n in lab.nodes if n is not node]
        assert lab.is_ready(other) and lab.pod(other)["metadata"]["uid"] in old
        lab.dump(other, "00000000000000a6")
        lab.wait_delivered("00000000000000a6")
    finally:
        lab.apply()
    lab.kubectl("rollout", "status", "daemonset/neuron-collectd", "--timeout=240s")
    lab.wait_ready()
    lab.dump(node, "00000000000000a7")
    lab.wait_delivered("00000000000000a7")


@test
def a_directory_of_anothers_is_refused_and_the_log_says_whose_it_is():
    lab, node = Lab.get(), Lab.get().nodes[1]
    os.chown(node.host(DUMPS), 1000, 1000)
    old = lab.pod(node)["metadata"]["name"]
    lab.kubectl("delete", "pod", old, "--wait=false")

    def waits():
        pod = lab.pod(node)
        found = (pod or {}).get("status", {}).get("initContainerStatuses", [{}])[0]
        return found.get("restartCount") and pod["metadata"]["name"]
    name = wait_for("the init container has failed", waits, 120, 0.5)
    said = lab.kubectl("logs", name, "-c", "install-hook")
    assert "'/var/lib/neuron-dumps' belongs to uid 1000" in said and "chown 0" in said, said
    os.chown(node.host(DUMPS), 0, 0)
    lab.wait_ready(120)


@test
def a_node_that_was_cut_off_delivers_when_it_is_back():
    lab, node = Lab.get(), Lab.get().nodes[1]
    node.cut()
    lab.dump(node, "00000000000000a3")
    wait_for("the node is not ready", lambda: "NotReady" in lab.cluster.kubectl("get", "nodes"), 60)
    assert not [m for m in lab.manifests() if "00000000000000a3" in json.dumps(m)]
    node.heal()
    lab.wait_delivered("00000000000000a3", 120)
    wait_for("the nodes are ready",
             lambda: "NotReady" not in lab.cluster.kubectl("get", "nodes"), 60)
    lab.wait_ready()


@test
def to_delete_it_drains():
    lab, node = Lab.get(), Lab.get().nodes[0]
    lab.s3.latency = 0.5
    n_before = len(lab.s3.seen("UploadPart"))
    lab.dump(node, "00000000000000a4", 96 * MIB)
    lab.s3.wait_for("parts arrive", lambda: len(lab.s3.seen("UploadPart")) > n_before, 60)
    begun = time.monotonic()
    lab.kubectl("delete", "daemonset", "neuron-collectd")
    wait_for("the pods are gone", lambda: not lab.pods(), 6 * DRAIN_SECONDS)
    lab.s3.latency = 0
    figures.append(f"gone {time.monotonic() - begun:.0f} s after the deletion")
    assert [m for m in lab.manifests() if "00000000000000a4" in json.dumps(m)]


if __name__ == "__main__":
    sys.exit(main(cleanup))
