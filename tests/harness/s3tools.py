"""The judges of what lies in a bucket: rclone (starts in a tenth of a second, so it does the most)
and the AWS CLI, each with an environment in which nothing of the machine's or the developer's own
settings is left.
"""
import dataclasses
import glob
import hashlib
import json
import os
import shutil
import subprocess
import tempfile

import agent
from agent import PATIENCE, clean_environment, need, run
from tap import Skip

# Debian's own where it is there: newer SDKs want checksum trailers, which stores of this age do not
# know.
AWS = "/usr/bin/aws" if os.access("/usr/bin/aws", os.X_OK) else shutil.which("aws")


@dataclasses.dataclass
class Endpoint:
    """One way to a server, with somebody's keys; servers themselves have the same attributes."""
    endpoint: str
    access_key: str
    secret_key: str
    region: str = "us-east-1"
    ca_file: str = None
    token: str = None

    def with_keys(self, access_key, secret_key, token=None):
        return dataclasses.replace(self, access_key=access_key, secret_key=secret_key, token=token)


class Bucket:
    """A bucket as others see it. It is made when it is not there, unless make=False."""

    def __init__(self, server, name, make=True):
        need("rclone")
        self.server, self.name = server, name
        self.environment = clean_environment(
            RCLONE_CONFIG="/dev/null", RCLONE_CONFIG_T_TYPE="s3", RCLONE_CONFIG_T_PROVIDER="Other",
            RCLONE_CONFIG_T_ENV_AUTH="false", RCLONE_CONFIG_T_ENDPOINT=server.endpoint,
            RCLONE_CONFIG_T_REGION=server.region, RCLONE_S3_NO_CHECK_BUCKET="true",
            RCLONE_CONFIG_T_ACCESS_KEY_ID=server.access_key,
            RCLONE_CONFIG_T_SECRET_ACCESS_KEY=server.secret_key, LC_ALL="C.UTF-8",
            RCLONE_RETRIES="1", RCLONE_LOW_LEVEL_RETRIES="3", AWS_ACCESS_KEY_ID=server.access_key,
            AWS_SECRET_ACCESS_KEY=server.secret_key, AWS_DEFAULT_REGION=server.region,
            AWS_EC2_METADATA_DISABLED="true", AWS_CONFIG_FILE="/dev/null",
            AWS_SHARED_CREDENTIALS_FILE="/dev/null", AWS_PAGER="",
            AWS_REQUEST_CHECKSUM_CALCULATION="when_required",
            AWS_RESPONSE_CHECKSUM_VALIDATION="when_required", AWS_MAX_ATTEMPTS="2")
        if getattr(server, "token", None):
            self.environment |= {"RCLONE_CONFIG_T_SESSION_TOKEN": server.token,
                                 "AWS_SESSION_TOKEN": server.token}
        if server.ca_file:
            self.environment |= {"RCLONE_CA_CERT": server.ca_file, "AWS_CA_BUNDLE": server.ca_file}
            # rclone 1.60 does not start when AWS_CA_BUNDLE is set and it has a transport of its
            # own.
        if make:
            self.make()

    # --- the two programs ---

    def rclone(self, *arguments, expect=0):
        environment = {k: v for k, v in self.environment.items() if k != "AWS_CA_BUNDLE"}
        result = run("rclone", *arguments, env=environment)
        assert expect is None or result.returncode == expect, (
            f"rclone {' '.join(arguments)}: exit {result.returncode}: {result.stderr}")
        return result

    def aws(self, *arguments, expect=0):
        """aws s3api …, its answer as a dict; None where it has none."""
        if not AWS:
            raise Skip("awscli is not installed")
        result = run(AWS, "--endpoint-url", self.server.endpoint, "--output", "json", "s3api",
                     *arguments, env=self.environment)
        assert (expect is None or result.returncode
                == expect), f"aws {' '.join(arguments)}: exit {result.returncode}: {result.stderr}"
        return json.loads(
            result.stdout) if result.returncode == 0 and result.stdout.strip() else None

    def remote(self, key=""):
        return f"t:{self.name}/{key}" if key else f"t:{self.name}"

    # --- looking ---

    def make(self):
        self.rclone("mkdir", "--s3-no-check-bucket=false", self.remote())

    def exists(self):
        return self.name in [line.rstrip("/")
                             for line in self.rclone("lsf", "t:").stdout.splitlines()]

    def objects(self):
        """{key: bytes}"""
        listed = self.rclone("lsjson", "-R", "--files-only", "--no-modtime", "--no-mimetype",
                             self.remote())
        return {o["Path"]: o["Size"] for o in json.loads(listed.stdout)}

    def metadata(self):
        """{key: its x-amz-meta-…}"""
        listed = self.rclone("lsjson", "-R", "-M", "--files-only", self.remote())
        return {o["Path"]: o.get("Metadata") or {} for o in json.loads(listed.stdout)}

    def objects_by_aws(self):
        """The same, keys as the AWS CLI sees them."""
        listed = self.aws("list-objects-v2", "--bucket", self.name) or {}
        return {o["Key"]: o["Size"] for o in listed.get("Contents", [])}

    def uploads(self):
        """Multipart uploads underway: [(key, upload id)]"""
        listed = json.loads(self.rclone("backend", "list-multipart-uploads", self.remote()).stdout)
        return [(u["Key"], u["UploadId"]) for uploads in listed.values() for u in uploads or []]

    def head(self, key, expect=0):
        return self.aws("head-object", "--bucket", self.name, "--key", key, expect=expect)

    def read(self, key):
        """One object's bytes, by rclone."""
        result = subprocess.run(["rclone", "cat", self.remote(key)],
                                env={k: v for k, v in self.environment.items()
                                     if k != "AWS_CA_BUNDLE"}, stdin=subprocess.DEVNULL,
                                capture_output=True, check=False, timeout=120 * PATIENCE)
        assert result.returncode == 0, f"rclone cat {key}: {result.stderr.decode(errors='replace')}"
        return result.stdout

    def fetch(self):
        """Everything as files below a temporary directory, which goes with the test. @return its
        path"""
        target = tempfile.mkdtemp(prefix="neuron-e2e-fetch.")
        agent._directories.append(
            target)  # pylint: disable=protected-access  # removed by cleanup()
        self.rclone("copy", "--transfers", "2", self.remote(), target)
        return target

    def manifests(self):
        """Keys of the manifests that are there."""
        return sorted(k for k in self.objects() if k.endswith(".manifest.json"))

    def bundles(self):
        return sorted(k for k in self.objects() if k.endswith(".tar.zst"))

    # --- changing ---

    def put(self, key, data, metadata=None):
        with tempfile.NamedTemporaryFile(prefix="neuron-e2e-put.") as f:
            f.write(data)
            f.flush()
            self.aws("put-object", "--bucket", self.name, "--key", key, "--body", f.name,
                     *(["--metadata", ",".join(f"{k}={v}" for k, v in metadata.items())]
                       if metadata else []))

    def delete(self, key):
        self.rclone("deletefile", self.remote(key))

    def begin_upload(self, key, part=None):
        """A multipart upload that nobody continues. @param part  bytes of its first part; None =
        none. @return its id"""
        upload = self.aws("create-multipart-upload", "--bucket", self.name, "--key",
                          key)["UploadId"]
        if part is not None:
            self.add_part(key, upload, part)
        return upload

    def add_part(self, key, upload, part, number=1):
        with tempfile.NamedTemporaryFile(prefix="neuron-e2e-put.") as f:
            f.write(part)
            f.flush()
            self.aws("upload-part", "--bucket", self.name, "--key", key, "--upload-id", upload,
                     "--part-number", str(number), "--body", f.name)

    def allow(self, user, object_actions, bucket_actions=(), deny=(), owner="test"):
        """A bucket policy that lets another user of the store do this and nothing else. Objects
        belong to who wrote them: so the owner of the bucket needs to be allowed to read them, and
        their writer may look at them unless that is denied. Called by the owner."""
        objects, itself = f"arn:aws:s3:::{self.name}/*", f"arn:aws:s3:::{self.name}"
        statements = [{"Effect": effect, "Principal": {"AWS": [f"arn:aws:iam:::user/{who}"]},
                       "Action": list(actions), "Resource": resource} for effect, who, actions,
                      resource in (("Allow", owner, ["s3:*"], objects),
                                   ("Allow", user, object_actions, objects),
                                   ("Allow", user, bucket_actions, itself),
                                   ("Deny", user, deny, objects)) if actions]
        self.aws("put-bucket-policy", "--bucket", self.name, "--policy",
                 json.dumps({"Version": "2012-10-17", "Statement": statements}))


def fake_time(offset):
    """Environment for a program whose clock is to be wrong; the faketime command would stand
    between us and the process.
    @param offset  -2d for example"""
    found = [path for place in ("lib/*", "lib64", "lib")
             for path in glob.glob(f"/usr/{place}/faketime/libfaketime.so.1")]
    if not found:
        raise Skip("libfaketime is not installed")
    return {"LD_PRELOAD": found[0], "FAKETIME": offset, "NO_FAKE_STAT": "1"}


def judge(a, bucket, units, tools=("tar",), **wanted):
    """There is one bundle for each unit, complete and bit for bit, with its plan in its metadata,
    and nothing else: no other object, no upload underway. @return {unit: manifest}"""
    where = bucket.fetch()
    found = {}
    for path, manifest in a.manifests(where):
        unit = manifest["source"]["path"]
        assert unit not in found, f"two bundles of {unit}: {path}"
        found[unit] = path
    assert set(found) == set(
        units), f"missing {set(units) - set(found)}, extra {set(found) - set(units)}"
    manifests = {unit: agent.check_bundle(path, unit, tools=tools, **wanted) for unit,
                 path in found.items()}
    keys = {os.path.relpath(path, where): manifests[unit]["bundle"]["plan"] for unit,
            path in found.items()}
    keys |= {agent.object_of(key): plan for key, plan in keys.items()}
    there = bucket.metadata()
    assert set(there) == set(keys), f"also there: {set(there) - set(keys)}"
    for key, plan in keys.items():
        assert there[key].get("neuron-collectd-plan") == plan, (key, there[key], plan)
    assert not bucket.uploads(), f"left over: {bucket.uploads()}"
    return manifests


def judge_server(s3, units, bucket=None, tools=("tar",), directory=None):
    """As judge(), by what s3_server.S3Server itself holds.
    @param tools  () compares the object with its manifest only
    @return {unit: manifest}"""
    objects = s3.buckets[bucket or s3.bucket]
    manifests = {key: json.loads(o.body) for key, o in objects.items()
                 if key.endswith(".manifest.json") and "/.incidents/" not in key}
    found = [m["source"]["path"] for m in manifests.values()]
    assert sorted(found) == sorted(units), f"wanted {sorted(units)}, found {sorted(found)}"
    keys = {key.removesuffix(".manifest.json") + ".tar.zst" for key in manifests} | set(manifests)
    assert set(objects) == keys, f"not both of a bundle: {sorted(set(objects) ^ keys)}"
    for key, manifest in manifests.items():
        _judge_object(objects[key.removesuffix(".manifest.json") + ".tar.zst"], manifest)
    left = [u.key for u in s3.uploads.values() if u.bucket == (bucket or s3.bucket)]
    assert not left, f"left over: {left}"
    if tools:
        _judge_content(objects, manifests, tools, directory)
    return {m["source"]["path"]: m for m in manifests.values()}


def _judge_object(found, manifest):
    assert len(found.body) == manifest["bundle"]["bytes"], manifest["bundle"]
    offset = 0
    for part in manifest["bundle"]["parts"]:
        digest = hashlib.sha256(found.body[offset:offset + part["bytes"]]).hexdigest()
        assert digest == part["sha256"], f"the part at {offset} differs"
        offset += part["bytes"]
    assert found.headers.get("x-amz-meta-neuron-collectd-plan") == manifest["bundle"]["plan"]


def _judge_content(objects, manifests, tools, directory):
    with tempfile.TemporaryDirectory(dir=directory) as where:
        for key, manifest in manifests.items():
            path = os.path.join(where, key)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            for name in (key, key.removesuffix(".manifest.json") + ".tar.zst"):
                with open(os.path.join(where, name), "wb") as f:
                    f.write(objects[name].body)
            agent.check_bundle(path, manifest["source"]["path"], tools=tools)


_numbers = iter(range(1, 1 << 30))


def new_bucket(server, make=True):
    """A bucket that no other test of this process has."""
    return Bucket(server, f"e2e-{os.getpid()}-{next(_numbers)}", make=make)
