"""What goes wrong in a round. Each theme adds to crash points, kills and a few faults of the
network, which every round has."""
import math
import os
import time

import agent as harness
import inotify_queue
from rounds import Round
from surroundings import Disk, FaultVolume, can_cut_power, can_serve_faults
from tap import Skip


class CrashPoints(Round):
    theme = "crash-points"


class Network(Round):
    theme = "network"
    storm = 0.3
    crash_chance = 0.4


class Store(Round):
    """The server is stopped, hangs, is killed and comes back with what it had written."""
    theme = "store"
    storm = 0.05
    crash_chance = 0.4
    lengths = (0.2, 0.5, 1.0)

    def before_life(self):
        self.what, self.at = (self.random.choice(("kill", "stop", "hang", "hang", None, None)),
                              time.monotonic() + self.random.uniform(0, 0.6))

    def during_life(self):
        if self.what and time.monotonic() > self.at:
            if self.what == "kill" and self.met.get("server: kill"):
                # coming back from a kill takes it ten seconds and more: once a round
                self.what = "stop"
            {"kill": self.server.kill, "stop": self.server.stop_gateway,
             "hang": self.server.hang}[self.what]()
            self.meet(f"server: {self.what}")
            self.undo, self.what = self.what, None

    undo = None

    def after_life(self):
        undo, self.undo = self.undo, None
        if undo == "kill":
            self.server.start_again()
        elif undo == "stop":
            self.server.start_gateway()
        elif undo == "hang":
            self.server.unhang()

    def clean_up(self):
        self.after_life()


class Volume(Round):
    """The volume fails, is full, says it has not done what it did, and hangs."""
    theme = "volume"
    RULES = ("write EIO {n}", "write ENOSPC {n}", "fsync EIO {k}", "link ESTALE {k}",
             "link EIO {k}", "create ENOSPC {k}", "create ESTALE {k}",
             "mkdir EIO {k}", "unlink EIO {k}", "read EIO {n}", "read flip {n}", "write short {n}",
             "* ESTALE {k}", "open EIO {k}", "statfs EIO {k}")

    def prepare(self):
        can_serve_faults()
        self.volume = FaultVolume(self.agent, self.agent.path("vol"))
        self.agent.config["destinations"][1] = self.agent.volume("volume", "vol/archive")
        os.makedirs(self.agent.path("vol", "archive"))

    def place_of_volume(self):
        return self.agent.path("vol", "archive")

    def volume_for_judge(self):
        return self.agent.path("vol.real", "archive")

    def before_life(self):
        r = self.random
        self.hang_at = None
        rule = r.choice(self.RULES).format(n=r.randrange(200000), k=r.randrange(4))
        if r.random() < 0.7:
            self.volume.fault(rule)
            self.meet(f"volume: {' '.join(rule.split()[:2])}")
        else:
            self.hang_at = time.monotonic() + r.uniform(0, 0.5)
        self.clear_at = time.monotonic() + r.uniform(0.2, 1.0)

    def arm(self):
        if self.random.random() < 0.5:
            super().arm()
            return
        action = self.random.choice(("do-and-fail", "fail", "shorten"))
        self.crash.arm(action, self.random.randrange(1, 30), places=["volume"],
                       times=self.random.choice((1, 2, 10)),
                       error=self.random.choice(("EIO", "ESTALE", "ENOSPC")))
        self.meet(f"volume: {action}")

    def during_life(self):
        now = time.monotonic()
        if self.hang_at and now > self.hang_at:
            self.volume.hang()
            self.meet("volume: hangs")
            self.hang_at = None
        elif now > self.clear_at:
            self.volume.go_on()
            self.volume.fault("clear")
            self.clear_at = math.inf

    def _end_life(self, how):
        self.volume.go_on()  # a process that waits for a hung volume cannot even be killed
        super()._end_life(how)

    def after_life(self):
        self.volume.fault("clear")

    def clean_up(self):
        if hasattr(self, "volume"):
            self.volume.close()


class State(Round):
    """The state directory is full or fails, for some calls."""
    theme = "state"

    def arm(self):
        r = self.random
        if r.random() < 0.3:
            super().arm()
            return
        self.error = r.choice(("ENOSPC", "ENOSPC", "EIO"))
        action = r.choice(("fail", "fail", "shorten"))
        self.crash.arm(action, r.randrange(1, 120), places=["state"],
                       times=r.choice((1, 3, 20, 200)), error=self.error,
                       operations=r.choice((("write",), ("fsync",),
                                            ("write", "fsync", "truncate", "open"))))
        self.meet(f"state directory: {self.error if action == 'fail' else 'short write'}")

    def excuse(self, _code):
        """docs/DESIGN.md: a full or failing disk stops an agent that cannot open its state."""
        return ("the state directory refused at the start" if self.crash.acted
                and not self.was_up() else None)

    def was_up(self):
        status = self.watcher.status
        return bool(status and status["agent"]["pid"] == self.pid)

    def _start(self):
        super()._start()
        self.pid = self.agent.process.pid

    def _account(self, code, was_asked_nicely):
        if self.crash.acted:
            self.state_failed.append([self.pid, self.begun])
        super()._account(code, was_asked_nicely)


class Moving(Round):
    """Sources are removed, replaced and changed while inotify has a queue of 16."""
    theme = "sources"

    def _start(self):
        with inotify_queue.length(16):
            super()._start()
            deadline = time.monotonic() + 0.5
            while (time.monotonic() < deadline and self.agent.process.poll() is None
                   and not inotify_queue.is_made(self.agent.process.pid)):
                time.sleep(0.005)
        self.meet("inotify queue of 16")

    def during_life(self):
        if self.random.random() < 0.25:
            what = self.sources.disturb(self.random)
            if what:
                self.meet(f"source: {what}")


class Clock(Round):
    theme = "clock"
    crash_chance = 0.5
    DAY = 86400

    def before_life(self):
        self.crash.clock_offset = self.random.choice((0, self.DAY, -self.DAY,
                                                      self.random.uniform(-self.DAY, self.DAY)))

    def during_life(self):
        if self.random.random() < 0.1:
            self.crash.clock_offset = self.random.choice((0, self.DAY, -self.DAY))
            self.meet("clock: jump")


class Credentials(Round):
    """Keys are replaced in the middle of uploads: for a time they are wrong."""
    theme = "credentials"
    crash_chance = 0.3
    large_every = 2
    lengths = (0.4, 0.8, 1.2)

    def prepare(self):
        self.agent.use_keys(None)
        self.file = self.agent.path("home", "credentials")
        self.agent.environment["AWS_SHARED_CREDENTIALS_FILE"] = self.file
        self.key = 0
        self._rotate()

    def _write(self, access_key, secret_key):
        with open(self.file + ".new", "w", encoding="utf-8") as f:
            f.write(f"[default]\naws_access_key_id = {access_key}\naws_secret_access_key = "
                    f"{secret_key}\n")
        os.rename(self.file + ".new", self.file)

    def _rotate(self):
        """A new key of the same user; the one before ends."""
        old = f"CAMPAIGN{os.getpid():08d}{self.number % 100:02d}{self.key:02d}"
        self.key += 1
        self.keys = (f"CAMPAIGN{os.getpid():08d}{self.number % 100:02d}{self.key:02d}",
                     f"secret-{self.key}")
        self.server.add_key("test", *self.keys)
        if self.key > 1:
            self.server.remove_key("test", old)
            self.meet("credentials: rotated")
        self._write(*self.keys)

    def before_life(self):
        self.wrong_at = time.monotonic() + self.random.uniform(0, 0.6)
        self.right_at = self.wrong_at + self.random.uniform(0.1, 0.5)
        self.rotate = self.random.random() < 0.3

    def during_life(self):
        now = time.monotonic()
        if now > self.wrong_at:
            self._write("CAMPAIGNWRONG0000000", "wrong")
            self.proxy.cut()
            self.wrong_at = math.inf
            self.meet("credentials: wrong")
        elif now > self.right_at:
            self._rotate() if self.rotate else self._write(*self.keys)
            self.right_at = math.inf

    def after_life(self):
        self._write(*self.keys)


class Retention(Round):
    """What is delivered is deleted at its source: never too early."""
    theme = "retention"
    may_delete = True
    storm = 0.1

    def prepare(self):
        self.agent.config["retention"] = {"after_delivery": "delete", "keep_for": "0s"}
        self.agent.write_config()
        check = harness.run(harness.DAEMON, "--config", self.agent.config_file, "--check")
        if check.returncode != 0:
            raise Skip("this build has no `after_delivery: delete`: "
                       f"{check.stderr.strip().splitlines()[-1]}")

    def _is_quiet(self):
        return super()._is_quiet() and all(u.missing_since or not u.present
                                           for u in self.sources.units if u.agent_may_delete)


class PowerCut(Round):
    """State and volume lie on a disk that loses what was not synced, again and again."""
    theme = "power-cut"
    crash_chance = 0.2

    def prepare(self):
        can_cut_power()
        self.disk = Disk(self.agent.path("disk.img"), self.agent.path("disk"), mib=700)
        for name in ("state", "out"):
            os.mkdir(self.agent.path("disk", name))
        self.agent.config["state_directory"] = self.agent.path("disk", "state")
        self.agent.config["hook"]["mailbox"] = self.agent.path("disk", "state", "mailbox")
        self.agent.config["destinations"][1] = self.agent.volume("volume", "disk/out")

    def place_of_state(self):
        return self.agent.path("disk", "state")

    def place_of_volume(self):
        return self.agent.path("disk", "out")

    def _end_life(self, how):
        self.state_failed.append([self.agent.process.pid, time.monotonic()])
        self.disk.cut()
        self.meet("power cut")
        super()._end_life("KILL")

    def excuse(self, _code):
        return "the disk was gone"

    def after_life(self):
        self.disk.mount_again()

    def _quiet_end(self):
        self._end_life = super()._end_life
        super()._quiet_end()

    def clean_up(self):
        if hasattr(self, "disk"):
            self.disk.close()


class AllAtOnce(Moving):
    """Much of the above together, as it comes in one bad night."""
    theme = "all-at-once"
    storm = 0.15
    crash_chance = 0.5

    def during_life(self):
        super().during_life()
        chance = self.random.random()
        if chance < 0.03:
            self.crash.clock_offset = self.random.choice((0, Clock.DAY, -Clock.DAY))
            self.meet("clock: jump")
        elif chance < 0.05:
            self.server.stop_gateway()
            self.server.start_gateway()
            self.meet("server: stopped and started")
        elif chance < 0.08:
            self.proxy.cut()
            self.meet("network: every connection reset")


THEMES = (CrashPoints, Network, Store, Volume, State, Moving, Clock, Credentials, Retention,
          PowerCut, AllAtOnce)
