"""The image that deploy/container/build_image makes of the package, and podman to run it."""
import atexit
import functools
import glob
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile

from packages import SRCDIR, download, package, run
from tap import Skip

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


def scratch(*parts):
    return os.path.join(_scratch, *parts)


def build(name, *debs, **more):
    path = scratch(name)
    download(BUILD, "--output", path, *debs, **more)
    return path


@functools.cache
def image():
    """@return path of the image of this machine's architecture, built once"""
    return build("image.tar", package("neuron-collectd"))


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


@functools.cache
def load(path):
    """@return the image's name in podman's store, which is below the scratch directory"""
    if os.geteuid() != 0 or not shutil.which("podman") or not shutil.which("runc"):
        raise Skip("needs root, podman and runc")
    text = podman("load", "-q", "-i", path)
    atexit.register(unmount)
    return text.split("Loaded image:")[1].strip()


def unmount():
    podman("rm", "--all", "--force", check=False)
    podman("rmi", "--all", "--force", check=False)
    for place in glob.glob(scratch("store", "overlay")):
        subprocess.run(["umount", "-q", place], check=False)
