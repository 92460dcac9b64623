"""Runs s3_drive against a S3Server and reads what it says. Import it from a test beside it; it
finds tests/harness by itself."""
import hashlib
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "harness"))

from s3_server import S3Server      # noqa: E402  pylint: disable=wrong-import-position
from tap import notes               # noqa: E402  pylint: disable=wrong-import-position

DRIVE = os.path.join(os.path.realpath(os.environ.get("builddir") or "."),
                     "tests/uploaders/s3/s3_drive")
PATIENCE = 60 * float(os.environ.get("NC_PATIENCE", "1"))
PLAN = "00aa"
PLAN_HEADER = "x-amz-meta-neuron-collectd-plan"
SHA256_HEADER = "x-amz-meta-neuron-collectd-sha256"
OK, EXISTS, SAME, FULL, AWAY, MISMATCH, DENIED, REFUSED, STALE, _PAUSED, NETWORK = range(11)
VERDICTS = ("OK NOT_FOUND NO_UPLOAD EXISTS CONFLICT RETRY SKEWED REDIRECT EXPIRED DENIED NO_BUCKET "
            "FULL BAD_PART CORRUPTED UNREACHABLE REFUSED UNCONDITIONAL").split()


def part_data(number, size):
    return bytes((31 * number + 7 * i + i // 256) & 255 for i in range(size))


def etag_of(number, size):
    return hashlib.md5(part_data(number, size)).hexdigest()


class Run:
    """What one run of s3_drive said."""

    def __init__(self, lines, errors):
        self.lines = [line.split("\t") for line in lines]
        self.errors = errors

    def all(self, word):
        return [line[1:] for line in self.lines if line[0] == word]

    def one(self, word):
        found = self.all(word)
        assert len(found) == 1, f"{len(found)} lines of {word} in {self.lines}"
        return found[0]

    @property
    def wants(self):
        return [int(w[0]) for w in self.all("want")]

    @property
    def etags(self):
        return {int(n): e for n, e in self.all("etag")}

    @property
    def outcome(self):
        return int(self.one("done")[0])

    @property
    def proof(self):
        return self.one("done")[1]

    @property
    def may_have_orphans(self):
        return self.one("done")[4] == "1"

    @property
    def error(self):
        return self.one("done")[6]

    @property
    def answers(self):
        """(verdict, status, code, bytes of the body, etag, sentence) of each call"""
        return [(VERDICTS[int(a[0])], int(a[1]), a[2], int(a[3]), a[4], a[5])
                for a in self.all("answer")]

    @property
    def n_tries(self):
        return [int(a[6]) for a in self.all("answer")]

    @property
    def silence(self):
        """Seconds, the longest that it was the store's move, as --look-msec saw it"""
        return int(self.one("silence")[0]) / 1000

    @property
    def stats(self):
        """n_retries, sent_bytes, total, all within the last bucket, has conditions, clock offset,
        region"""
        s = self.one("stats")
        return [int(x) for x in s[:6]] + [s[6]]


def start(server, *words, environment=None, **options):
    """Options become --options; a list is given several times, True alone."""
    argv = [DRIVE, "--endpoint", options.pop("endpoint", None) or server.endpoint]
    for name, value in options.items():
        for v in value if isinstance(value, list) else [value]:
            argv += ["--" + name.replace("_", "-")] + ([] if v is True else [str(v)])
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true",
           **{n: v for n, v in os.environ.items()
              if n in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS")},
           **(server.environment() if environment is None else environment)}
    return subprocess.Popen(argv + list(words), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, env=env)


def finish(process, server=None):
    out, errors = process.communicate(timeout=PATIENCE)
    notes.append(out)
    notes.append(errors)
    if server:
        notes.append(server.story())
    assert process.returncode == 0, f"exit {process.returncode}: {errors}"
    return Run(out.splitlines(), errors)


def drive(server, *words, **options):
    return finish(start(server, *words, **options), server)


def upload(server, key="k", **options):
    return drive(server, "upload", key, **options)


def check_object(server, key="k", parts=1, part_bytes=1000, last_bytes=None):
    """Exactly this object, bit by bit, with its plan."""
    expected = b"".join(part_data(n, part_bytes)
                        for n in range(1, parts)) + part_data(parts, last_bytes or part_bytes)
    assert key in server.objects, f"no object '{key}': {server.story()}"
    assert server.objects[key].body == expected, f"'{key}' has other bytes than were sent"
    assert server.objects[key].headers.get(PLAN_HEADER) == PLAN, server.objects[key].headers
    assert server.objects[key].headers.get("content-type") == "application/zstd", server.objects[
        key].headers
    of_one = hashlib.sha256(expected).hexdigest() if parts == 1 else None
    assert server.objects[key].headers.get(SHA256_HEADER) == of_one, server.objects[key].headers


def put_ours(server, key="k", parts=1, part_bytes=1000, plan=PLAN):
    body = b"".join(part_data(n, part_bytes) for n in range(1, parts + 1))
    of_one = {SHA256_HEADER: hashlib.sha256(body).hexdigest()} if parts == 1 else {}
    return server.put(key, body, **{PLAN_HEADER: plan, "content-type": "application/zstd",
                                    **of_one})


__all__ = ["S3Server", "Run", "start", "finish", "drive", "upload", "check_object", "put_ours",
           "part_data", "etag_of", "PLAN", "PLAN_HEADER", "SHA256_HEADER",
           "OK", "EXISTS", "SAME", "FULL", "AWAY", "MISMATCH", "DENIED", "REFUSED", "STALE",
           "NETWORK"]
