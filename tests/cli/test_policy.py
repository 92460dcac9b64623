#!/usr/bin/env python3
"""The IAM policies in docs/ against what the agent and doctor ask of a bucket: a server that grants
what a policy says, and nothing else, as IAM evaluates it."""
import fnmatch
import json
import os
import re
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
# pylint: disable=wrong-import-position
from cli_test import CLI, SOURCE_DIR, main, run, test

from agent import INSTANCE, Agent, cleanup, clean_environment
from s3_server import Request, S3Server

# The action that AWS demands for an operation (S3 User Guide, "Required permissions for Amazon S3
# API operations").
ACTIONS = {
    "HeadBucket": "s3:ListBucket", "ListObjectsV2": "s3:ListBucket",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "HeadObject": "s3:GetObject", "GetObject": "s3:GetObject",
    "PutObject": "s3:PutObject", "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject", "CompleteMultipartUpload": "s3:PutObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "ListParts": "s3:ListMultipartUploadParts", "DeleteObject": "s3:DeleteObject",
}
# Documented as optional, for probe objects alone; the policy has it not.
OPTIONAL = {"s3:DeleteObject"}
# A HEAD of the bucket has no prefix, so the policy's condition refuses it: doctor and the agent
# then ask for a key.
REFUSED = {"HeadBucket", "DeleteObject"}
PARTS = 12 << 20
TAG = "${aws:PrincipalTag/instance}"  # IAM User Guide, "Policy elements: Variables and tags"


def as_list(value):
    return value if isinstance(value, list) else [value]


def policies():
    """[(page, policy)] of all pages for a bucket."""
    found = []
    directory = os.path.join(SOURCE_DIR, "docs")
    for page in sorted(os.listdir(directory)):
        if not page.endswith(".md"):
            continue
        with open(os.path.join(directory, page), encoding="utf-8") as f:
            for text in re.findall(r"```json\n(.*?)```", f.read(), re.S):
                if '"2012-10-17"' in text and '"s3:PutObject"' in text:
                    found.append((page, json.loads(text.replace(TAG, INSTANCE))))
    assert any(page == "S3.md" for page, _ in found), "no policy in docs/S3.md"
    return found


def actions(policy):
    return {a for s in policy["Statement"] for a in as_list(s["Action"])}


def permits(policy, request):
    """As IAM: an Allow whose action, resource and conditions all match. What a request has no value
    for does not match."""
    resource = "arn:aws:s3:::my-bucket" + (f"/{request.key}" if request.key else "")
    for s in policy["Statement"]:
        conditions = s.get("Condition", {})
        assert set(conditions) <= {"StringLike", "Null"} and s["Effect"] == "Allow", s
        null = conditions.get("Null", {})
        assert null in ({}, {"s3:if-none-match": "false"}), s
        wanted = conditions.get("StringLike", {})
        assert set(wanted) <= {"s3:prefix"}, s
        prefix = request.query.get("prefix")
        if (ACTIONS[request.operation] in as_list(s["Action"])
                and any(fnmatch.fnmatchcase(resource, r) for r in as_list(s["Resource"]))
                and (not null or "if-none-match" in request.headers)
                and (not wanted or prefix is not None and any(
                    fnmatch.fnmatchcase(prefix, p) for p in as_list(wanted["s3:prefix"])))):
            return True
    return False


class Bucket(S3Server):
    """@param policy  what it grants; a missing object is forbidden, which AWS says where the list
    cannot be read as a whole"""

    def __init__(self, policy):
        super().__init__(bucket="my-bucket")
        self.refused = []   # (operation, key, prefix)

        def refuse(request):
            denied = not permits(policy, request)
            if denied:
                self.refused.append((request.operation, request.key, request.query.get("prefix")))
            return denied or (request.operation in ("HeadObject", "GetObject")
                              and request.key not in self.objects)

        self.fault("*", when=refuse, status=403, code="AccessDenied", times=None)

    def actions(self):
        return {ACTIONS[r.operation] for r in self.log}


def agent(s):
    a = Agent()
    a.config["destinations"] = [a.s3("archive", s, "my-bucket")]
    a.config["agreement"] = {"enabled": True, "listen": "ipc://" + a.path("bus")}
    return a


@test
def each_policy_is_what_doctor_probes_and_nothing_else():
    for page, policy in policies():
        with Bucket(policy) as s:
            a = agent(s)
            a.write_config()
            result = run(CLI, "--config", a.config_file, "doctor", "--destination", "archive",
                         env=clean_environment(HOME="/nonexistent", **s.environment()))
            assert result.returncode == 0, (page, result)
            probed = s.actions() - OPTIONAL
            assert probed == actions(policy), (page, probed ^ actions(policy))
            assert {r[0] for r in s.refused} <= REFUSED, (page, s.refused)


@test
def an_agent_with_each_policy_delivers_and_resumes():
    for page, policy in policies():
        with Bucket(policy) as s:
            a = agent(s)
            a.config["limits"] = {"compression_level": 1}
            a.dump()
            a.incompressible(PARTS)
            a.config["sources"].append(a.source("jobs", "directory", "jobs/job-%p"))
            s.fault("UploadPart", part=2, times=1, stall="answer")
            a.start()
            s.wait_for("a second part", lambda: s.seen("UploadPart", part=2))
            a.kill()
            s.release()
            a.start()
            a.wait_delivered(2)
            a.stop()
            assert {r[0] for r in s.refused} <= REFUSED, (page, s.refused)
            assert s.actions() - OPTIONAL <= actions(policy), (page, s.actions())
            manifests = [k for k in s.objects if k.endswith(".manifest.json")]
            assert len(manifests) == 2, s.objects.keys()


@test
def without_one_of_its_actions_doctor_has_something_to_say():
    """The comparison can fail: each action of the policy is there for something."""
    _, policy = next(p for p in policies() if p[0] == "S3.md")
    for action in sorted(actions(policy)):
        less = json.loads(json.dumps(policy))
        for s in less["Statement"]:
            s["Action"] = [a for a in as_list(s["Action"]) if a != action]
        with Bucket(less) as s:
            a = agent(s)
            a.write_config()
            result = run(CLI, "--config", a.config_file, "doctor", "--destination", "archive",
                         env=clean_environment(HOME="/nonexistent", **s.environment()))
            assert f"needs {action}" in result.stdout, (action, result.stdout)


def put(key, **headers):
    return Request("PUT", key, "", {k.replace("_", "-"): v for k, v in headers.items()}, 0,
                   operation="PutObject", key=f"neuron/{key}")


@test
def with_the_policy_by_instance_no_node_writes_in_another_s_name():
    by_instance = [p for _, p in policies() if any("incident.json" in r for s in p["Statement"]
                                                   for r in as_list(s["Resource"]))]
    assert len(by_instance) == 1, by_instance
    policy, other, name, key = by_instance[0], "i-0bad", "20260527-051233-00000000000000aa", "0" * 16
    created = {"if_none_match": "*"}
    for own in (put(f"{name}/{INSTANCE}/x.tar.zst"), put(f"{name}/{INSTANCE}/x.see.json"),
                put(f".incidents/{key}/1/20260527T051233000-{INSTANCE}.json"),
                put(f".incidents/{key}/1.json", **created), put(f".incidents/{key}/12.json", **created),
                put(f"{name}/incident.json"), put(f".incidents/.probe-{INSTANCE}")):
        assert permits(policy, own), own
    for strange in (put(f"{name}/{other}/x.tar.zst"), put(f"{name}/{other}/x.see.json"),
                    put(f".incidents/{key}/1/20260527T051233000-{other}.json", **created),
                    put(f".incidents/{key}/1.json"), put(f"{name}.{other}/x", **created)):
        assert not permits(policy, strange), strange


@test
def the_table_explains_each_action():
    with open(os.path.join(SOURCE_DIR, "docs", "S3.md"), encoding="utf-8") as f:
        table = set(re.findall(r"(?m)^\| `(s3:\w+)` \|", f.read()))
    _, policy = next(p for p in policies() if p[0] == "S3.md")
    assert table >= actions(policy) | OPTIONAL, actions(policy) - table


if __name__ == "__main__":
    sys.exit(main(cleanup))
