"""A directory like the one where the runtime looks for its hook, with the vendor's in it, and a
configuration of an agent that does not run."""
import os
import shutil
import stat
import tempfile

from cli_test import CLI, run

from agent import clean_environment

VENDOR = b"\x7fELF the vendor's hook\n" + b"\0" * 5000
NEWER = b"\x7fELF the vendor's next hook\n" + b"\0" * 7000
NAME, ASIDE, CHAIN = "neuron-dump", "neuron-dump.vendor", "neuron-dump.chain"


def program(version="9.8.7", before=100000):
    """Stands in for our program: its marker lies across two of the pieces that are read."""
    return b"\x7fELF" + b"x" * (
        before - 4) + b"neuron-collectd neuron-dump " + version.encode() + b"\0" + b"y" * 1000


class Place:
    def __init__(self, vendor=VENDOR):
        self.top = tempfile.mkdtemp(prefix="neuron-hook.")
        os.chmod(self.top, 0o755)
        self.dir = os.path.join(self.top, "bin")
        os.mkdir(self.dir)
        self.ours = self.put(program(), os.path.join(self.top, "ours"))
        self.config = os.path.join(self.top, "c.yaml")
        with open(self.config, "w", encoding="ascii") as f:
            f.write(f"version: 1\nsources:\n  - {{name: core-dumps, kind: neuron-core-dump, path: "
                    f"/tmp/neuron-core-dump/dt-%d-cid-%c}}\n"
                    f"destinations:\n  - {{name: archive, type: volume, path: {self.top}/out}}\n"
                    f"hook: {{socket: {self.top}/hook.sock, mailbox: {self.top}/mailbox}}\n")
        if vendor is not None:
            self.put(vendor)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.top)

    def path(self, name=NAME):
        return os.path.join(self.dir, name)

    def put(self, content, path=None, mode=0o755):
        """As a package does it: a new file, and rename."""
        path = path or self.path()
        with open(path + ".dpkg-new", "wb") as f:
            f.write(content)
        os.chmod(path + ".dpkg-new", mode)
        os.rename(path + ".dpkg-new", path)
        return path

    def chain(self, target):
        """As an operator does it. @param target  None: none"""
        if os.path.lexists(self.path(CHAIN)):
            os.unlink(self.path(CHAIN))
        if target is not None:
            os.symlink(target, self.path(CHAIN))

    def content(self, name=NAME):
        try:
            with open(self.path(name), "rb") as f:
                return f.read()
        except FileNotFoundError:
            return None

    def hook(self, *arguments, wrap=(), **options):
        env = clean_environment() | {"LC_ALL": "C"}
        return run(*wrap, CLI, "--config", self.config, "hook", *arguments, "--to", self.dir,
                   "--from", self.ours, env=env, **options)

    def good(self, *arguments, **options):
        result = self.hook(*arguments, **options)
        assert result.returncode == 0 and not result.stderr, result
        return result.stdout

    def bad(self, *arguments, says, **options):
        before = self.everything()
        result = self.hook(*arguments, **options)
        assert result.returncode == 1 and says in result.stderr and not result.stdout, result
        assert len(result.stderr.splitlines()) == 1, result
        assert self.everything() == before, "it has changed something all the same"
        return result

    def everything(self):
        found = {}
        for name in sorted(os.listdir(self.dir)):
            st = os.lstat(self.path(name))
            kind = os.readlink(self.path(name)) if stat.S_ISLNK(st.st_mode) else self.content(
                name) if stat.S_ISREG(st.st_mode) else None
            found[name] = (st.st_mode, kind)
        return found

    def names(self):
        return sorted(os.listdir(self.dir))
