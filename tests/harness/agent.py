"""The real daemon in a temporary directory, driven and judged from outside.

It is started as a program, asked through the real CLI and through curl, and what it delivers is
judged with tar, bsdtar, zstd and Python: nothing here shares code with it. Nothing sleeps for a
fixed time; everything waits for a fact, with a deadline.
"""
import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time

import make_dump
from tap import Skip, notes

SOURCE_DIR = os.path.realpath(os.environ.get("srcdir")
                              or os.path.join(os.path.dirname(__file__), "..", ".."))
BUILD_DIR = os.path.realpath(os.environ.get("builddir") or ".")
DAEMON = os.environ.get("NEURON_COLLECTD") or os.path.join(BUILD_DIR, "neuron-collectd")
CLI = os.environ.get("NEURON_COLLECT") or os.path.join(BUILD_DIR, "neuron-collect")
# e.g. valgrind and its options, before the daemon
WRAP = os.environ.get("NC_WRAP", "").split()
PATIENCE = float(os.environ.get("NC_PATIENCE", "1"))     # deadlines are multiplied by it
INSTANCE = make_dump.DEFAULT_INSTANCE
STATES = ("settling", "ready", "shipping", "delivered", "quarantined", "evicted", "cancelled",
          "vanished")


def wait_for(what, condition, timeout=20.0, every=0.02):
    """Polls until `condition()` is true and gives its value. @param what  the sentence for the
    failure"""
    deadline = time.monotonic() + timeout * PATIENCE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout * PATIENCE:.0f} s in vain: {what}")
        time.sleep(every)


def need_root():
    if os.geteuid() != 0:
        raise Skip("needs root")


def need(*programs):
    for program in programs:
        if not shutil.which(program):
            raise Skip(f"{program} is not installed")


def is_instrumented():
    """Whether the daemon carries a sanitizer or runs in valgrind: then figures of memory and time
    mean nothing."""
    if WRAP:
        return True
    with open(DAEMON, "rb") as f:
        return b"__asan_init" in f.read()


def slowness():
    """How many times as long a program may take for its instruments. (PATIENCE is for what the test
    waits for, not for what it judges.)"""
    return 3 if is_instrumented() else 1


def yaml_text(value, indent=0):
    """Enough YAML for a configuration: maps and lists in block style, strings quoted."""
    pad = "  " * indent
    if isinstance(value, dict):
        if not value:
            return "{}"
        return "".join(f"\n{pad}{k}: {yaml_text(v, indent + 1)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        if not value:
            return "[]"
        return "".join(f"\n{pad}- {yaml_text(v, indent + 1).lstrip()}" for v in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def clean_environment(**more):
    """Ours without proxies and what is meant for AWS, rclone, Ceph or systemd, and with a terminal
    that has colours: nothing of the machine's own settings reaches a test."""
    foreign = ("AWS_", "RCLONE_", "CEPH_", "NOTIFY_SOCKET")
    return {k: v for k, v in os.environ.items() if not k.startswith(foreign)
            and not k.lower().endswith("_proxy")} | {"TERM": "xterm"} | more


def for_other_users(program, directory):
    """@return the program, or a copy of it in directory: the build may lie in a home that is closed
    to others"""
    path = program
    while path != "/":
        path = os.path.dirname(path)
        if not os.stat(path).st_mode & stat.S_IXOTH:
            return shutil.copy(program, directory)
    return program


def run(*command, timeout=120, **options):
    """A finished process with text output; never raises for its exit status."""
    options.setdefault("text", True)
    options.setdefault("errors", "surrogateescape") if options["text"] else None
    return subprocess.run(command, timeout=timeout * PATIENCE, stdin=subprocess.DEVNULL,
                          capture_output=True, check=False, **options)


_live = []
_directories = []


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Agent:
    """One daemon with a state directory, sources and destinations of its own.

    self.config is the configuration as a dict, free to change before start() and before reload().
    """

    def __init__(self, directory=None, owner=None):
        if not os.access(DAEMON, os.X_OK):
            raise AssertionError(f"{DAEMON} is not built; set builddir, or NEURON_COLLECTD and "
                                 "NEURON_COLLECT")
        if directory is None:
            directory = tempfile.mkdtemp(prefix="neuron-e2e.")
            os.chmod(directory, 0o755)
            _directories.append(directory)
        self.dir = directory
        self.owner = owner
        self.process = None
        self._copied = None  # when the database that was copied last was written
        self.prefix = []       # put before the daemon's command line: setpriv, faketime, strace …
        self.environment = {}
        self.notify = None
        os.makedirs(self.path("devices"), exist_ok=True)
        with open(self.path("devices", "kmsg"), "ab"):
            pass
        for name in ("state", "run", "out", "home"):
            os.makedirs(self.path(name), exist_ok=True)
            if owner is not None:
                os.chown(self.path(name), owner, owner)
        self.config = {
            "version": 1,
            "node": {"instance_id": INSTANCE, "labels": {"cluster": "e2e"}},
            "state_directory": self.path("state"),
            "sources": [
                self.source("core-dumps", "neuron-core-dump", "dumps/dt-%d-cid-%c"),
            ],
            "destinations": [self.volume("archive", "out")],
            "api": {"socket": self.socket},
            "hook": {"socket": self.path("run", "hook.sock"),
                     "mailbox": self.path("state", "mailbox")},
            "retry": {"initial": "100ms", "maximum": "500ms"},
            # nothing of a test that is about one node waits for others
            "agreement": {"enabled": False},
            # not this machine's kernel log, into which other tests write failures
            "snapshot": {"device_directory": self.path("devices")},
            "log": {"format": "text", "level": "debug"},
        }
        _live.append(self)

    # --- where things are ---

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    @property
    def socket(self):
        return self.path("run", "api.sock")

    @property
    def out(self):
        return self.path("out")

    @property
    def log(self):
        try:
            with open(self.path("log"), encoding="utf-8", errors="replace") as f:
                return f.read()
        except FileNotFoundError:
            return ""

    # --- configuration ---

    def source(self, name, kind, path, **more):
        return {"name": name, "kind": kind, "path": self.path(path), "settle": "300ms", **more}

    def volume(self, name, path, **more):
        """A directory of this machine that stands for a shared volume."""
        return {"name": name, "type": "volume", "path": os.path.join(self.path(path), "%d-%c"),
                "min_free": "0", "durable": True, **more}

    def s3(self, name, server, bucket, **more):
        """A bucket as a destination; its keys come from the environment unless use_keys(None)
        follows.
        @param server  what has endpoint, region, keys and ca_file: Radosgw, Swift, s3tools.Endpoint
            …
        @param bucket  its name, or an s3tools.Bucket"""
        self.use_keys(server)
        destination = {"name": name, "type": "s3", "bucket": getattr(bucket, "name", bucket),
                       "prefix": "neuron/%d-%c",
                       "endpoint": server.endpoint, "region": server.region}
        if getattr(server, "ca_file", None):
            destination["ca_file"] = server.ca_file
        return destination | more

    def use_keys(self, server):
        """Keys in the daemon's environment, from its next start on. None: there are none,
        anywhere."""
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            self.environment.pop(name, None)
        if server is not None:
            self.environment |= {"AWS_ACCESS_KEY_ID": server.access_key,
                                 "AWS_SECRET_ACCESS_KEY": server.secret_key}
            if getattr(server, "token", None):
                self.environment["AWS_SESSION_TOKEN"] = server.token

    def whole_environment(self):
        """What the daemon and its command line get: no instance role, no home of the
        developer's."""
        return clean_environment(HOME=self.path("home"),
                                 AWS_EC2_METADATA_DISABLED="true") | self.environment

    @property
    def config_file(self):
        return self.path("neuron-collectd.yaml")

    # Deliveries rest while others want the CPUs: what tests and benchmarks of that want. The others
    # say how many threads compress, which turns it off, so that a busy machine does not stop them.
    rests = False

    def write_config(self, text=None):
        if not self.rests:
            self.config["limits"] = {"compression_threads": 2, **self.config.get("limits", {})}
        with open(self.config_file, "w", encoding="utf-8") as f:
            f.write(yaml_text(self.config).lstrip() + "\n" if text is None else text)
        if self.owner is not None:
            os.chown(self.config_file, self.owner, self.owner)

    def use_all_kinds(self):
        """Cores without their reports: tests compare a bundle with its source."""
        self.config["sources"] += [
            self.source("profiles", "neuron-profile", "profiles"),
            self.source("cores", "process-core", "cores", crash_reports=False),
            self.source("jobs", "directory", "jobs/job-%p"),
        ]

    def slow_down(self):
        """Makes deliveries take seconds, so that a test can do something in the middle of one:
        level 19 packs a few MiB a second."""
        self.config["limits"] = {"compression_level": 19, "compression_threads": 1,
                                 "memory": "512MiB", "memory_max": "512MiB"}

    def send_slowly(self):
        """As slow_down(), for tests that do not need the work itself: a delivery waits for its turn
        to send, 1 MiB a second."""
        self.config["limits"] = {"upload_rate": "1MiB/s"}

    # --- the process ---

    def start(self, wait=True, write_config=True):
        if write_config:
            self.write_config()
        environment = self.whole_environment()
        if self.notify is not None:
            environment["NOTIFY_SOCKET"] = self.notify
        # The kernel shares the CPUs between sessions (sched_autogroup): in one of its own a daemon
        # whose workers have idle priority goes on while other tests keep the machine busy.
        with open(self.path("log"), "ab") as log:
            self.process = subprocess.Popen([*self.prefix, *WRAP, self.program(), "--config",
                                             self.config_file], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, env=environment, cwd=self.dir,
                                            start_new_session=True)
        if wait:
            wait_for("the daemon answers /healthz", self.is_healthy, 15)
        return self

    def is_healthy(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the daemon ended with {self.process.returncode}")
        try:
            return self._get("/healthz")[0] == 200
        except OSError:
            return False

    @property
    def pid(self):
        """Of the daemon itself, also behind a wrapper such as strace."""
        pid = self.process.pid
        while self.prefix:
            with open(f"/proc/{pid}/comm", encoding="utf-8") as f:
                if f.read().strip().startswith("neuron-collectd"):
                    break
            with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as f:
                children = f.read().split()
            if not children:
                break
            pid = int(children[0])
        return pid

    def stop(self, expect=0):
        """SIGTERM; the daemon must end by itself and in good order."""
        if self.process is None:
            return
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGTERM)
        code = self.process.wait(30 * PATIENCE)
        self.process = None
        assert code == expect, f"the daemon ended with {code}, not {expect}"

    def kill(self):
        """kill -9: power loss as far as the process is concerned."""
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait(30 * PATIENCE)
        self.process = None

    def reload(self):
        os.kill(self.pid, signal.SIGHUP)

    def program(self):
        return for_other_users(DAEMON, self.dir) if "setpriv" in self.prefix else DAEMON

    def once(self, *options, timeout=120):
        """Runs --once to its end."""
        self.write_config()
        return run(*self.prefix, *WRAP, self.program(), "--config", self.config_file, "--once",
                   *options,
                   timeout=timeout, cwd=self.dir, env=self.whole_environment())

    # --- asking it ---

    def cli(self, *arguments, timeout=60):
        """Without the search for leaks, which is half of what a sanitized command costs: tests/cli
        has it."""
        return run(CLI, "--socket", self.socket, *arguments, timeout=timeout,
                   env={"ASAN_OPTIONS": "detect_leaks=0"} | self.whole_environment())

    def ask(self, *arguments):
        """neuron-collect --json, parsed."""
        result = self.cli("--json", *arguments)
        assert result.returncode == 0, (f"{arguments}: exit {result.returncode}: "
                                        f"{result.stderr}{result.stdout}")
        return json.loads(result.stdout)

    def curl(self, path, *options, timeout=10):
        return run("curl", "-sS", "--fail-with-body", "--max-time", str(timeout * PATIENCE),
                   "--unix-socket", self.socket, *options, "http://localhost" + path)

    def _get(self, path):
        """@return status and body. Tests ask this most of all: a curl each time would be a tenth of
        the CPU time that they take."""
        connection = UnixConnection(self.socket, 10 * PATIENCE)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def api(self, path, *options):
        if not options:
            try:
                status, body = self._get(path)
            except (OSError, http.client.HTTPException) as e:
                raise AssertionError(f"{path}: {e}") from e
            assert status < 400, f"{path}: {status}: {body!r}"
            return json.loads(body)
        result = self.curl(path, *options)
        assert result.returncode == 0, (f"{path}: curl exit {result.returncode}: "
                                        f"{result.stderr}{result.stdout}")
        return json.loads(result.stdout)

    def state_of_process(self):
        with open(f"/proc/{self.pid}/stat", encoding="utf-8") as f:
            return f.read().rpartition(")")[2].split()[0]

    def copy_database(self):
        """A running agent locks its database, and a full disk keeps sqlite3 out, so what is read is
        a copy: of the database and its log at one moment, as a crash would leave them. @return the
        copy's path"""
        place = self.path("database-copy")
        os.makedirs(place, exist_ok=True)
        files = [f for f in (self.path("state", "state.db" + suffix) for suffix in ("", "-wal"))
                 if os.path.exists(f)]
        running = self.process is not None and self.process.poll() is None
        written = max(os.stat(f).st_mtime for f in files)
        if self._copied == written and os.path.exists(os.path.join(place, "state.db")):
            return os.path.join(place, "state.db")
        runs = running and self.state_of_process() not in "Tt"
        if runs:
            os.kill(self.pid, signal.SIGSTOP)
            wait_for("the daemon stands still", lambda: self.state_of_process() in "TtZX", 30)
        try:
            shutil.rmtree(place)
            os.makedirs(place)
            for file in files:
                shutil.copy(file, place)
            written = max(os.stat(f).st_mtime for f in files)
            # what is written within the clock's next tick has the same time
            self._copied = written if time.time() - written > 0.1 else None
        finally:
            if runs:
                os.kill(self.pid, signal.SIGCONT)
        return os.path.join(place, "state.db")

    def sql(self, text, *options):
        """What sqlite3 says of the state database. What changes it needs a stopped agent."""
        if re.match(r"\s*(select|pragma [a-z_]+(\(\w+\))?$)", text, re.IGNORECASE):
            database = self.copy_database()
        else:
            assert self.process is None, f"stop the agent first, it locks its database: {text}"
            database = self.path("state", "state.db")
        result = run("sqlite3", *options, database, text)
        assert result.returncode == 0, f"{text}: {result.stderr}"
        return result.stdout.strip()

    def status(self):
        return self.api("/v1/status")

    def bundles(self, query=""):
        return self.api("/v1/bundles" + query)["bundles"]

    def counts(self):
        return self.status()["bundles"]

    def assert_sum(self):
        counts = self.counts()
        assert counts["discovered"] == sum(counts[s] for s in STATES), counts
        return counts

    def wait_all(self, timeout="60s"):
        seconds = float(timeout.removesuffix("s")) * PATIENCE
        result = self.cli("wait", "--all", "--timeout", f"{seconds:.0f}s",
                          timeout=seconds / PATIENCE + 60)
        assert result.returncode == 0, (f"wait --all: exit {result.returncode}: "
                                        f"{result.stdout}{result.stderr}")

    def wait_known(self, n, timeout=20):
        wait_for(f"{n} bundles are known", lambda: self.counts()["discovered"] >= n, timeout)

    def wait_delivered(self, n, timeout=60):
        wait_for(f"{n} bundles are delivered", lambda: self.counts()["delivered"] >= n, timeout)

    # --- making work for it ---

    def _make(self, make, place, **options):
        """What is new appears complete, by a rename: a test that stands still between two files
        would have made a supplement. With `slow` it is written in place."""
        if not options.get("slow") and self.process is not None:
            coming = make(self.path("coming"), **options)
            unit = self.path(place, os.path.relpath(coming, self.path("coming")))
            if not os.path.exists(unit):
                os.makedirs(os.path.dirname(unit), exist_ok=True)
                os.rename(coming, unit)
                return unit
            shutil.rmtree(coming)
        return make(self.path(place), **options)

    def make_in(self, place, **options):
        return self._make(make_dump.make_dump, place, **{"size": 1 << 20, **options})

    def dump(self, **options):
        return self.make_in("dumps", **options)

    def profile(self, **options):
        return self._make(make_dump.make_profile, "profiles", **{"size": 1 << 19, **options})

    def core(self, name="core.python3.1000.1", **options):
        os.makedirs(self.path("cores"), exist_ok=True)
        return make_dump.make_core(self.path("cores", name), **{"size": 1 << 20, **options})

    def incompressible(self, size, name="1"):
        """A directory for the source of use_directories() with one file of noise: its bundle is as
        big as it. @return its path"""
        unit = self.path("jobs", f"job-{name}")
        os.makedirs(unit)
        with open(os.path.join(unit, "noise"), "wb") as f:
            for at in range(0, size, 1 << 20):
                f.write(os.urandom(min(1 << 20, size - at)))
        return unit

    def use_directories(self, **more):
        """Instead of the dumps: plain directories, one a bundle."""
        self.config["sources"] = [self.source("jobs", "directory", "jobs/job-%p", **more)]

    def manifests(self, where=None):
        """All manifests at a destination, as (path, parsed), in order of path."""
        found = []
        for base, _, names in os.walk(where or self.out):
            for name in names:
                if name.endswith(".manifest.json") and not name.startswith("."):
                    path = os.path.join(base, name)
                    with open(path, encoding="utf-8") as f:
                        found.append((path, json.load(f)))
        return sorted(found, key=lambda item: item[0])

    def only_manifest(self, where=None):
        found = self.manifests(where)
        assert len(found) == 1, [path for path, _ in found]
        return found[0]


def cleanup(failed=False):
    """After each test: nothing is left running, and nothing is left on disk."""
    fault = None
    for agent in _live:
        if agent.process is not None:
            if agent.process.poll() is None:
                if agent.prefix:
                    try:
                        os.kill(agent.pid, signal.SIGKILL)
                    except OSError:
                        pass
                agent.process.send_signal(signal.SIGCONT)
                agent.process.kill()
            elif agent.process.returncode not in (0, -signal.SIGKILL,
                                                  -signal.SIGTERM) and not failed:
                fault = AssertionError(
                    f"the daemon ended by itself with {agent.process.returncode}")
            agent.process.wait()
            agent.process = None
        if failed or fault:
            print(f"# log of {agent.dir}:")
            for line in agent.log.splitlines()[-60:]:
                print("#   " + line)
    _live.clear()
    for directory in _directories:
        if not os.environ.get("NC_KEEP"):
            subprocess.run(["rm", "-rf", "--", directory], check=False)
    _directories.clear()
    if fault:
        raise fault


# --- judging what was delivered -------------------------------------------------------------------

def sha256_file(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def family(pid):
    """A process and all below it."""
    found = [pid]
    try:
        for tid in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{tid}/children", encoding="ascii") as f:
                for child in f.read().split():
                    found += family(int(child))
    except OSError:
        pass
    return found


def tree(root):
    """{relative path as bytes: (size, sha256)} of all regular files below a directory, or of one
    file under its name. What goes while we look is not there."""
    root = os.fsencode(root)
    found = {}
    if not os.path.isdir(root):
        with contextlib.suppress(FileNotFoundError):
            found[os.path.basename(root)] = (os.path.getsize(root), sha256_file(root))
    for base, _, names in os.walk(root):
        for name in names:
            path = os.path.join(base, name)
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISREG(os.lstat(path).st_mode):
                    found[os.path.relpath(path, root)] = (os.path.getsize(path), sha256_file(path))
    return found


def object_of(manifest_path):
    return manifest_path.removesuffix(".manifest.json") + ".tar.zst"


TARFILE_EXTRACT = """
import sys, tarfile
with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as tar:
    tar.extractall(sys.argv[1])
"""


def extract(archive, tool):
    """Extracts a bundle with somebody else's program into a temporary directory. @param tool  tar,
    bsdtar or tarfile"""
    target = tempfile.mkdtemp(prefix="neuron-e2e-extract.")
    _directories.append(target)
    if tool == "tar":
        result = run("tar", "--zstd", "-x", "-C", target, "-f", archive)
    elif tool == "bsdtar":
        result = run("bsdtar", "-x", "-C", target, "-f", archive)
    else:
        with subprocess.Popen(["zstd", "-dcq", archive], stdout=subprocess.PIPE) as zstd:
            result = subprocess.run(["python3", "-W", "ignore", "-c", TARFILE_EXTRACT, target],
                                    stdin=zstd.stdout, capture_output=True, check=False, text=True)
    assert result.returncode == 0, f"{tool} on {archive}: {result.stderr}"
    return target


def assert_same_tree(found, wanted, what):
    if found != wanted:
        missing = sorted(set(wanted) - set(found))
        extra = sorted(set(found) - set(wanted))
        differ = sorted(p for p in set(found) & set(wanted) if found[p] != wanted[p])
        raise AssertionError(f"{what}: missing {missing[:5]}, extra {extra[:5]}, different "
                             f"{differ[:5]}")


def unescape(text):
    """A path as the manifest spells it, as the bytes it had."""
    out, i, raw = bytearray(), 0, text.encode()
    while i < len(raw):
        if raw[i:i + 2] == b"\\x":
            out.append(int(raw[i + 2:i + 4], 16))
            i += 4
        else:
            out.append(raw[i])
            i += 1
    return bytes(out)


def frames_of(archive):
    """The seek table at the object's end, read as the zstd seekable format says: [(compressed,
    uncompressed)]."""
    with open(archive, "rb") as f:
        f.seek(-9, os.SEEK_END)
        foot = f.read(9)
        n = int.from_bytes(foot[:4], "little")
        assert foot[5:] == (0x8F92EAB1).to_bytes(4, "little"), "no seek table at the end"
        entry = 12 if foot[4] & 0x80 else 8
        f.seek(-(8 + n * entry + 9), os.SEEK_END)
        head = f.read(8)
        assert head[:4] == (0x184D2A5E).to_bytes(4, "little") and int.from_bytes(
            head[4:], "little") == n * entry + 9
        table = f.read(n * entry)
    return [(int.from_bytes(table[i:i + 4], "little"),
             int.from_bytes(table[i + 4:i + 8], "little")) for i in range(0, n * entry, entry)]


def check_manifest(manifest_path, files, /, **wanted):
    """Everything in a manifest that can be computed from outside.
    @param files  tree() of what was to be delivered
    @param wanted bundle= source= … : dicts of fields that must have these values"""
    archive = object_of(manifest_path)
    with open(manifest_path, encoding="utf-8") as f:
        m = json.load(f)
    assert m["schema"] == "neuron-collectd/manifest/1"
    bundle = m["bundle"]
    assert bundle["object"] == os.path.basename(archive), bundle
    assert bundle["id"] + ".tar.zst" == bundle["object"]
    assert bundle["bytes"] == os.path.getsize(archive)
    assert len(bundle["plan"]) == 64
    at = 0
    with open(archive, "rb") as f:
        for part in bundle["parts"]:
            data = f.read(part["bytes"])
            assert len(data) == part["bytes"] and hashlib.sha256(data).hexdigest() == part[
                "sha256"], f"part at {at}"
            at += len(data)
        assert f.read(1) == b"", "the parts do not cover the object"

    members = {unescape(e["path"]): e for e in m["members"]}
    assert len(members) == len(m["members"]), "a path stands twice"
    assert_same_tree({p: e["bytes"] for p, e in members.items()},
                     {p: size for p, (size, _) in files.items()}, "members of the manifest")
    for path, (_, digest) in files.items():
        if "sha256" in members[path]:
            assert members[path]["sha256"] == digest, path
    assert [os.fsencode(p) for p in map(unescape, (e["path"] for e in m["members"]))] == sorted(
        members), "members are not in order"

    # A member is found by frame and offset: decompress that frame alone and look for its tar
    # header.
    frames = frames_of(archive)
    assert m["frames"]["count"] == len(frames) and m["frames"]["format"] == "zstd-seekable"
    assert sum(c for c, _ in frames) <= bundle["bytes"]
    assert sum(u for _, u in frames) == bundle["uncompressed_bytes"], (
        sum(u for _, u in frames), bundle["uncompressed_bytes"])
    for section, fields in wanted.items():
        for key, value in fields.items():
            assert m[section][
                key] == value, f"{section}.{key} is {m[section][key]!r}, not {value!r}"
    return m


def check_bundle(manifest_path, origin, /, tools=("tar", "bsdtar", "tarfile"), **wanted):
    """Verifies one delivered bundle against the directory or file it was made from."""
    files = origin if isinstance(origin, dict) else tree(origin)
    archive = object_of(manifest_path)
    result = run("zstd", "-tq", archive)
    assert result.returncode == 0, result.stderr
    for tool in tools:
        target = extract(archive, tool)
        assert_same_tree(tree(target), files, tool)
        subprocess.run(["rm", "-rf", "--", target], check=False)
    return check_manifest(manifest_path, files, **wanted)


def leftovers(where):
    """Temporary dot-files that must not stay at a destination."""
    return [os.path.join(base, name) for base, directories, names in os.walk(where)
            for name in names + directories if name.startswith(".") and name != ".incidents"]


class NotifySocket:
    """What systemd would hear."""

    def __init__(self, directory):
        self.path = os.path.join(directory, "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(0.02)
        self.messages = []

    def lines(self):
        try:
            while True:
                self.messages += self.socket.recv(65536).decode().split("\n")
        except (TimeoutError, socket.timeout):
            return self.messages


def process_io(pid):
    with open(f"/proc/{pid}/io", encoding="ascii") as f:
        return {k: int(v) for k, v in (line.split(": ") for line in f)}


def process_memory(pid):
    """{VmRSS, RssAnon, VmHWM …} in bytes"""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
        return {k: int(v.split()[0]) * 1024 for k,
                v in (line.split(":", 1) for line in f) if v.strip().endswith("kB")}


def dump_note(text):
    notes.append(text)
