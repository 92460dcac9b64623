"""What the campaign writes into the sources, changes and removes there, and its own record of each
byte."""
import hashlib
import os
import random
import shutil
import stat

import make_dump

KIB, MIB = 1 << 10, 1 << 20
ODD_NAMES = ("a b", "new\nline", "back\\slash", "-dash", "ünï", "quote'\"", "\udcff\udcfe",
             "per%cent %d", "x" * 200, "..dots", "tab\there", "#!")


class Unit:
    """One directory, or one file, of a source."""

    def __init__(self, source, path, agent_may_delete):
        self.source, self.path, self.agent_may_delete = source, path, agent_may_delete
        self.files = {}            # {path below it: [versions, oldest first]}
        self.generations = 1
        self.disturbed = self.removed = False
        self.present = set()       # paths that the driver has put there and not taken away
        self.missing, self.missing_since = [], None

    @property
    def is_file(self):
        return self.source == "cores"

    def file(self, name):
        return self.path if self.is_file else os.path.join(self.path, name)

    def is_held(self, names=None):
        """Whether somebody else has a name for each file: then the driver may take its own away."""
        try:
            return all(os.lstat(self.file(n)).st_nlink > 1
                       for n in (self.present if names is None else names))
        except FileNotFoundError:
            return False

    def wrote(self, name, n_bytes, sha256, instead=True):
        """@param instead  of what was there: that may never have been seen"""
        for version in self.files.get(name, ()):
            version["needed"] = version["needed"] and not instead
        self.files.setdefault(name, []).append({"bytes": n_bytes, "sha256": sha256, "needed": True})
        self.present.add(name)

    def look(self, now):
        """Notes what is gone without the driver."""
        if self.missing_since is not None:
            return
        gone = [n for n in self.present if not os.path.lexists(self.file(n))]
        if gone:
            self.missing, self.missing_since = gone[:5], now

    def record(self):
        return {k: getattr(self, k) for k in ("path", "source", "generations", "disturbed",
                                              "removed", "agent_may_delete", "files",
                                              "missing", "missing_since")}


def hash_file(path):
    with open(path, "rb") as f:
        return os.path.getsize(path), hashlib.file_digest(f, "sha256").hexdigest() if hasattr(
            hashlib, "file_digest") else hashlib.sha256(f.read()).hexdigest()


def hash_tree(root):
    found = {}
    for base, _, names in os.walk(root):
        for name in names:
            path = os.path.join(base, name)
            if stat.S_ISREG(os.lstat(path).st_mode):
                found[os.path.relpath(path, root)] = hash_file(path)
    return found


class Sources:
    """@param root  sources are its subdirectories dumps, profiles, cores and jobs  @param staging 
    on the same file system, watched by nobody
    @param may_delete  whether the agent is configured to delete what it has delivered"""

    def __init__(self, root, staging, seed, may_delete=False):
        self.root, self.staging, self.seed, self.may_delete = root, staging, seed, may_delete
        self.units = []
        for name in ("dumps", "profiles", "cores", "jobs"):
            os.makedirs(os.path.join(root, name))
        os.makedirs(staging)

    # --- making ---

    def make(self, large=False):
        """One new unit, of whatever kind its number draws. @param large  of several parts"""
        n = len(self.units) + 1
        rng = random.Random(f"{self.seed} unit {n}")
        kind = "jobs" if large else rng.choice(("dumps", "dumps", "profiles", "cores", "jobs",
                                                "jobs", "jobs"))
        live = kind in ("dumps", "jobs") and not large and rng.random() < 0.25
        unit = getattr(self, "_make_" + kind)(n, rng, large, live)
        # it may be seen half done, and then the rest follows as a supplement
        unit.disturbed = unit.disturbed or live
        self.units.append(unit)
        return unit

    def _adopt(self, source, made, live):
        """Puts what was made in the staging directory into the source at once, or what was made in
        place on record."""
        name = os.path.basename(made)
        # What the source's path does not match is collected, but it is no evidence by its name.
        may_delete = self.may_delete and (source != "jobs" or name[len("job-"):].isdigit())
        unit = Unit(source, made if live else os.path.join(self.root, source, name), may_delete)
        if unit.is_file:
            unit.wrote(os.path.basename(made), *hash_file(made))
        else:
            for name, content in hash_tree(made).items():
                unit.wrote(name, *content)
        if not live:
            os.rename(made, unit.path)
        return unit

    def _make_dumps(self, n, rng, _large, live):
        where = os.path.join(self.root, "dumps") if live else self.staging
        made = make_dump.make_dump(
            where, size=rng.choice((4 * KIB, 300 * KIB, 3 * MIB)),
            cluster_id=f"{rng.getrandbits(32):08x}{n:08x}", pid=1000 + n, seed=f"{self.seed} {n}",
            date_time=f"20260527-{n // 3600 % 24:02d}{n // 60 % 60:02d}{n % 60:02d}")
        return self._adopt("dumps", made, live)

    def _make_profiles(self, n, rng, _large, _live):
        made = make_dump.make_profile(self.staging, mode=rng.choice(("model", "session")),
                                      pid=1000 + n, size=256 * KIB, seed=f"{self.seed} {n}")
        return self._adopt("profiles", made, False)

    def _make_cores(self, n, rng, _large, _live):
        made = make_dump.make_core(os.path.join(self.staging, f"core.python3.{1000 + n}"),
                                   size=rng.choice((64 * KIB, 2 * MIB)), seed=f"{self.seed} {n}")
        return self._adopt("cores", made, False)

    def _make_jobs(self, n, rng, large, live):
        name = f"job-{n}" if rng.random() < 0.8 else f"job-{n} {rng.choice(ODD_NAMES[:6])}"
        made = os.path.join(self.root, "jobs", name) if live else os.path.join(self.staging, name)
        os.mkdir(made)
        if large:
            self._write(os.path.join(made, "noise"), rng.randbytes(rng.randrange(11, 19) * MIB))
        for i in range(rng.randrange(1, 12)):
            directory = made
            for _ in range(rng.choice((0, 0, 0, 1, 2, 5))):
                directory = os.path.join(directory, f"d{rng.randrange(3)}")
            os.makedirs(directory, exist_ok=True)
            odd = f" {rng.choice(ODD_NAMES)}" if rng.random() < 0.3 else ""
            self._file(os.path.join(directory, f"f{i}{odd}"), n, i, rng)
        return self._adopt("jobs", made, live)

    def _file(self, path, n, i, rng):
        what = rng.choice(("empty", "text", "noise", "noise", "sparse"))
        # two files are never equal, so that none can stand for the other
        label = f"unit {n} file {i}\n".encode()
        if what == "empty":
            self._write(path, b"")
        elif what == "text":
            self._write(path, label * rng.randrange(1, 5000))
        elif what == "noise":
            self._write(path, label + rng.randbytes(rng.choice((1, 4095, 4096, 70000, 300000))))
        else:
            with open(path, "wb") as f:
                f.write(label)
                for _ in range(rng.randrange(1, 4)):
                    f.seek(rng.randrange(1, 3 * MIB), os.SEEK_CUR)
                    f.write(rng.randbytes(rng.randrange(1, 9000)))
                f.truncate(f.tell() + rng.choice((0, 100000)))

    @staticmethod
    def _write(path, data):
        with open(path, "wb", buffering=0) as f:
            f.write(data)

    # --- disturbing ---

    def disturb(self, rng):
        """Does something to one of the units that are still there. @return what, or None when there
        was nothing to do it to"""
        there = [u for u in self.units if u.present and u.missing_since is None]
        if not there:
            return None
        unit = rng.choice(there)
        what = rng.choice(("remove", "remove", "recreate", "remove-early", "append", "replace",
                           "add", "remove-one"))
        return getattr(self, "_" + what.replace("-", "_"))(unit, rng)

    def _remove(self, unit, _rng):
        """rm -rf of what is held: it must arrive all the same."""
        if not unit.is_held():
            return None
        return self._take_away(unit, "rm -rf of what was held")

    def _recreate(self, unit, rng):
        """Another dump under the name of one that was held and removed: both must arrive."""
        if unit.is_file or not unit.is_held():
            return None
        self._take_away(unit, "")
        made = os.path.join(self.staging, os.path.basename(unit.path))
        os.mkdir(made)
        unit.generations += 1
        for i in range(rng.randrange(1, 4)):
            name = f"again-{unit.generations}-{i}"
            self._write(os.path.join(made, name),
                        b"again %d\n" % rng.getrandbits(60) * rng.randrange(1, 1000))
            unit.wrote(name, *hash_file(os.path.join(made, name)), instead=False)
        os.rename(made, unit.path)
        return "rm -rf of what was held, and another one under its name"

    def _remove_early(self, unit, _rng):
        held = unit.is_held()
        if not held:
            for versions in unit.files.values():
                for version in versions:
                    version["needed"] = False
        return self._take_away(unit, "rm -rf of what was held" if held
                               else "rm -rf of what was not held yet")

    def _take_away(self, unit, text):
        unit.disturbed = unit.removed = True
        unit.present.clear()
        if unit.is_file:
            os.unlink(unit.path)
        else:
            shutil.rmtree(unit.path)
        return text

    def _append(self, unit, rng):
        if unit.is_file:
            return None  # a core that changes is another core: its time is part of what it is
        name = rng.choice(sorted(unit.present))
        unit.disturbed = True
        with open(unit.file(name), "ab", buffering=0) as f:
            f.write(b"later %d\n" % rng.getrandbits(60))
        unit.wrote(name, *hash_file(unit.file(name)))
        return "append"

    def _replace(self, unit, rng):
        if unit.is_file:
            return None
        name = rng.choice(sorted(unit.present))
        unit.disturbed = True
        new = os.path.join(self.staging, "new")
        self._write(new, b"replaced %d\n" % rng.getrandbits(60) * rng.randrange(1, 1000))
        unit.wrote(name, *hash_file(new))
        os.rename(new, unit.file(name))
        return "replace"

    def _add(self, unit, rng):
        if unit.is_file:
            return None
        name = f"late-{len(unit.files)}"
        unit.disturbed = True
        new = os.path.join(self.staging, "new")
        self._write(new, b"late %d\n" % rng.getrandbits(60) * rng.randrange(1, 1000))
        unit.wrote(name, *hash_file(new))
        os.rename(new, unit.file(name))
        return "add"

    def _remove_one(self, unit, rng):
        name = rng.choice(sorted(unit.present))
        if unit.is_file or len(unit.present) < 2:
            return None
        held = unit.is_held([name])
        unit.disturbed = True
        unit.present.discard(name)
        for version in unit.files[name]:
            version["needed"] = version["needed"] and held
        os.unlink(unit.file(name))
        return ("unlink of one file that was held" if held
                else "unlink of one file that was not held yet")
