#!/usr/bin/env python3
"""One situation, and what each command says of it: --check, doctor, status, readyz, drain and --once
agree. The table below has the situations; how each comes about is the function of its name.

A cell is an exit status (of readyz: a status code) and words of which each must be in the answer;
`-`: the command is not asked. `status` must say what `readyz` says. --once runs alone, in a second
place like the first one; the others ask an agent that runs.
"""
import concurrent.futures
import contextlib
import http.server
import os
import signal
import sys
import threading
import time
import traceback

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import DAEMON, PATIENCE, Agent, need, need_root, run, wait_for
from s3_server import S3Server
from servers import free_port
from tap import Skip, in_time, main, test
from test_notes import clean_up, serve_faultfs, stand_still

TABLE = """
situation                    | check     | doctor                 | readyz                | drain                        | once
-----------------------------|-----------|------------------------|-----------------------|------------------------------|--------------------------
all is well                  | 0         | 0                      | 200                   | 0 safe to terminate          | 0
a key that is unknown        | 0         | 1 InvalidAccessKeyId   | 503 InvalidAccessKeyId | 1 InvalidAccessKeyId        | 1 InvalidAccessKeyId
a secret that is wrong       | 0         | 1 SignatureDoesNotMatch | 503 SignatureDoesNotMatch | 1 SignatureDoesNotMatch | 1 SignatureDoesNotMatch
no keys at all               | 0         | 1 credentials          | 503 credentials       | 1 credentials                | 1 credentials
credentials that expired     | 0         | 1 ExpiredToken         | 503 ExpiredToken      | 1 ExpiredToken               | 1 ExpiredToken
a bucket that is not there   | 0         | 1 create bucket 'other'  | 503 create bucket 'other' | 1 create bucket 'other'  | 1 create bucket 'other'
a store that is away         | 0         | 1 refused              | 503 refused           | 1 refused                    | 1 refused
a store that denies all      | 0         | 1 AccessDenied         | 503 AccessDenied      | 1 AccessDenied               | 1 AccessDenied
a store that is busy         | 0         | 1 the store is busy    | 503 the store is busy | 1 the store is busy          | 1 the store is busy
a web page for a store       | 0         | 1 S3                   | 503 S3                | 1 S3                         | 1 S3
a store whose clock is ahead | 0         | 0 ahead                | 200                   | 0 safe to terminate          | 0
a region that does not exist | 0         | 1 mars                 | 503 mars              | 1 mars                       | 1 mars
a volume that is not mounted | 0         | 1 mount                | 503 mounted           | 1 mounted                    | 1 mounted
a volume that went away      | 0         | 1 mount                | 503 mounted           | 1 mounted                    | -
a volume that is read only   | 0         | 1 Read-only            | 503 Read-only         | 1 Read-only                  | 1 Read-only
a volume that is full        | 0         | 1 free                 | 503 free              | 1 free                       | 1 free
a volume that hangs          | 0         | 1 did not answer       | 503 the mount hangs   | 1 the mount hangs            | 1 ready
a copy on this node alone    | 0         | 0                      | 200                   | 1 this node's own disk       | 0
a source that is not there   | 0         | 0 does not exist yet   | 200                   | 0 safe to terminate          | 0
a source that is a file      | 0         | 1 Not a directory      | 503 not a directory   | 1 not a directory            | 1 not a directory
a source behind a symlink    | 0         | 1 symlink              | 503 symlink           | 1 symlink                    | 1 symlink
a source that is closed      | 0         | 1 CAP_DAC_READ_SEARCH  | 503 CAP_DAC_READ_SEARCH | 1 CAP_DAC_READ_SEARCH      | 1 CAP_DAC_READ_SEARCH
a dump that is closed        | 0         | 1 CAP_DAC_READ_SEARCH  | 503 CAP_DAC_READ_SEARCH | 1 CAP_DAC_READ_SEARCH      | 1 CAP_DAC_READ_SEARCH
a source that hangs          | 0         | 1 did not answer       | 503 its file system hangs | 1 its file system hangs  | 1 source shared
a dump that is being written | 0         | 0                      | 200                   | 1 not known to be complete   | 1 settling
a state directory that went  | 0         | 0 not running          | 0                     | 3 not running                | -
a state disk that is full    | 0         | 1 state directory      | 0                     | 3 not running                | 1 No space left
no watches of inotify        | 0         | 0                      | 200                   | 0 safe to terminate          | 0
more units than a minute has | 0         | 0                      | 200                   | -                            | -
a bundle that was given up   | 0         | 0                      | 200                   | 1 quarantined                | 1 EntityTooLarge
a destination that was taken | 0         | 1 no longer configured | 503 no longer configured | 1 no longer configured    | -
a drain that was cancelled   | 0         | 1 refused              | 503 refused           | 1 cancelled by `resume`      | -
a second agent               | 0         | 0                      | 200                   | 0 safe to terminate          | -
a reload of a faulty file    | 2 sorces  | 2 sorces               | 200                   | 0 safe to terminate          | 2 sorces
a key file that is not there | 2 No such file | 1 No such file    | 200                   | 0 safe to terminate          | 0
"""

NOBODY = 65534


# How a situation comes about: what stands before `yield` before the agent starts, what stands
# behind it afterwards. @param s  an ExitStack, for what must end with the test


def all_is_well(a, _):
    a.dump(size=65536)
    yield


def bucket(a, s, **more):
    """A programmable store as the only destination, and something to ship."""
    store = s.enter_context(S3Server())
    a.config["destinations"] = [a.s3("archive", store, store.bucket, request_timeout="2s") | more]
    a.dump(size=65536)
    return store


def a_key_that_is_unknown(a, s):
    bucket(a, s)
    a.environment["AWS_ACCESS_KEY_ID"] = "AKIAUNKNOWN"
    yield


def a_secret_that_is_wrong(a, s):
    bucket(a, s)
    a.environment["AWS_SECRET_ACCESS_KEY"] = "wrong"
    yield


def no_keys_at_all(a, s):
    bucket(a, s)
    a.use_keys(None)
    yield


def credentials_that_expired(a, s):
    bucket(a, s).fault("*", status=400, code="ExpiredToken", times=None)
    yield


def a_bucket_that_is_not_there(a, s):
    bucket(a, s, bucket="other")
    yield


def a_store_that_is_away(a, s):
    bucket(a, s, endpoint=f"http://127.0.0.1:{free_port()}")
    yield


def a_store_that_denies_all(a, s):
    bucket(a, s).fault("*", status=403, code="AccessDenied", times=None)
    yield


def a_store_that_is_busy(a, s):
    bucket(a, s).fault("*", status=503, code="SlowDown", times=None)
    yield


class Page(http.server.BaseHTTPRequestHandler):
    """200 and a page to everything."""
    protocol_version = "HTTP/1.1"

    def do_GET(self):  # pylint: disable=invalid-name
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        page = b"<html><body>Welcome</body></html>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass


def a_web_page_for_a_store(a, s):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    s.callback(server.server_close)
    s.callback(server.shutdown)
    bucket(a, s, endpoint=f"http://127.0.0.1:{server.server_port}")
    yield


def a_store_whose_clock_is_ahead(a, s):
    bucket(a, s).clock_offset = 3600
    yield


def a_region_that_does_not_exist(a, s):
    bucket(a, s, region="mars")
    del a.config["destinations"][0]["endpoint"]
    yield


def a_volume_that_is_not_mounted(a, _):
    a.config["destinations"] = [a.volume("archive", "mnt/fsx/neuron")]
    a.dump(size=65536)
    yield


def a_volume_that_went_away(a, s):
    os.makedirs(a.path("mnt"))
    mount(s, "-t", "tmpfs", "-o", "size=10m", "tmpfs", a.path("mnt"))
    a.config["destinations"] = [a.volume("archive", "mnt/neuron")]
    a.dump(size=65536)
    yield
    a.wait_delivered(1)
    run("umount", "-l", a.path("mnt"))
    a.dump(size=65536, cluster_id="00000000000000bb", pid=5)


def mount(s, *arguments):
    need_root()
    result = run("mount", *arguments)
    if result.returncode:
        raise Skip(f"cannot mount: {result.stderr}")
    s.callback(run, "umount", "-l", arguments[-1])


def a_volume_that_is_read_only(a, s):
    mount(s, "-t", "tmpfs", "-o", "size=10m,ro", "tmpfs", a.out)
    a.dump(size=65536)
    yield


def a_volume_that_is_full(a, s):
    mount(s, "-t", "tmpfs", "-o", "size=10m", "tmpfs", a.out)
    a.config["destinations"][0]["min_free"] = "20MiB"
    a.dump(size=65536)
    yield


def hung(a, name):
    """A directory of the agent's on a mount whose server stopped."""
    server = serve_faultfs(a, a.path(name))
    for directory in ("jobs", "out"):
        os.makedirs(a.path(name, directory))
    time.sleep(1.1)  # what the kernel remembers of the directory is over
    stand_still(server)


def a_volume_that_hangs(a, _):
    need_root()
    a.config["destinations"] = [a.volume("archive", "share/out")]
    a.dump(size=65536)
    hung(a, "share")
    yield


def a_copy_on_this_node_alone(a, _):
    del a.config["destinations"][0]["durable"]
    a.dump(size=65536)
    yield


def a_source_that_is_not_there(a, _):
    a.config["sources"][0]["path"] = a.path("not", "there", "yet", "%d-%c")
    yield


def a_source_that_is_a_file(a, _):
    with open(a.path("dumps"), "wb"):
        pass
    yield


def a_source_behind_a_symlink(a, _):
    need_root()
    a.dump(size=65536)
    os.rename(a.path("dumps"), a.path("elsewhere"))
    os.symlink(a.path("elsewhere"), a.path("dumps"))
    os.lchown(a.path("dumps"), NOBODY, NOBODY)
    yield


def unprivileged(a):
    need_root()
    need("setpriv")
    a.prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
                "--bounding-set=-all", "--inh-caps=-all"]
    for name in ("state", "run", "out", "home"):
        os.chown(a.path(name), NOBODY, NOBODY)
    a.owner = NOBODY


def a_source_that_is_closed(a, _):
    unprivileged(a)
    a.dump(size=65536)
    os.chmod(a.path("dumps"), 0o700)
    yield


def a_dump_that_is_closed(a, _):
    unprivileged(a)
    os.chmod(a.dump(size=65536), 0o700)
    yield


def a_source_that_hangs(a, _):
    need_root()
    hung(a, "share")
    a.config["sources"] = [a.source("shared", "directory", "share/jobs/job-%p", watch="scan")]
    yield


def a_dump_that_is_being_written(a, _):
    a.config["sources"][0]["settle"] = "10m"
    a.dump(size=65536)
    yield


def a_state_directory_that_went(a, _):
    a.dump(size=65536)
    yield
    a.wait_all()
    os.rename(a.path("state"), a.path("state.away"))


def a_state_disk_that_is_full(a, s):
    mount(s, "-t", "tmpfs", "-o", "size=1m", "tmpfs", a.path("state"))
    with contextlib.suppress(OSError), open(a.path("state", "ballast"), "wb") as f:
        while True:
            f.write(bytes(4096))
            f.flush()
    a.dump(size=65536)
    yield


def no_watches_of_inotify(a, _):
    need_root()
    need("unshare")
    a.prefix = ["unshare", "--user", "--map-root-user", "sh", "-c",
                'echo 1 >/proc/sys/user/max_inotify_watches && exec "$@"', "sh"]
    a.config["sources"][0]["scan_interval"] = "500ms"
    a.dump(size=65536)
    yield


def more_units_than_a_minute_has(a, _):
    a.use_all_kinds()
    for i in range(1500):  # as in test_operate
        os.makedirs(a.path("jobs", f"job-{i}"))
        with open(a.path("jobs", f"job-{i}", "log"), "w", encoding="ascii") as f:
            f.write("x")
    yield
    wait_for("some wait", lambda: "some wait" in (a.status()["ready_note"] or ""))


def a_bundle_that_was_given_up(a, s):
    store = bucket(a, s)
    a.config["retry"]["quarantine_after"] = 1
    store.fault("PutObject", status=400, code="EntityTooLarge", times=None,
                when=lambda r: "00bb" in r.key)
    a.dump(size=65536, cluster_id="00000000000000bb", pid=5)
    yield
    if a.process:  # against a bundle counts what another one gets through with afterwards
        wait_for("it was refused", lambda: "EntityTooLarge" in a.log)
        a.dump(size=65536, cluster_id="00000000000000cc", pid=6)
        wait_for("it was given up", lambda: a.counts()["quarantined"], 30)


def a_destination_that_was_taken(a, _):
    a.config["destinations"].append(a.volume("fsx", "mnt/fsx"))
    a.dump(size=65536)
    yield
    wait_for("one has it", lambda: [d for b in a.bundles() for d in b["deliveries"]
                                    if d["state"] == "delivered"])
    a.config["destinations"].pop()
    a.write_config()
    a.reload()


def a_drain_that_was_cancelled(a, s):
    bucket(a, s, endpoint=f"http://127.0.0.1:{free_port()}")
    yield


def a_second_agent(a, _):
    a.dump(size=65536)
    yield
    second = run(DAEMON, "--config", a.config_file, env=a.whole_environment(), timeout=20)
    assert second.returncode != 0 and "is in use by the agent" in second.stderr, second
    assert "which has ended" not in second.stderr, second
    a.wait_all()
    assert a.once("--timeout", "5s").returncode == 0, "--once asks the agent that runs"


def a_reload_of_a_faulty_file(a, _):
    a.dump(size=65536)
    yield
    a.config["sorces"] = []
    a.write_config()
    if a.process:
        a.reload()
        wait_for("it was refused", lambda: a.status()["config"]["last_error"])


def a_key_file_that_is_not_there(a, _):
    a.config["agreement"] = {"key_file": a.path("bus.key"), "listen": "ipc://" + a.path("bus"),
                             "settle": "0s"}
    a.dump(size=65536)
    yield


# What is asked.


class Row:
    def __init__(self, line):
        self.name, *cells = [cell.strip() for cell in line.split("|")]
        self.cells = dict(zip(("check", "doctor", "readyz", "drain", "once"), cells))

    def asks(self, command):
        return self.cells[command] != "-"

    def code(self, command):
        return int(self.cells[command].split()[0])

    def judge(self, command, code, text):
        """@return "" or what is not as the table says"""
        words = self.cells[command].partition(" ")[2]
        if code == self.code(command) and words.lower() in text.lower():
            return ""
        return f"{command} says {code}, not {self.cells[command]}:\n{text}\n"


def answer(result):
    return result.returncode, result.stdout + result.stderr


def readyz(a):
    result = a.curl("/readyz", "-w", "%{http_code}")
    return int(result.stdout[-3:]), result.stdout


def wait_settled(a, row):
    """Until readyz says what the table says, and has something to say it of."""
    def settled():
        status = a.status()
        return not row.judge("readyz", *readyz(a)) and (
            status["idle"] or row.code("readyz") == 503 or not row.asks("drain")
            or row.code("drain") == 1)
    with contextlib.suppress(AssertionError):
        # what hangs is called so after a minute
        wait_for("it has settled", settled, 80 if "hangs" in row.name else 10)


def drain(a, row):
    if row.name == "a drain that was cancelled":
        with concurrent.futures.ThreadPoolExecutor() as pool:
            waiting = pool.submit(a.cli, "drain", "--timeout", "30s")
            wait_for("it drains", lambda: a.status()["drain"])
            a.cli("resume")
            return answer(waiting.result())
    return answer(a.cli("drain", "--timeout", "20s" if row.code("drain") == 0 else "1s"))


def judge_status(a, row, faults):
    text = a.cli("status").stdout
    verdict = "can deliver: " + ("yes" if row.code("readyz") == 200 else "no")
    words = row.cells["readyz"].partition(" ")[2]
    if verdict not in text or words.lower() not in text.lower():
        faults.append(f"status does not say {verdict}, {words}:\n{text}\n")


def ask_the_running(row, arrange, faults):
    a = Agent()
    with contextlib.ExitStack() as stack:
        steps = arrange(a, stack)
        next(steps)
        a.write_config()
        with contextlib.suppress(*[AssertionError] * (row.code("readyz") == 0)):
            a.start(write_config=False)
        next(steps, None)
        if row.code("readyz") == 0:  # the agent ends
            a.process.wait(20 * PATIENCE)
        env = a.whole_environment()
        faults.append(row.judge("check", *answer(run(DAEMON, "--config", a.config_file, "--check",
                                                     env=env))))
        if row.code("readyz"):
            wait_settled(a, row)
            judge_status(a, row, faults)
        faults.append(row.judge("readyz", *readyz(a)))
        doctor = a.cli("--config", a.config_file, "doctor")
        lines = [x for x in doctor.stdout.splitlines() if not x.startswith("ok")]
        bad = "\n".join(x for x in lines if x.startswith("FAILED") or row.code("doctor") == 0)
        faults.append(row.judge("doctor", doctor.returncode,
                                doctor.stdout if row.code("doctor") == 0 else bad))
        if row.asks("drain"):
            faults.append(row.judge("drain", *drain(a, row)))
        if a.process.poll() is None:
            os.kill(a.pid, signal.SIGKILL)
        a.process = None  # it may hang in the kernel


def ask_once(row, arrange, faults):
    a = Agent()
    if "hangs" in row.name:  # the search for leaks stops all threads, which none in the kernel can be
        a.environment["ASAN_OPTIONS"] = "detect_leaks=0"
    with contextlib.ExitStack() as stack:
        steps = arrange(a, stack)
        next(steps)
        next(steps, None)
        faults.append(row.judge("once", *answer(a.once(
            "--timeout", "20s" if row.code("once") == 0 else "3s", timeout=60))))


def run_row(row):
    """@return what is not as the table says; None: it cannot be run here, since …"""
    arrange, faults = globals()[row.name.replace(" ", "_")], []
    try:
        ask_the_running(row, arrange, faults)
        if row.asks("once"):
            ask_once(row, arrange, faults)
    except Skip as skip:
        return skip
    except Exception:  # pylint: disable=broad-except  # it is one of many
        faults.append(traceback.format_exc())
    return "\n".join(f for f in faults if f)


_said = {}


def run_table():
    """All rows that are wanted, several at a time: most of a row is waiting, and what is cleaned up
    after a test is everybody's."""
    wanted = [r for r in ROWS if not sys.argv[1:] or any(
        a in r.name.replace(" ", "_") for a in sys.argv[1:])]
    wanted.sort(key=lambda r: "hangs" not in r.name)
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        _said.update(zip([r.name for r in wanted], pool.map(run_row, wanted)))


def situation(row):
    def function():
        if not _said:
            run_table()
        said = _said[row.name]
        if isinstance(said, Skip):
            raise said
        assert not said, said
    function.__name__ = row.name.replace(" ", "_")
    function.__module__ = "__main__"
    return function


@test
def a_hung_mount_is_reported_and_no_command_hangs():
    need_root()
    a = Agent()
    hung(a, "share")
    a.config["sources"].append(a.source("shared", "directory", "share/jobs/job-%p"))
    a.config["destinations"].append(a.volume("fsx", "share/out"))
    a.write_config()
    options = ("--config", a.config_file)
    commands = {"doctor": (*options, "doctor"), "estimate": (*options, "estimate")} | {
        name: (name, a.path("share", "out", "x")) for name in ("ls", "report", "verify", "get")}
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        said = {name: pool.submit(a.cli, *command, timeout=100)
                for name, command in commands.items()}
        said = {name: future.result() for name, future in said.items()}
    in_time(time.monotonic() - begun, 60, "all of them")
    for name, result in said.items():
        text = result.stdout + result.stderr
        assert result.returncode == 1 and "did not answer within 10 s" in text, (name, result)
    lines = said["doctor"].stdout.splitlines()
    for what in ("source shared", "destination fsx"):
        assert [x for x in lines if x.startswith(f"FAILED  {what}: ") and "answer" in x], lines
    assert [x for x in lines if x.startswith("ok      destination archive: ")], "the rest is checked"


ROWS = [Row(line) for line in TABLE.strip().splitlines()[2:]]
AT_ONCE = 4
for one in ROWS:
    test(situation(one))

if __name__ == "__main__":
    sys.exit(main(clean_up))
