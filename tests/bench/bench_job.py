#!/usr/bin/env python3
"""What a job that takes all CPUs loses while the agent ships to a volume, and what the agent gets
done meanwhile.

    builddir=build srcdir=. tests/bench/bench_job.py [--baseline OTHER_BUILD] [--size 4GiB] [--runs
    5] [--steps 200] [--assert] [PART...]

Parts, default all but `busy`:
  step   step time of the job alone and while the agent ships, in alternating runs. A step is a
  fixed amount of hashing (in cache) and copying
         (past the caches); one process a CPU, no pauses. Its time is the mean over all steps of all
         processes, as what one rank loses all lose; the slow-down is the median over the runs, each
         against the run without right before it
  free   how long delivering takes when nobody else wants the machine
  busy   how long it takes from beginning to end beside the job: this may be an hour

With --baseline the daemon of another build directory takes its turn too. Defaults in all but
`settle`, so `compression_threads: auto`. The destination is a volume on the disk below --directory:
of a bucket, the server on this machine would cost the job more than the agent does. A run during
which somebody else used more than 3 % of the CPUs is repeated, at most twice, and the quietest
counts. With --assert the exit is 1 when a bound of the project is broken. Needs about 1.5 times
--size of disk, and a machine with nothing else to do.
"""
import hashlib
import multiprocessing
import os
import random
import shutil
import statistics
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
# pylint: disable=wrong-import-position
import agent
import make_dump
from bench_s3 import busy_seconds
from bench_volume import arguments, bound, measured, parsed, warm
from make_dump import GIB, MIB

OTHERS_MAX = 0.03
SLOW_DOWN_MAX = 0.02
TICK = os.sysconf("SC_CLK_TCK")
DAEMON, CLI = agent.DAEMON, agent.CLI


# --- the job --------------------------------------------------------------------------------------

def rank(n_steps, start, over, answer):
    """One process of the job: sends its step times and the CPU seconds it took. All end when the
    first has done its steps."""
    data = random.Random(os.getpid()).randbytes(MIB)
    memory = memoryview(bytearray(64 * MIB))
    steps = []
    start.wait()
    cpu = time.process_time()
    while not over.is_set():
        begun = time.monotonic()
        for _ in range(64):
            hashlib.sha256(data).digest()
        memory[:32 * MIB] = memory[32 * MIB:]
        steps.append(time.monotonic() - begun)
        if len(steps) == n_steps:
            over.set()
    answer.send((steps, time.process_time() - cpu))


class Job:
    """The job, running from here on; finish() waits for its end and gives the mean step time in
    seconds."""

    def __init__(self, n_steps):
        n = len(os.sched_getaffinity(0))
        self.start, self.over = multiprocessing.Barrier(n + 1), multiprocessing.Event()
        self.ranks, self.answers = [], []
        for _ in range(n):
            mine, its = multiprocessing.Pipe(duplex=False)
            process = multiprocessing.Process(target=rank, args=(n_steps, self.start, self.over,
                                                                 its), daemon=True)
            process.start()
            its.close()
            self.ranks.append(process)
            self.answers.append(mine)
        self.start.wait()

    def finish(self):
        said = [a.recv() for a in self.answers]
        for process in self.ranks:
            process.join()
        self.cpu = sum(cpu for _, cpu in said)
        return statistics.mean(s for steps, _ in said for s in steps)

    def end(self):
        self.over.set()
        return self.finish()


# --- the agent ------------------------------------------------------------------------------------

def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def start_agent(work, unit, build):
    """A daemon of a build directory that is about to ship `unit`; it has not begun."""
    agent.DAEMON, agent.CLI = (os.path.join(build, p) for p in (
        "neuron-collectd", "neuron-collect")) if build else (DAEMON, CLI)
    place = tempfile.mkdtemp(prefix="agent.", dir=work)
    a = agent.Agent(directory=place)
    a.config["sources"] = [{"name": "bench", "kind": "neuron-core-dump",
                            "path": os.path.join(os.path.dirname(unit), "dt-%d-cid-%c"),
                            "settle": "1s"}]
    a.config["limits"] = {}
    a.config["log"] = {"format": "text"}
    del a.config["retry"]
    a.config["destinations"] = [{"name": "archive", "type": "volume",
                                 "path": os.path.join(a.out, "%d-%c"), "min_free": "0"}]
    return a.start()


def end_agent(a, unit):
    if a.process.poll() is None:
        a.process.kill()
    a.process.wait()
    a.process = None
    agent.cleanup()
    for place in (a.dir, os.path.join(os.path.dirname(os.path.dirname(unit)), ".neuron-collectd"),
                  os.path.join(os.path.dirname(unit), ".neuron-collectd")):
        shutil.rmtree(place, ignore_errors=True)


def sent_bytes(a):
    """Of the source, as far as it has been read."""
    return agent.process_io(a.pid)["rchar"]


def wait_shipping(a):
    agent.wait_for("it ships", lambda: a.counts()["shipping"] == 1 and sent_bytes(a) > 16 * MIB,
                   60, every=0.1)


class Window:
    """One run of the job, with or without an agent."""

    def __init__(self, options, a=None):
        before = busy_seconds(), cpu_seconds(a.pid) if a else 0, sent_bytes(a) if a else 0
        begun = time.monotonic()
        job = Job(options.steps)
        self.step = job.finish()
        self.wall = time.monotonic() - begun
        self.agent_cpu = cpu_seconds(a.pid) - before[1] if a else 0
        self.read = sent_bytes(a) - before[2] if a else 0
        self.others = max(busy_seconds() - before[0] - self.agent_cpu - job.cpu,
                          0) / self.wall / os.cpu_count()
        self.ended = bool(a) and a.counts()["delivered"] == 1


def quiet_window(options, prepare=None, unit=None):
    """@param prepare  function() -> a started agent, or None for the job alone"""
    windows = []
    for _ in range(3):
        a = prepare() if prepare else None
        try:
            if a:
                wait_shipping(a)
            windows.append(Window(options, a))
        finally:
            if a:
                end_agent(a, unit)
        if windows[-1].others <= OTHERS_MAX:
            break
        print(f"# somebody else used {windows[-1].others:.1%} of the CPUs", flush=True)
    return min(windows, key=lambda w: w.others)


# --- the parts ------------------------------------------------------------------------------------

def part_step(work, unit, options):
    alone, beside = [], {name: [] for name in options.builds}
    slow = {name: [] for name in options.builds}
    for _ in range(options.runs):
        for name, build in options.builds.items():
            warm(unit)
            alone.append(quiet_window(options))
            beside[name].append(
                quiet_window(options, lambda build=build: start_agent(work, unit, build), unit))
            slow[name].append(beside[name][-1].step / alone[-1].step - 1)

    def med(windows, field):
        return statistics.median(getattr(w, field) for w in windows)
    print(f"\nA job on {len(os.sched_getaffinity(0))} CPUs, {options.steps} steps, medians of "
          f"{options.runs} alternating runs, somebody else at work "
          f"{max(w.others for w in sum(beside.values(), alone)):.1%} of the time at most\n\n"
          "| | step ms | slow-down (least – most) | shipped MiB/s | agent's CPU, % of one "
          "|\n|---|---|---|---|---|")
    print(f"| alone | {med(alone, 'step') * 1000:.2f} | | | |")
    for name, windows in beside.items():
        s = slow[name]
        rate = statistics.median(w.read / w.wall for w in windows) / MIB
        cpu = statistics.median(w.agent_cpu / w.wall for w in windows)
        ended = " (ended before the job did)" if any(w.ended for w in windows) else ""
        print(f"| {name} | {med(windows, 'step') * 1000:.2f} | {statistics.median(s):.2%} "
              f"({min(s):.2%} – {max(s):.2%}) | {rate:.2f}{ended} | {cpu:.1%} |")
    print("\n| bound | value | |\n|---|---|---|")
    ours = statistics.median(slow["neuron-collectd"])
    bound("slow-down of the job", ours, SLOW_DOWN_MAX, f"{ours:.2%} of {SLOW_DOWN_MAX:.0%}")


def time_delivery(a, timeout):
    begun = time.monotonic()
    agent.wait_for("it is delivered", lambda: a.counts()["delivered"] == 1, timeout, every=0.2)
    return time.monotonic() - begun


def part_free(work, unit, options):
    times = {name: [] for name in options.builds}
    for _ in range(options.runs):
        for name, build in options.builds.items():
            warm(unit)
            os.sync()
            a = start_agent(work, unit, build)
            times[name].append(time_delivery(a, 600))
            end_agent(a, unit)
    print(f"\n{options.size / GIB:.1f} GiB on a free machine, `settle` of 1 s included, medians of "
          f"{options.runs} alternating runs\n\n| | s (least – most) |\n|---|---|")
    for name, t in times.items():
        print(f"| {name} | {statistics.median(t):.2f} ({min(t):.2f} – {max(t):.2f}) |", flush=True)
    if "baseline" in times:
        ratio = statistics.median(times["neuron-collectd"]) / statistics.median(times["baseline"])
        print("\n| bound | value | |\n|---|---|---|")
        bound("on a free machine, against the baseline", ratio, 1.05, f"{ratio:.3f} of 1.05")


def part_busy(work, unit, options):
    print(f"\n{options.size / GIB:.1f} GiB beside the job\n\n| | s |\n|---|---|")
    for name, build in options.builds.items():
        warm(unit)
        a = start_agent(work, unit, build)
        job = Job(1 << 40)
        took = time_delivery(a, options.patience)
        job.end()
        print(f"| {name} | {took:.0f} |", flush=True)
        end_agent(a, unit)


PARTS = {"step": part_step, "free": part_free, "busy": part_busy}


def main():
    p = arguments(__doc__, PARTS)
    p.add_argument("--size", type=make_dump.parse_size, default=4 * GIB)
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--baseline", metavar="DIR", help="another build directory, to be measured too")
    p.add_argument("--patience", type=float, default=7200,
                   help="seconds that `busy` may take (default %(default)s)")
    options = parsed(p, PARTS)
    options.builds = {"neuron-collectd": None} | ({"baseline": options.baseline}
                                                  if options.baseline else {})

    def measure(work):
        print(f"{os.cpu_count()} CPUs, kernel {os.uname().release}")
        unit = make_dump.make_dump(os.path.join(work, "dumps"), size=options.size,
                                   instance_id=agent.INSTANCE)
        for name in os.listdir(unit):
            os.utime(os.path.join(unit, name), (time.time() - 60, time.time() - 60))
        os.sync()
        for name in options.parts or [n for n in PARTS if n != "busy"]:
            PARTS[name](work, unit, options)

    return measured(options, measure)


if __name__ == "__main__":
    sys.exit(main())
