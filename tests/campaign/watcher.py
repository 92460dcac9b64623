"""Looks at the daemon all the time while it runs, and writes down what it says of itself and what
it takes."""
import http.client
import json
import threading
import time

from agent import UnixConnection

STATES = ("settling", "ready", "shipping", "delivered", "quarantined", "evicted", "cancelled",
          "vanished")


def ask(path, what, timeout=2.0):
    """@return the body of the answer, or None: it was killed, or has not begun to listen"""
    connection = UnixConnection(path, timeout)
    try:
        connection.request("GET", what)
        answer = connection.getresponse()
        body = answer.read()
        return body if answer.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def counts_of_metrics(text):
    """{state: bundles} and `discovered`, out of the Prometheus text."""
    found = {}
    for line in text.splitlines():
        if line.startswith("neuron_collectd_bundles{state="):
            found[line.split('"')[1]] = int(float(line.rsplit(" ", 1)[1]))
        elif line.startswith('neuron_collectd_bundles_total{state="discovered"}'):
            found["discovered"] = int(float(line.rsplit(" ", 1)[1]))
    return found if len(found) == len(STATES) + 1 else None


class Watcher:
    """@param sources  whose files are looked after as well"""

    def __init__(self, api_socket, file, sources):
        self.socket, self.file, self.sources = api_socket, file, sources
        self.pid = None          # of the daemon, while it runs
        self.status = None       # the last whole answer
        self.n = 0
        self.most_memory = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self):
        self._ends.set()
        self._thread.join(10)

    def _run(self):
        with open(self.file, "w", encoding="utf-8") as f:
            while not self._ends.wait(0.03):
                sample = self._look()
                if sample:
                    f.write(json.dumps(sample) + "\n")
                    self.n += 1
                    self.most_memory = max(self.most_memory, sample.get("hwm", 0))

    def _look(self):
        for unit in list(self.sources.units):
            if unit.agent_may_delete and unit.present:
                unit.look(time.time())
        pid = self.pid
        if pid is None:
            return None
        sample = {"pid": pid, "at": time.monotonic()}
        body = ask(self.socket, "/v1/status")
        if body:
            self.status = json.loads(body)
            sample["status"] = self.status["bundles"]
        body = ask(self.socket, "/metrics")
        if body:
            sample["metrics"] = counts_of_metrics(body.decode())
        try:
            with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
                sample["hwm"] = next((int(line.split()[1]) << 10 for line in f
                                      if line.startswith("VmHWM")), 0)
        except OSError:
            pass
        return sample if len(sample) > 2 else None
