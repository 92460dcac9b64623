"""The driver's side of crashpoint.so: says at which system call the daemon dies or is refused, and
what time it believes it is.

The layout is that of crashpoint.h.
"""
import errno
import mmap
import os
import struct

MAGIC = 0x31545049534152
CHANGES = ("open", "write", "fsync", "truncate", "rename", "link", "unlink", "mkdir", "send")
OPERATIONS = (*CHANGES, "open-read", "read", "allocate")
ACTIONS = ("nothing", "kill-before", "kill-after", "tear", "fail", "do-and-fail", "shorten")
DEADLY = ("kill-before", "kill-after", "tear")
SOCKET, MEMORY = 31, 30
N_PLACES = 32
CLOCK_AT, AT_AT, SEEN_AT, TERMS_AT, ACTED_AT, WHAT_AT, TOTALS_AT = 8, 16, 24, 32, 56, 64, 192
SIZE = TOTALS_AT + N_PLACES * len(OPERATIONS) * 8


class CrashPoint:
    """@param library     crashpoint.so
    @param control_file  made here; every process with environment() shares it
    @param places        {name: directory}; `network` and `memory` are there by themselves"""

    def __init__(self, library, control_file, places):
        self.library, self.file = library, control_file
        self.directories = places
        self.bits = {name: i for i, name in enumerate(places)} | {"network": SOCKET,
                                                                      "memory": MEMORY}
        with open(control_file, "wb") as f:
            f.write(struct.pack("<Q", MAGIC) + bytes(SIZE - 8))
        with open(control_file, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), SIZE)

    def environment(self, before=()):
        """For the daemon. @param before  libraries that insist on being first: a sanitizer's"""
        return {"LD_PRELOAD": ":".join([*before, self.library]), "CRASHPOINT_CONTROL": self.file,
                "CRASHPOINT_PLACES": ":".join(os.path.realpath(d)
                                              for d in self.directories.values())}

    def _put(self, at, form, *values):
        self.map[at:at + struct.calcsize(form)] = struct.pack(form, *values)

    def _get(self, at, form="<Q"):
        return struct.unpack_from(form, self.map, at)[0]

    def arm(self, action, at, operations=CHANGES, places=None, error=0, times=1):
        """The `at`-th call (from 1, counted from now) of these operations at these places acts, and
        times - 1 more behind it."""
        self.disarm()
        bits = sum(1 << OPERATIONS.index(o) for o in operations)
        where = sum(1 << self.bits[p] for p in (self.bits if places is None else places))
        self._put(TERMS_AT, "<IIIiQ", bits, where, ACTIONS.index(action),
                  error if isinstance(error, int) else getattr(errno, error), times)
        self.map[WHAT_AT:TOTALS_AT] = bytes(TOTALS_AT - WHAT_AT)
        self._put(SEEN_AT, "<Q", 0)
        self._put(ACTED_AT, "<Q", 0)
        self._put(AT_AT, "<Q", at)

    def disarm(self):
        self._put(AT_AT, "<Q", 0)

    @property
    def acted(self):
        return self._get(ACTED_AT)

    @property
    def what(self):
        """The call that acted, and on what; empty when none did."""
        return self.map[WHAT_AT:TOTALS_AT].partition(b"\0")[0].decode(errors="replace")

    @property
    def clock_offset(self):
        """Seconds that the daemon's clock is wrong by."""
        return self._get(CLOCK_AT, "<q") / 1e9

    @clock_offset.setter
    def clock_offset(self, seconds):
        self._put(CLOCK_AT, "<q", int(seconds * 1e9))

    def totals(self):
        """{(place, operation): calls so far}"""
        found = {}
        for name, bit in self.bits.items():
            for i, operation in enumerate(OPERATIONS):
                n = self._get(TOTALS_AT + (bit * len(OPERATIONS) + i) * 8)
                if n:
                    found[name, operation] = n
        return found
