"""What agents that agree have left at the destination that they share: bundles, decisions, records
of nodes and published rosters, read from outside."""
import collections
import json
import os
import tempfile

import agent
from s3tools import new_bucket

FIXED = "neuron"  # the part of the prefix in Agent.s3() that is before its first variable


class SharedVolume:
    """A directory that stands for a volume of all nodes."""

    def __init__(self, net):
        self.path = tempfile.mkdtemp(prefix="neuron-e2e-share.")
        agent._directories.append(self.path)  # pylint: disable=protected-access
        os.chmod(self.path, 0o1777)
        for a in net.agents:
            a.config["destinations"] = [a.volume("archive", self.path)]

    def look(self):
        return View(self.path)

    def url(self, place):
        return os.path.join(self.path, place)

    def options(self):
        return []


class SharedBucket:
    """A bucket of all nodes. @param server  one that they reach: its address is network.HUB"""

    def __init__(self, net, server, **more):
        self.server, self.bucket = server, new_bucket(server)
        for a in net.agents:
            a.config["destinations"] = [a.s3("archive", server, self.bucket, request_timeout="3s",
                                             **more)]

    def look(self):
        return View(os.path.join(self.bucket.fetch(), FIXED))

    def url(self, place):
        return f"s3://{self.bucket.name}/{FIXED}/{place}"

    def options(self):
        return ["--endpoint-url", self.server.endpoint, "--region", self.server.region]


def _load(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


class View:
    """A destination at one moment.
    bundles: {place: [manifest]} of dumps, without supplements; all_manifests: also the others
    decisions: {(key, n): document}; records: {(key, n): {instance id: [document]}}
    incidents: {place: document}"""

    def __init__(self, root):
        self.root = root
        self.bundles = collections.defaultdict(list)
        self.all_manifests, self.temporary = [], []
        self.decisions, self.incidents = {}, {}
        self.records = collections.defaultdict(lambda: collections.defaultdict(list))
        for base, _, names in os.walk(root):
            for name in names:
                parts = os.path.relpath(os.path.join(base, name), root).split(os.sep)
                if name.startswith("."):
                    self.temporary.append(os.path.join(*parts))
                    continue
                try:
                    self._add(parts, os.path.join(base, name))
                except FileNotFoundError:
                    pass  # replaced by its writer at this moment

    def _add(self, parts, path):
        name = parts[-1]
        if parts[0] == ".incidents":
            if len(parts) == 3:
                self.decisions[parts[1], int(name.removesuffix(".json"))] = _load(path)
            else:
                node = name.removesuffix(".json").partition("-")[2]
                self.records[parts[1], int(parts[2])][node].append(_load(path))
        elif name == "incident.json":
            self.incidents[parts[0]] = _load(path)
        elif name.endswith(".manifest.json"):
            m = _load(path)
            self.all_manifests.append((parts[0], m))
            if m["bundle"]["supplement_of"] is None and m["source"]["name"] == "core-dumps":
                self.bundles[parts[0]].append(m)

    @property
    def n_bundles(self):
        return sum(len(found) for found in self.bundles.values())

    def numbers(self, key):
        """The failures of a key."""
        return sorted(n for k, n in self.decisions if k == key)

    def place(self, key, n=1):
        d = self.decisions[key, n]
        return f"{d['date_time']}-{d['cluster_id']}"

    def assert_each_once(self):
        """No bundle has a second copy, and nothing is half written."""
        ids = collections.Counter((m["node"]["instance_id"], m["bundle"]["id"])
                                  for _, m in self.all_manifests)
        twice = [i for i, n in ids.items() if n > 1]
        assert not twice, twice
        assert not self.temporary, self.temporary
