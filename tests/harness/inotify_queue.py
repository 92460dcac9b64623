"""The length of inotify's queue. It is machine-wide and counts at the moment when a process makes
its instance, so it is changed for as short as can be, by one test at a time, whatever runs beside
it."""
import contextlib
import fcntl
import os

from agent import wait_for
from tap import Skip

PLACE = "/proc/sys/fs/inotify/max_queued_events"


@contextlib.contextmanager
def length(n):
    """with length(16): the daemon is started here"""
    if not os.access(PLACE, os.W_OK):
        raise Skip(f"{PLACE} cannot be written")
    with open(PLACE, encoding="ascii") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        usual = int(f.read())
        try:
            _write(n)
            yield
        finally:
            _write(usual)


def start(agent, n):
    """Starts an agent each of whose sources has a queue of n events. A source makes its queue after
    its first scan, which may be after the agent has answered for the first time."""
    with length(n):
        agent.start()
        wait_for("every source is watched",
                 lambda: all(s["watches"] > 0 for s in agent.status()["sources"]))


def _write(n):
    with open(PLACE, "w", encoding="ascii") as f:
        f.write(str(n))


def is_made(pid):
    """Whether the process has its instance."""
    try:
        return any(os.readlink(f"/proc/{pid}/fd/{fd}") == "anon_inode:inotify"
                   for fd in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False
