#!/usr/bin/env python3
"""Lists what a package contains, as SPDX 2.3: its files, the C library and compiler parts that are
linked into the static hook (read from the linker's map), and the libraries that it needs.
usage: spdx.py PACKAGE ROOT MAP VERSION SOURCE_DATE_EPOCH [DEPENDENCY...] >PACKAGE.spdx.json"""
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys

# By source package, as its debian/copyright says of what is linked in.
LINKED = {"glibc": "LGPL-2.1-or-later",
          "cross-toolchain-base": "LGPL-2.1-or-later",  # glibc for another architecture
          "gcc": "GPL-3.0-or-later WITH GCC-exception-3.1"}
OURS = "Apache-2.0"


def digest(path, name):
    with open(path, "rb") as f:
        return hashlib.new(name, f.read()).hexdigest()


def spdx_id(kind, text):
    return f"SPDXRef-{kind}-" + re.sub(r"[^A-Za-z0-9.-]", "-", text)


def list_files(root):
    found = []
    for base, directories, names in os.walk(root):
        directories.sort()
        for name in sorted(names):
            path = os.path.join(base, name)
            if os.path.islink(path) or base == os.path.join(root, "DEBIAN"):
                continue
            place = "./" + os.path.relpath(path, root)
            found.append({
                "fileName": place, "SPDXID": spdx_id("File", place[2:]),
                "checksums": [{"algorithm": a.upper(), "checksumValue": digest(path, a)}
                              for a in ("sha1", "sha256")],
                "licenseConcluded": OURS, "licenseInfoInFiles": ["NOASSERTION"],
                "copyrightText": "NOASSERTION"})
    return found


def output(*command):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


def linked_packages(map_file):
    """@return {source package: version} of the archives and objects outside of the build"""
    with open(map_file, encoding="utf-8") as f:
        found = re.findall(r"(?m)^(?:LOAD )?(/\S+?\.[ao])\b", f.read())
    paths = {os.path.realpath(path) for path in found}
    if not os.path.exists("/var/lib/dpkg/status"):
        names = output("rpm", "-qf", "--qf", "%{SOURCERPM}\n", *sorted(paths)).split()
        return dict(re.match(r"(.+?)-([^-]+-[^-]+)\.src\.rpm$", name).groups() for name in names)
    owners = output("dpkg-query", "-S", *sorted(paths))
    names = sorted({line.rpartition(": ")[0] for line in owners.splitlines()})
    shown = output("dpkg-query", "-W", "-f", "${source:Package} ${source:Version}\n", *names)
    return dict(line.split() for line in shown.splitlines())


def package(name, version, licence, kind="Package"):
    return {"name": name, "SPDXID": spdx_id(kind, name), "versionInfo": version,
            "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
            "licenseConcluded": licence, "licenseDeclared": licence,
            "copyrightText": "NOASSERTION"}


def document(name, root, map_file, version, epoch, dependencies):
    files = list_files(root)
    ours = package(name, version, OURS) | {"filesAnalyzed": True, "licenseInfoFromFiles": [OURS]}
    sums = "".join(sorted(f["checksums"][0]["checksumValue"] for f in files))
    ours["packageVerificationCode"] = {
        "packageVerificationCodeValue": hashlib.sha1(sums.encode()).hexdigest()}
    packages, relations = [ours], [("SPDXRef-DOCUMENT", "DESCRIBES", ours["SPDXID"])]
    relations += [(ours["SPDXID"], "CONTAINS", f["SPDXID"]) for f in files]
    for source, its_version in linked_packages(map_file).items():
        licence = LINKED[re.sub(r"-\d+.*$", "", source)]
        packages.append(package(source, its_version, licence, "Linked"))
        for f in (f for f in files if f["fileName"].endswith("/neuron-dump")):
            f["licenseConcluded"] += f" AND {licence}"
            relations.append((f["SPDXID"], "STATIC_LINK", packages[-1]["SPDXID"]))
    for dependency in dependencies:
        its_name, _, its_version = dependency.strip().partition(" ")
        packages.append(package(its_name, its_version.strip("()") or "NOASSERTION", "NOASSERTION"))
        relations.append((ours["SPDXID"], "DEPENDS_ON", packages[-1]["SPDXID"]))
    return {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{name}-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{version}-"
                             + ours["packageVerificationCode"]["packageVerificationCodeValue"],
        "creationInfo": {
            "created": datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime(
                "%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: neuron-collectd-spdx.py"]},
        "packages": packages, "files": files,
        "relationships": [{"spdxElementId": a, "relationshipType": how, "relatedSpdxElement": b}
                          for a, how, b in relations]}


def main(arguments):
    name, root, map_file, version, epoch, *dependencies = arguments
    json.dump(document(name, root, map_file, version, int(epoch), dependencies), sys.stdout,
              indent=1)
    print()


if __name__ == "__main__":
    main(sys.argv[1:])
