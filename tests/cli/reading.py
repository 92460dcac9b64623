"""Delivered bundles for tests of the reading commands: made once a run by the daemon's --once, laid
out as a volume and, on request, as a bucket of the programmable server."""
import json
import os
import random
import shutil
import subprocess
import tempfile
import time

from cli_test import CLI, run

from agent import PATIENCE, Agent, clean_environment, sha256_file
from s3_server import S3Server

MIB = 1 << 20
BIG = "node/sub dir/état \\ 1.bin"      # a name that the manifest spells otherwise
SPARSE, EMPTY, SMALL = "sparse.bin", "empty", "log.txt"
SPARSE_BYTES = 80 * MIB


class Made:
    """self.volume: a directory with bundles as they were delivered; self.big: one of 20 MiB and
    some, which does not compress."""
    _made = None

    @classmethod
    def get(cls):
        if cls._made is None:
            cls._made = cls()
        return cls._made

    @classmethod
    def forget(cls):
        if cls._made is not None:
            shutil.rmtree(cls._made.directory)
            cls._made = None

    def __init__(self):
        self.directory = tempfile.mkdtemp(prefix="neuron-reading.")
        os.chmod(self.directory, 0o755)
        a = Agent()
        a.config["sources"].append(a.source("jobs", "directory", "jobs/job-%p"))
        a.config["sources"].append(a.source("cores", "process-core", "cores", crash_reports=False))
        a.dump(size=MIB)
        a.dump(size=MIB // 2, cluster_id="00000000000000bb", pid=7)
        core = a.core()
        self.source = a.path("jobs", "job-1")
        self._fill()
        self._age(core)
        result = a.once()
        assert result.returncode == 0, result.stdout + result.stderr
        self.source = shutil.copytree(self.source, os.path.join(self.directory, "source"))
        self.volume = os.path.join(self.directory, "volume")
        shutil.copytree(a.out, self.volume)
        self.big = next(os.path.join(base, name) for base, _, names in os.walk(self.volume) for name
                        in names if name.startswith("directory-") and name.endswith(".tar.zst"))

    def _fill(self):
        rng = random.Random("reading")
        os.makedirs(os.path.join(self.source, os.path.dirname(BIG)))
        with open(os.path.join(self.source, BIG), "wb") as f:
            f.write(rng.randbytes(20 * MIB))
        with open(os.path.join(self.source, SPARSE), "wb") as f:
            for offset in (0, 20 * MIB, 60 * MIB):
                f.seek(offset)
                f.write(rng.randbytes(256 * 1024))
            f.truncate(SPARSE_BYTES)
        with open(os.path.join(self.source, EMPTY), "wb"):
            pass
        with open(os.path.join(self.source, SMALL), "w", encoding="ascii") as f:
            f.writelines(f"line {i}\n" for i in range(2000))

    def _age(self, core):
        """One time for the directory and the core: they are of one incident, however long it took
        to write them."""
        now = int(time.time())
        for path in [core, *(os.path.join(base, name) for base, _,
                             names in os.walk(self.source) for name in names)]:
            os.utime(path, (now, now))

    # --- what is to be compared with ---

    @property
    def manifest_path(self):
        return self.big.removesuffix(".tar.zst") + ".manifest.json"

    @property
    def manifest(self):
        with open(self.manifest_path, encoding="utf-8") as f:
            return json.load(f)

    @property
    def key(self):
        """Of the big bundle in the bucket."""
        return "neuron/" + os.path.relpath(self.big, self.volume)

    def files(self):
        """{key: bytes} of all that was delivered."""
        found = {}
        for base, _, names in os.walk(self.volume):
            for name in names:
                path = os.path.join(base, name)
                with open(path, "rb") as f:
                    found["neuron/" + os.path.relpath(path, self.volume)] = f.read()
        return found

    def copy(self):
        """The big bundle in a directory of its own, to be damaged. @return its path"""
        directory = tempfile.mkdtemp(dir=self.directory)
        shutil.copy(self.manifest_path, directory)
        return shutil.copy(self.big, directory)


def escaped(path):
    """As the manifest spells it."""
    return path.replace("\\", "\\x5c")


class Here:
    """An empty directory to fetch into, which goes away; the command runs in it with nothing of the
    machine's AWS settings."""

    def __init__(self, environment=None):
        self.environment = clean_environment(HOME="/nonexistent",
                                             AWS_EC2_METADATA_DISABLED="true") | (environment or {})

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="neuron-here.")
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.path)

    def __call__(self, *name):
        return os.path.join(self.path, *name)

    def run(self, *arguments, **options):
        options.setdefault("env", self.environment)
        return run(CLI, *arguments, cwd=self.path, **options)

    def spawn(self, *arguments, **options):
        return subprocess.Popen([CLI, *arguments], cwd=self.path, env=self.environment,
                                stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                **{"stdout": subprocess.PIPE, **options})

    def fetched(self, *arguments):
        """A run that must go well, and its JSON."""
        result = self.run("--json", "get", *arguments)
        assert result.returncode == 0 and not result.stderr, result
        return json.loads(result.stdout)

    def names(self):
        return sorted(os.listdir(self.path))


class Served(S3Server):
    """A bucket with all that was delivered, and a directory to fetch into."""

    def __init__(self, **options):
        super().__init__(**options)
        for key, body in Made.get().files().items():
            self.put(key, body)
        self.here = None

    def __enter__(self):
        super().__enter__()
        self.here = Here({"AWS_ENDPOINT_URL": self.endpoint, **self.environment()}).__enter__()
        return self

    def __exit__(self, *_):
        self.here.__exit__()
        super().__exit__()

    @property
    def url(self):
        return f"s3://{self.bucket}/{Made.get().key}"

    def gets(self, suffix=".tar.zst"):
        return [r for r in self.seen("GetObject") if r.key.endswith(suffix)]

    def loaded(self, suffix=".tar.zst"):
        """Bytes that were asked for."""
        total = 0
        for r in self.gets(suffix):
            first, last = r.headers["range"].removeprefix("bytes=").split("-")
            total += int(last) - int(first) + 1
        return total


def assert_complete(path):
    """It is the big bundle, and its manifest lies beside it."""
    made = Made.get()
    assert sha256_file(path) == sha256_file(made.big), path
    assert sha256_file(path.removesuffix(".tar.zst") + ".manifest.json") == sha256_file(
        made.manifest_path), path


def assert_no_secret(server, *results):
    for result in results:
        assert server.secret_key not in result.stdout + result.stderr, result


def wait_end(process, timeout=30):
    """@return (exit code, stderr as text)"""
    _, err = process.communicate(timeout=timeout * PATIENCE)
    return process.returncode, err.decode("utf-8", "replace")
