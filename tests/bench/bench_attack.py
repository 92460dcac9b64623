#!/usr/bin/env python3
"""What other users notice while one account attacks the agent with all that it has.

    builddir=build srcdir=. tests/bench/bench_attack.py [--names 1000000] [--units 25000] [--assert]

The attack of tests/e2e/test_attack.py, larger: two directories with --names names of 255 bytes
each, one of which grows, --units units, files held open for writing, more connections of hooks than
there may be, and large notes that are slow to search for secrets, all by one uid at once, against
an agent with 1,024 descriptors and its defaults, but for settle (300 ms) and what the tests set.
Another user dumps 1 MiB ten times, one dump after the other, every second one with a hook. Peak RSS
is that of the agent and what its children have of their own, 50 times a second, or the agent's own
VmHWM. Needs root, and gigabytes of disk below --directory for the names.
"""
import os
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "harness"))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))
sys.path.insert(0, HERE)
# pylint: disable=wrong-import-position
import agent
import test_attack
from bench_volume import arguments, bound, measured

MIB = 1 << 20


def measure(work, options):
    os.chmod(work, 0o755)
    agent.need_root()
    agent.need("prlimit")
    a = agent.Agent(directory=work)
    a.config["log"] = {"format": "text"}
    m = test_attack.run_attack(a, options.names, options.units, options.dumps)
    print(f"\n{options.dumps} dumps of another user, delivered after {m.delivered:.1f} s at most; "
          f"/healthz p99 {m.healthz_p99 * 1000:.0f} ms\n\n| what | the worst | |\n|---|---|---|")
    bound("discovered", m.discovered, test_attack.DISCOVERED_MAX,
          f"{m.discovered:.2f} of {test_attack.DISCOVERED_MAX:.0f} s")
    bound("hook accepted", m.accepted, test_attack.ACCEPTED_MAX,
          f"{m.accepted:.3f} of {test_attack.ACCEPTED_MAX:.0f} s")
    bound("`/healthz`", m.healthz, test_attack.HEALTHZ_MAX,
          f"{m.healthz * 1000:.0f} of {test_attack.HEALTHZ_MAX * 1000:.0f} ms")
    bound("peak RSS, children included", m.peak, test_attack.RSS_MAX,
          f"{m.peak / MIB:.1f} of {test_attack.RSS_MAX // MIB} MiB")
    a.stop()


def main():
    p = arguments(__doc__)
    p.add_argument("--names", type=int, default=1000000)
    p.add_argument("--units", type=int, default=25000)
    p.add_argument("--dumps", type=int, default=10)
    options = p.parse_args()
    return measured(options, lambda work: measure(work, options))


if __name__ == "__main__":
    sys.exit(main())
