"""One round of the campaign: lives of one daemon that end badly, a quiet end, the judgement. What
goes wrong is the themes' (themes.py)."""
import math
import os
import random
import re
import signal
import subprocess
import time

import agent as harness
import evidence
import oracle
import radosgw
from crashpoint import DEADLY, CrashPoint
from fault_proxy import FaultProxy
from sources import Sources
from watcher import Watcher

KILLS_A_ROUND = 12
QUIET_SECONDS = 90
LIBRARY = os.path.join(harness.BUILD_DIR, "tests", "campaign", "crashpoint.so")

# Where a crash point may lie: places, operations, and up to which call of theirs.
POINTS = (
    (("state",), ("write", "fsync", "truncate", "open", "unlink"), 250),
    (("state",), ("fsync",), 40),
    (("state",), ("write",), 250),
    (("volume",), ("open", "write", "fsync", "link", "rename", "unlink", "mkdir", "truncate"), 60),
    (("volume",), ("link", "rename", "unlink", "mkdir"), 12),
    (("sources",), ("link", "unlink", "mkdir", "rename"), 60),
    (("network",), ("send",), 120),
    (("network",), ("send",), 120),
    (None, ("open", "write", "fsync", "truncate", "rename", "link", "unlink", "mkdir", "send"),
     500),
)


class Round:
    """One theme, from an empty directory to the judgement. Subclasses say what goes wrong."""
    theme = ""
    may_delete = False
    storm = 0.03         # the share of requests that something happens to
    crash_chance = 0.7   # how many lives have a crash point
    large_every = 4      # every so many lives a dump of several parts
    lengths = (0.05, 0.15, 0.3, 0.6, 1.0, 1.5)  # seconds that a life may last, give or take a half

    def __init__(self, seed, number, kills=KILLS_A_ROUND):
        self.seed, self.number, self.kills_wanted = seed, number, kills
        self.random = random.Random(f"{seed} round {number}")  # of the life that is led
        self.kills = self.crashes = self.lives = 0
        self.ends, self.met, self.notes, self.faults = [], {}, [], []
        # [pid, since]: what that life knew from then on may not have been written
        self.state_failed = []
        self.watcher = None

    # --- what a theme says ---

    def prepare(self):
        """Before the first life; may change self.agent.config."""

    def before_life(self):
        """The daemon is not running."""

    def during_life(self):
        """The daemon runs; called about every 20 ms."""

    def after_life(self):
        """The daemon is dead again."""

    def place_of_state(self):
        return self.agent.path("state")

    def place_of_volume(self):
        return self.agent.path("out")

    # --- the round ---

    def run(self):
        try:
            self._set_up()
            deadline = time.monotonic() + self.kills_wanted * 8 * harness.PATIENCE
            while self.kills < self.kills_wanted and time.monotonic() < deadline:
                self._live_once()
            if self.kills < self.kills_wanted:
                self.notes.append(f"only {self.kills} of {self.kills_wanted} kills in time")
            self._quiet_end()
            return self._judge() + self.faults
        finally:
            self._tear_down()

    def _set_up(self):
        self.server = radosgw.shared(store="bluestore", bytes_=12 << 30)
        self.agent = harness.Agent()
        self.proxy = FaultProxy(self.server, f"{self.seed} {self.number}")
        self.bucket = evidence.Bucket(self.server, f"campaign-{os.getpid()}-{self.number}")
        self.sources = Sources(self.agent.path("src"), self.agent.path("staging"),
                               f"{self.seed} {self.number}", self.may_delete)
        self._configure()
        self.prepare()
        places = {"state": self.place_of_state(), "volume": self.place_of_volume(),
                  "sources": self.agent.path("src")}
        self.crash = CrashPoint(LIBRARY, self.agent.path("crashpoint"), places)
        self.agent.environment |= self.crash.environment(sanitizers())
        self.watcher = Watcher(self.agent.socket, self.agent.path("samples.jsonl"), self.sources)

    def _configure(self):
        a = self.agent
        a.config["sources"] = [a.source(name, kind, path, settle="100ms", scan_interval="1s")
                               for name, kind, path in (
            ("dumps", "neuron-core-dump", "src/dumps/dt-%d-cid-%c"),
            ("profiles", "neuron-profile", "src/profiles"),
            ("cores", "process-core", "src/cores"), ("jobs", "directory", "src/jobs/job-%p"))]
        for source in a.config["sources"]:
            source["settle"] = "100ms"
            # The judge knows what sources had; test_crash_reports kills agents that make reports.
            source["crash_reports"] = False
        a.config["destinations"] = [a.s3("bucket", self.proxy, self.bucket.name, part_size="5MiB",
                                         connections=3, request_timeout="2s"),
                                    a.volume("volume", "out")]
        a.config["retry"] = {"initial": "50ms", "maximum": "400ms"}
        # `auto` steps back while the machine is busy, and tests make it busy
        a.config["limits"] = {"compression_threads": 1}
        if os.environ.get("NC_AGREEMENT") == "on":
            a.config["agreement"] = {"settle": "1s", "listen": f"ipc://{a.path('run', 'bus')}"}

    def _live_once(self):
        # A life's draws are its own: how many of them there are depends on time, and the next
        # life's must not.
        self.lives += 1
        self.random = r = random.Random(f"{self.seed} round {self.number} life {self.lives}")
        plan = {"crash": r.random() < self.crash_chance,
                "length": r.choice(self.lengths) * (0.5 + r.random()),
                "end": "TERM" if r.random() < 0.15 else "KILL", "units": r.choice((0, 1, 1, 2))}
        self.proxy.storm(self.storm)
        self.before_life()
        if plan["crash"]:
            self.arm()
        self._start()
        for _ in range(plan["units"]):
            self.sources.make()
        if self.lives % self.large_every == 1:
            self.sources.make(large=True)
        end = time.monotonic() + plan["length"] * harness.slowness()
        while time.monotonic() < end and self.agent.process.poll() is None:
            self.during_life()
            time.sleep(0.02)
        self._end_life(plan["end"])
        self.after_life()
        for unit in self.sources.units:
            unit.look(time.time())

    def arm(self):
        """Draws a crash point; it may lie beyond this life's end, and then the life ends
        otherwise."""
        places, operations, upto = self.random.choice(POINTS)
        self.crash.arm(self.random.choice(DEADLY),
                       max(1, int(math.exp(self.random.uniform(0, math.log(upto))))), operations,
                       places)

    def _start(self):
        self.agent.start(wait=False)
        self.watcher.pid = self.agent.process.pid
        self.begun = time.monotonic()

    def _end_life(self, how):
        process = self.agent.process
        asked = False
        if process.poll() is None:
            asked = True
            process.send_signal(signal.SIGTERM if how == "TERM" else signal.SIGKILL)
        try:
            code = process.wait(20 * harness.PATIENCE)
        except subprocess.TimeoutExpired:
            self.ends.append({"by_itself": True, "code": 1, "excuse": None,
                              "last_words": "it did not end within 20 s of SIGTERM"})
            process.kill()
            code = process.wait()
        self._account(code, asked and how == "TERM")

    def _account(self, code, was_asked_nicely):
        """One life is over."""
        self.watcher.pid = None
        self.agent.process = None
        acted, what = self.crash.acted, self.crash.what
        self.crash.disarm()
        if code == -signal.SIGKILL:
            self.kills += 1
            if acted:
                self.crashes += 1
                self.meet(f"crash at {re.sub(r' .*', '', what)}, {self.place_name(what)}")
            else:
                self.meet("kill -9 at any moment")
        elif code == 0 and was_asked_nicely:
            self.meet("SIGTERM")
        # A SIGTERM that comes before a program has its handlers ends it like any other.
        by_itself = code != -signal.SIGKILL and not (was_asked_nicely and code == -signal.SIGTERM)
        self.ends.append({"by_itself": by_itself, "code": code,
                          "excuse": self.excuse(code) if code else None,
                          "last_words": self.agent.log[-600:] if code not in (0, -signal.SIGKILL)
                          else ""})

    def excuse(self, _code):
        """@return why the daemon may end by itself with this code, or None"""
        return None

    def place_name(self, what):
        path = what.partition(" ")[2]
        for name, directory in self.crash.directories.items():
            if path.startswith(os.path.realpath(directory)):
                return name
        return "network"

    def meet(self, what, n=1):
        self.met[what] = self.met.get(what, 0) + n

    # --- the quiet end, and the judgement ---

    def _quiet_end(self):
        self.proxy.calm()
        self.crash.disarm()
        self.crash.clock_offset = 0
        self._start()
        deadline = time.monotonic() + QUIET_SECONDS * harness.PATIENCE
        calm_since = None
        while time.monotonic() < deadline:
            if self.agent.process.poll() is not None:
                self._account(self.agent.process.returncode, False)
                self._start()
            if not self._is_quiet():
                calm_since = None
            elif calm_since is None:
                calm_since = time.monotonic()
            elif time.monotonic() - calm_since > 1.5:  # longer than scan_interval
                break
            time.sleep(0.1)
        else:
            self.faults.append(f"life: not quiet {QUIET_SECONDS * harness.PATIENCE:.0f} s after "
                               "the last fault: "
                               f"{self.watcher.status and self.watcher.status['bundles']}, "
                               f"{len(self.bucket.uploads())} uploads, {len(self.pins())} pins")
        self.explain_what_is_left()
        self._end_life("TERM")

    def _is_quiet(self):
        status = self.watcher.status
        if not status or status["agent"]["pid"] != self.agent.process.pid or not status["idle"]:
            return False
        counts = status["bundles"]
        if counts["settling"] + counts["ready"] + counts["shipping"]:
            return False
        return not self.bucket.uploads() and not self.pins()

    def explain_what_is_left(self):
        """For the reader of a failure: what the daemon reports about the bundles that it did not
        deliver."""
        for state in ("settling", "ready", "shipping", "quarantined"):
            listed = self.agent.cli("list", "--state", state)
            for line in listed.stdout.splitlines():
                name = next((w for w in line.split()
                             if re.search(r"-\d{8}T\d{6}-[0-9a-f]{12}", w)), None)
                if name:
                    self.notes.append(f"{state}: {self.agent.cli('explain', name).stdout.strip()}")

    def pins(self):
        return [os.path.join(base, name) for base, _, names in os.walk(self.agent.path("src"))
                if "/.neuron-collectd" in base for name in names if not name.startswith("claim-")]

    def _judge(self):
        self.watcher.close()
        self.met.update({f"calls counted: {operation}, {place}": n for (place, operation),
                         n in self.crash.totals().items()})
        self.met.update({f"store or network: {k}": n for k, n in self.proxy.done.items()})
        record = {"seed": self.seed, "round": self.number, "theme": self.theme,
                  "destinations": ["bucket", "volume"],
                  "units": [u.record() for u in self.sources.units], "ends": self.ends,
                  "state_failed": self.state_failed, "memory_counts": not harness.is_instrumented()}
        directory = self.agent.path("evidence")
        evidence.gather(directory, record, self.bucket, self.volume_for_judge(),
                        os.path.join(self.place_of_state(), "state.db"),
                        self.pins(), self.agent.path("samples.jsonl"))
        faults = oracle.judge(directory)
        faults += [f"state: {n} was put aside" for n in os.listdir(self.place_of_state())
                   if ".corrupt-" in n or ".other-build-" in n]
        return faults

    def volume_for_judge(self):
        return self.place_of_volume()

    def _tear_down(self):
        process = getattr(self, "agent", None) and self.agent.process
        if process and process.poll() is None:
            process.kill()
            process.wait()
        if process:
            self.agent.process = None
        if self.watcher:
            self.watcher.close()
        self.clean_up()
        if hasattr(self, "proxy"):
            self.proxy.close()
        if hasattr(self, "bucket"):
            self.bucket.empty()

    def clean_up(self):
        """Whatever happened: what the theme has mounted or stopped."""




def sanitizers():
    """A sanitizer's library insists on being the first one that is loaded."""
    if not harness.is_instrumented():
        return []
    listed = harness.run("ldd", harness.DAEMON).stdout
    return [line.split()[2] for line in listed.splitlines() if "libasan" in line
            or "libubsan" in line]
