"""Counts the C files that a delivery to S3 runs and that an idle agent does not: how many one has
to read to follow a bundle.

The daemon is built with --enable-coverage, run twice with the same configuration (without a dump,
and with one of a few files) against tests/harness/s3_server.py, stopped by SIGTERM, and its counts
are read by gcov.
"""
import glob
import json
import os
import subprocess
import sys


def build(root, directory):
    os.makedirs(directory, exist_ok=True)
    if not os.path.exists(os.path.join(root, "configure")):
        subprocess.run(["autoreconf", "-fi"], cwd=root, check=True, stderr=subprocess.DEVNULL)
    if not os.path.exists(os.path.join(directory, "Makefile")):
        subprocess.run([os.path.join(os.path.abspath(root), "configure"), "-q", "--enable-coverage",
                        "CFLAGS=-g -O0"], cwd=directory, check=True)
    subprocess.run(["make", "-s", f"-j{os.cpu_count()}", "all"], cwd=directory, check=True,
                   stdout=subprocess.DEVNULL)


def run_daemon(root, directory, with_dump):
    """Runs the daemon in a process of its own, because the harness reads its directories from the
    environment once."""
    program = """
import os, sys
sys.path.insert(0, os.path.join(os.environ["srcdir"], "tests", "harness"))
import agent, s3_server
with s3_server.S3Server() as s3:
    a = agent.Agent()
    key = {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key}
    a.environment.update(key)
    a.config["destinations"] = [{"name": "s3", "type": "s3", "bucket": "bucket",
                                 "prefix": "neuron/%d-%c", "region": "us-east-1",
                                 "endpoint": s3.endpoint}]
    a.config["sources"][0]["settle"] = "200ms"
    a.start()
    agent.wait_for("the agent is ready", lambda: a.status()["agent"]["state"] == "running")
    if sys.argv[1] == "dump":
        a.dump(size=1 << 20)
        a.wait_known(1)
        a.wait_all()
        assert any(key.endswith(".manifest.json") for key in s3.objects), sorted(s3.objects)
    else:
        import time
        time.sleep(3)  # idle: as long as a delivery takes
    a.stop()
agent.cleanup()
"""
    environment = dict(os.environ, srcdir=root, builddir=directory, PYTHONDONTWRITEBYTECODE="1")
    subprocess.run([sys.executable, "-c", program, "dump" if with_dump else "idle"],
                   env=environment, check=True, stdout=subprocess.DEVNULL)


def files_run(root, directory, with_dump):
    for old in glob.glob(os.path.join(directory, "**", "*.gcda"), recursive=True):
        os.unlink(old)
    run_daemon(root, directory, with_dump)
    found = set()
    counts = glob.glob(os.path.join(directory, "**", "*.gcda"), recursive=True)
    if not counts:
        raise RuntimeError(f"{directory}: the daemon left no counts: is it built with "
                           "--enable-coverage?")
    for start in range(0, len(counts), 50):
        out = subprocess.run(["gcov", "--json-format", "--stdout", *counts[start:start + 50]],
                             cwd=directory, check=True, capture_output=True, text=True).stdout
        for line in out.splitlines():
            for file in json.loads(line)["files"]:
                path = os.path.relpath(os.path.join(directory, file["file"]), root)
                if path.endswith(".c") and any(f["execution_count"] for f in file["functions"]):
                    found.add(path)
    return found


def count(root, directory):
    build(root, directory)
    idle = files_run(root, directory, with_dump=False)
    delivery = files_run(root, directory, with_dump=True)
    if os.environ.get("FIGURES_LIST"):
        for name in sorted(delivery - idle):
            print("delivery:", name)
    return len(delivery - idle)
