"""The image that deploy/container/build_image makes of the package, and podman to run it."""
import atexit
import glob
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile

from packages import SRCDIR, package, run
from tap import Skip, notes

BUILD = os.path.join(SRCDIR, "deploy/container/build_image")
# root may not raise limits here, and control groups of both versions are mounted
CONTAINERS_CONF = """[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""
_scratch = tempfile.mkdtemp(prefix="neuron-image.", dir="/var/tmp")
atexit.register(shutil.rmtree, _scratch, ignore_errors=True)
_built = []


def scratch(*parts):
    return os.path.join(_scratch, *parts)


def build(name, *debs, **more):
    path = scratch(name)
    notes.append(run(BUILD, "--output", path, *debs, **more))
    return path


def image():
    """@return path of the image of this machine's architecture, built once"""
    if not _built:
        try:
            _built.append(build("image.tar", package("neuron-collectd")))
        except AssertionError as error:
            if "Failed to fetch" in notes[-1]:
                raise Skip("Debian's mirror cannot be reached") from error
            raise
    return _built[0]


def blob(tar, digest):
    return tar.extractfile("blobs/" + digest.replace(":", "/")).read()


def layers(path):
    """@return the manifest, and a tarfile for each layer, of an image of one architecture"""
    with tarfile.open(path) as tar:
        index = json.load(tar.extractfile("index.json"))
        manifest = json.loads(blob(tar, index["manifests"][0]["digest"]))
        return manifest, [tarfile.open(fileobj=io.BytesIO(blob(tar, layer["digest"])))
                          for layer in manifest["layers"]]


def unpack(path):
    """@return a directory with what the layers have"""
    root = scratch("root")
    if not os.path.isdir(root):
        for layer in layers(path)[1]:
            layer.extractall(root)
    return root


def podman(*arguments, check=True, **more):
    conf = scratch("containers.conf")
    if not os.path.exists(conf):
        with open(conf, "w", encoding="ascii") as f:
            f.write(CONTAINERS_CONF)
    store = ["--root", scratch("store"), "--runroot", scratch("run")]
    return run("podman", *store, *arguments, check=check,
               env=dict(os.environ, CONTAINERS_CONF=conf), **more)


def load():
    """@return the image's name in podman's store, which is below the scratch directory"""
    if os.geteuid() != 0 or not shutil.which("podman") or not shutil.which("runc"):
        raise Skip("needs root, podman and runc")
    if not _built or len(_built) < 2:
        text = podman("load", "-q", "-i", image())
        _built.append(text.split("Loaded image:")[1].strip())
        atexit.register(unmount)
    return _built[1]


def unmount():
    podman("rm", "--all", "--force", check=False)
    podman("rmi", "--all", "--force", check=False)
    for place in glob.glob(scratch("store", "overlay")):
        subprocess.run(["umount", "-q", place], check=False)
