"""kubectl with a kustomize that knows components, and what it renders of deploy/kubernetes."""
import os
import re
import shutil
import subprocess
import tempfile

import yaml

from packages import CACHE, SRCDIR, download, run

DEPLOY = os.path.join(SRCDIR, "deploy/kubernetes")
MIRROR = "http://deb.debian.org/debian"
# Debian 12 has kubectl 1.20, whose kustomize is older than components; that of Debian 13 needs no
# more than libc.
NEWER = "trixie"


def version_of(program):
    try:
        text = subprocess.run([program, "version", "--client", "-o", "yaml"], check=True, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(re.search(r'minor: "?(\d+)', text)[1])


def fetch_debian(package, suite, kind="deb"):
    """Downloads a package of another release, or its source, without touching the machine's apt.
    @return the directory where it is"""
    place = os.path.join(CACHE, f"{package}-{suite}-{kind}")
    if os.path.isdir(place):
        return place
    with tempfile.TemporaryDirectory() as top:
        for name in ("lists/partial", "archives/partial"):
            os.makedirs(os.path.join(top, name))
        with open(os.path.join(top, "list"), "w", encoding="ascii") as f:
            f.write(f"{kind} [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {MIRROR} "
                    f"{suite} main\n")
        apt = ["apt-get", "-qq", f"-oDir::Etc::sourcelist={top}/list",
               "-oDir::Etc::sourceparts=/dev/null", f"-oDir::State::lists={top}/lists",
               "-oDir::State::status=/dev/null", "-oAPT::Sandbox::User=root",
               "-oDir::Cache::pkgcache=", "-oDir::Cache::srcpkgcache="]
        os.makedirs(place + ".new", exist_ok=True)
        download(*apt, "update")
        download(*apt, *(["download"] if kind == "deb" else ["source", "--download-only"]), package,
                 cwd=place + ".new")
    os.rename(place + ".new", place)
    return place


def kubectl():
    """@return a program that renders components"""
    found = shutil.which("kubectl")
    if found and version_of(found) >= 21:
        return found
    place = fetch_debian("kubectl", NEWER)
    program = os.path.join(place, "root/usr/bin/kubectl")
    if not os.path.exists(program):
        deb = [name for name in os.listdir(place) if name.endswith(".deb")][0]
        run("dpkg-deb", "-x", os.path.join(place, deb), os.path.join(place, "root"))
    return program


def render(base="base", components=(), **more):
    """@return the objects that kustomize makes, sorted; @param more  of the kustomization"""
    with tempfile.TemporaryDirectory() as top:
        # kustomize takes no absolute paths
        where = os.path.relpath(DEPLOY, os.path.realpath(top))
        document = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
                    "resources": [os.path.join(where, base)] if base else [],
                    "components": [os.path.join(where, "components", c) for c in components]}
        files = more.pop("files", {})
        document["resources"] += [name for name in files if name.startswith("resource-")]
        for name, text in {"kustomization.yaml": yaml.safe_dump({**document, **more}),
                           **files}.items():
            with open(os.path.join(top, name), "w", encoding="utf-8") as f:
                f.write(text)
        text = subprocess.run([kubectl(), "kustomize", "--load-restrictor=LoadRestrictionsNone",
                               top], check=True, text=True, stdout=subprocess.PIPE).stdout
    return sorted(yaml.safe_load_all(text), key=lambda o: (o["kind"], o["metadata"]["name"]))


def dump(objects):
    return yaml.safe_dump_all(objects, width=100)
