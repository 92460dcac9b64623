#!/usr/bin/env python3
"""What deploy/kubernetes renders: as golden files have it, by the published schemas, and what an
administrator of a cluster asks of it."""
import copy
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../harness"))
import yaml  # noqa: E402
from kubernetes import DEPLOY, dump, render  # noqa: E402
from packages import CACHE, SRCDIR, download, run  # noqa: E402
from tap import Skip, main, notes, test  # noqa: E402

GOLDEN = os.path.join(SRCDIR, "tests/golden/kubernetes")
COMPONENTS = sorted(os.listdir(os.path.join(DEPLOY, "components")))
OF_THE_AGENT = [c for c in COMPONENTS if c != "job"]
# Today's schemas; a younger version is taken by hand, with a look at what it changes. They ask for
# Node 22, npm only warns of it, and Debian's 18 reads them.
NPM = ["kubernetes-models@5.1.0", "@kubernetes-models/prometheus-operator@6.0.0", "js-yaml@4",
       "typescript@5"]
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: ml, labels: {neuron-collectd/collect: "true"}}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
        - {name: train, image: train, volumeMounts: [{name: data, mountPath: /data}]}
        - {name: sidecar, image: sidecar}
      volumes: [{name: data, emptyDir: {}}]
---
apiVersion: v1
kind: Pod
metadata: {name: one, namespace: ml, labels: {neuron-collectd/collect: "true"}}
spec: {containers: [{name: train, image: train}]}
---
apiVersion: v1
kind: Pod
metadata: {name: other, namespace: ml}
spec: {containers: [{name: train, image: train}]}
"""


def job():
    return render(None, ["job"], files={"resource-job.yaml": JOB})


def find(objects, kind, name=None):
    return [o for o in objects if o["kind"] == kind and name in (None, o["metadata"]["name"])][0]


def pod_of(objects):
    return find(objects, "DaemonSet")["spec"]["template"]["spec"]


def container(pod, name):
    return [c for c in pod["containers"] + pod["initContainers"] if c["name"] == name][0]


def compare_with_golden(name, text):
    path = os.path.join(GOLDEN, name)
    if os.environ.get("NC_WRITE_GOLDEN"):
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
    with open(path, encoding="utf-8") as f:
        expected = f.read()
    if text != expected:
        notes.append("".join(difflib.unified_diff(expected.splitlines(True), text.splitlines(True),
                                                  name, "rendered")))
    assert text == expected, f"{path}: a change that is meant is written with NC_WRITE_GOLDEN=1"


def difference(before, after):
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=2, lineterm="")
    return "\n".join(line for line in lines if not line.startswith(("---", "+++"))) + "\n"


@test
def the_base_is_as_the_golden_file_has_it():
    compare_with_golden("base.yaml", dump(render()))


@test
def each_component_changes_what_the_golden_file_says():
    base = dump(render())
    for component in OF_THE_AGENT:
        compare_with_golden(f"{component}.diff",
                            difference(base, dump(render(components=[component]))))
    compare_with_golden("job.diff", difference(dump(render(None, files={"resource-job.yaml": JOB})),
                                               dump(job())))


@test
def all_components_of_the_agent_fit_together():
    objects = render(components=OF_THE_AGENT)
    assert {o["kind"] for o in objects} == {"ConfigMap", "DaemonSet", "Namespace", "PodMonitor",
                                           "ServiceAccount"}
    assert {o["metadata"].get("namespace", o["metadata"]["name"]) for o in objects} == {
        "neuron-collectd"}


def node_modules():
    if not shutil.which("npm"):
        raise Skip("npm is not installed")
    place = os.path.join(CACHE, "npm-" + "-".join(NPM[:2]).replace("/", "-"))
    if not os.path.isdir(place):
        os.makedirs(place + ".new", exist_ok=True)
        download("npm", "install", "--no-audit", "--no-fund", "--prefix", place + ".new", *NPM)
        os.rename(place + ".new", place)
    return os.path.join(place, "node_modules")


def check_schema(*documents):
    """@return what is wrong, a line each, and the sum"""
    with tempfile.TemporaryDirectory() as top:
        files = []
        for n, objects in enumerate(documents):
            files.append(os.path.join(top, f"{n}.yaml"))
            with open(files[-1], "w", encoding="utf-8") as f:
                f.write(dump(objects))
        done = subprocess.run(["node", os.path.join(SRCDIR, "tests/deploy/check_schema.js"),
                               *files],
                              env=dict(os.environ, NODE_PATH=node_modules()), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    notes.append(done.stdout)
    return done.stdout


@test
def todays_schemas_know_each_field():
    found = check_schema(render(), render(components=OF_THE_AGENT), job())
    assert re.search(r"^1[0-9] objects, 0 faults$", found, re.MULTILINE), found


@test
def a_planted_fault_is_found_by_the_schemas():
    objects = render(components=["podmonitor"])
    for plant in (lambda o: container(pod_of(o), "agent").update(securityContent={}),
                  lambda o: pod_of(o)["containers"][0].pop("name"),
                  lambda o: find(o, "DaemonSet")["spec"].update(selector=None),
                  lambda o: find(o, "PodMonitor")["spec"].update(podMetricsEndpoint=[])):
        faulty = copy.deepcopy(objects)
        plant(faulty)
        found = check_schema(faulty)
        assert re.search(r"^[1-9][0-9]* objects, [1-9][0-9]* faults$", found, re.MULTILINE), found


@test
def the_containers_have_exactly_the_capabilities_of_the_units():
    pod = pod_of(render())
    units = {"agent": "neuron-collectd.service.in", "probe": "neuron-collectd-probe@.service.in"}
    for name, unit in units.items():
        with open(os.path.join(SRCDIR, "systemd", unit), encoding="utf-8") as f:
            bounding = re.search(r"^CapabilityBoundingSet=(.*)", f.read(), re.MULTILINE)[1].split()
        capabilities = container(pod, name)["securityContext"]["capabilities"]
        assert capabilities["drop"] == ["ALL"]
        assert sorted("CAP_" + c for c in capabilities["add"]) == sorted(bounding), capabilities
    assert container(pod, "install-hook")["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    for one in pod["containers"] + pod["initContainers"]:
        context = one["securityContext"]
        assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"],
                context["runAsUser"]) == (False, True, 0), one["name"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


@test
def only_the_probe_of_its_component_is_privileged():
    pod = pod_of(render(components=OF_THE_AGENT))
    assert {c["name"]: c["securityContext"].get("privileged", False) for c in
            pod["containers"] + pod["initContainers"]} == {
                "agent": False, "probe": True, "install-hook": False}


@test
def the_dumps_are_one_mount_of_one_path_everywhere():
    pod, jobs = pod_of(render()), job()
    mounts = [container(pod, name)["volumeMounts"] for name in ("agent", "probe", "install-hook")]
    train = find(jobs, "Job")["spec"]["template"]["spec"]
    for some in mounts + [train["containers"][0]["volumeMounts"]]:
        assert [m["mountPath"] for m in some if "dumps" in m["name"]] == ["/var/lib/neuron-dumps"]
        assert not [m for m in some if "subPath" in m or "subPathExpr" in m]
    assert [v["hostPath"]["path"] for v in pod["volumes"] + train["volumes"]
            if "dumps" in v["name"]] == ["/var/lib/neuron-dumps"] * 2
    variables = {e["name"]: e.get("value") for e in train["containers"][0]["env"]}
    config = yaml.safe_load(find(render(), "ConfigMap")["data"]["neuron-collectd.yaml"])
    assert variables["NEURON_RT_LOCAL_CORE_DUMP_DIRECTORY"] == config["sources"][0]["path"]


@test
def the_patch_of_the_documentation_changes_the_nodes_side_of_the_dumps_alone():
    with open(os.path.join(SRCDIR, "docs/KUBERNETES.md"), encoding="utf-8") as f:
        text = re.search(r"(?s)### Dumps on another disk.*?```yaml\n(.*?)```", f.read())[1]
    expected, patched = pod_of(render()), pod_of(render(**yaml.safe_load(text)))
    volume = [v for v in expected["volumes"] if v["name"] == "dumps"][0]
    volume["hostPath"] = {"path": "/opt/dlami/nvme/neuron-dumps", "type": "Directory"}
    by_name = {v["name"]: v for v in patched.pop("volumes")}
    assert by_name == {v["name"]: v for v in expected.pop("volumes")}, by_name
    assert patched == expected


@test
def a_job_gets_the_socket_of_the_hook_and_never_that_of_the_api():
    config = yaml.safe_load(find(render(), "ConfigMap")["data"]["neuron-collectd.yaml"])
    pod = pod_of(render())
    of = {m["name"]: m["mountPath"] for m in container(pod, "agent")["volumeMounts"]}
    hook_directory = os.path.dirname(config["hook"]["socket"])
    assert hook_directory == of["hook-socket"] and "socket" not in config["api"]
    # the API's socket, by its default, and the probe's lie in memory that only this pod has
    assert of["run"] == "/run/neuron-collectd"
    assert "emptyDir" in [v for v in pod["volumes"] if v["name"] == "run"][0]
    train = find(job(), "Pod", "one")["spec"]
    volumes = {v["name"]: v["hostPath"] for v in train["volumes"]}
    mounts = {m["name"]: m for m in train["containers"][0]["volumeMounts"]}
    assert volumes["neuron-hook-socket"]["path"] == hook_directory
    # where the hook looks by default
    assert mounts["neuron-hook-socket"]["mountPath"] == "/run/neuron-collectd"
    assert volumes["neuron-hook"]["type"] == "File"
    assert mounts["neuron-hook"]["mountPath"] == "/opt/aws/neuron/bin/neuron-dump"
    assert mounts["neuron-mailbox"]["mountPath"] == "/var/lib/neuron-collectd/mailbox"
    assert "volumes" not in find(job(), "Pod", "other")["spec"]


@test
def nothing_is_tolerated_but_by_name_and_a_drain_has_its_time():
    objects = render()
    pod, kinds = pod_of(objects), {o["kind"] for o in objects}
    assert pod["tolerations"] and all("key" in t for t in pod["tolerations"])
    assert not [t for t in pod["tolerations"] if "karpenter" in t["key"]]
    command = container(pod, "agent")["lifecycle"]["preStop"]["exec"]["command"]
    assert command[:2] == ["neuron-collect", "drain"]
    assert int(command[-1].rstrip("s")) < pod["terminationGracePeriodSeconds"]
    assert find(objects, "DaemonSet")["spec"]["updateStrategy"] == {
        "type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["hostPID"] and pod["hostNetwork"] and "NetworkPolicy" not in kinds


@test
def the_probes_want_an_answer_of_the_agent_and_neither_a_port_nor_a_store():
    pod = pod_of(render())
    agent = container(pod, "agent")
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert agent[name]["exec"] == {"command": ["neuron-collect", "status"]}, name
    assert not [c for c in pod["containers"] if "ports" in c or "httpGet" in str(c)]
    opened = container(pod_of(render(components=["podmonitor"])), "agent")
    listen = [[e["value"] for e in one["env"] if e["name"] == "API_LISTEN"] for one in
              (agent, opened)]
    assert listen == [[""], ["0.0.0.0:9733"]]
    assert opened["ports"] == [{"name": "metrics", "containerPort": 9733}]


@test
def stores_are_found_by_the_resolver_of_the_node_with_and_without_its_network():
    # ClusterFirst falls back to it with hostNetwork, and wants CoreDNS without
    for components, is_of_the_node in (([], True), (["no-host-network"], None)):
        pod = pod_of(render(components=components))
        assert (pod["dnsPolicy"], pod.get("hostNetwork")) == ("Default", is_of_the_node)


@test
def the_credentials_are_the_agents_alone():
    for component, variable in (("irsa", "AWS_WEB_IDENTITY_TOKEN_FILE"),
                                ("pod-identity", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")):
        pod = pod_of(render(components=[component]))
        for one in pod["containers"] + pod["initContainers"]:
            assert (variable in str(one)) == (one["name"] == "agent"), one["name"]
        assert pod["automountServiceAccountToken"] is False


@test
def the_agent_accepts_the_configuration():
    text = find(render(), "ConfigMap")["data"]["neuron-collectd.yaml"]
    program = os.path.join(os.environ.get("builddir", "."), "neuron-collectd")
    if not os.path.exists(program):
        raise Skip("the agent is not built in builddir")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        for listen in ("", "0.0.0.0:9733"):
            said = run(program, "--config", f.name, "--print-config", env=dict(
                os.environ, BUCKET="my-bucket", NODE_NAME="node-1", API_LISTEN=listen))
            assert re.search(rf'^ *listen: "?{listen}"? #', said, re.MULTILINE), said


if __name__ == "__main__":
    sys.exit(main())
