#!/usr/bin/env python3
"""neuron-collect doctor: every part is tried, each fault is found and told with its remedy, and
nothing is left behind."""
import http.server
import json
import os
import re
import shutil
import socket
import sys
import threading

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
# pylint: disable=wrong-import-position
from cli_test import (CLI, CannedApi, assert_harmless, check_golden, golden_api, main, run,
                      run_in_terminal, session, test)

from agent import Agent, cleanup, clean_environment, need_root, wait_for
from hook_place import program
from s3_server import S3Server

NOBODY = {"user": 65534, "group": 65534, "extra_groups": []}


def findings(result):
    """[(state, what, detail)] of a run without --json."""
    found = []
    for line in result.stdout.splitlines():
        match = re.fullmatch(r"(ok|warning|FAILED) +([^:]+): (.*)", line)
        assert match, line
        found.append(match.groups())
    return found


def of(result, state, what=""):
    return [f"{w}: {detail}" for s, w, detail in findings(result) if s == state
            and w.startswith(what)]


def doctor(a, *options, environment=None, program=CLI, **more):
    a.write_config()
    env = clean_environment(HOME="/nonexistent",
                            AWS_EC2_METADATA_DISABLED="true") | (environment or {})
    return run(program, "--config", a.config_file, "doctor", *options, env=env, **more)


def with_bucket(s):
    a = Agent()
    a.config["destinations"] = [{"name": "archive", "type": "s3", "bucket": s.bucket,
                                 "endpoint": s.endpoint, "prefix": "neuron/%d-%c"}]
    return a


def at_bucket(a, s, *options, environment=None):
    result = doctor(a, "--destination", "archive", *options,
                    environment={**s.environment(), **(environment or {})})
    assert s.secret_key not in result.stdout + result.stderr, result
    return result


def everything_below(*directories):
    return sorted(os.path.join(base, name) for d in directories for base, dirs,
                  names in os.walk(d) for name in dirs + names)


@test
def all_is_well_and_nothing_is_left_behind():
    a = Agent()
    a.dump(size=1 << 16)
    a.start()
    a.wait_delivered(1)
    os.mkdir(a.path("bin"))
    with open(a.path("bin", "neuron-dump"), "wb") as f:
        f.write(program())
    os.chmod(f.name, 0o755)
    a.wait_all()
    wait_for("its links are removed", lambda: a.sql("SELECT links_held FROM bundles") == "0")
    before = everything_below(a.dir)
    result = doctor(a, "--hook-directory", a.path("bin"))
    assert result.returncode == 0 and not result.stderr and not of(result, "FAILED"), result
    # what this machine has installed itself may be another hook than the test's
    assert not [w for w in of(result, "warning") if not w.startswith(
        ("agent: it has no CAP_", "hook: ", "hard links: fs.", "snapshot: there is no ",
         "agreement: is switched off", "process cores: "))], \
        of(result, "warning")
    assert everything_below(a.dir) == before, "it has left something"
    whats = [what for _, what, _ in findings(result)]
    for what in ("user", "configuration", "instance id", "state directory", "source core-dumps",
                 "hook", "hook socket", "hook mailbox", "snapshot",
                 "destination archive", "agreement", "agent"):
        assert what in whats, (what, result.stdout)
    answer = json.loads(doctor(a, "--hook-directory", a.path("bin"), "--json").stdout)
    assert answer["ok"] is True and [f["what"] for f in answer["findings"]] == whats
    assert {f["state"] for f in answer["findings"]} <= {"ok", "warning"} and all(
        set(f) == {"state", "what", "detail", "remedy"} for f in answer["findings"])
    text = session(["doctor"], result, [(a.dir, "DIR")])
    text = re.sub(r"'root'|uid \d+|'[a-z_-]+'(?=,| and| as)", "USER", text)
    text = re.sub(r"neuron-collectd \S+ is running since \S+,",
                  "neuron-collectd VERSION is running since TIME,", text)
    text = re.sub(r"(?m)^warning agent: it has no CAP_.*\n", "", text)
    text = re.sub(r"(?m)^(ok     |warning) hard links: fs.*\n(  .*\n)*", "", text)
    text = re.sub(r"(?m)^(ok     |warning) process cores: .*\n", "", text)
    text = re.sub(r"(?m)^(ok     |warning) (hook: '.*' is ours).*\n", r"ok      \2 …\n", text)
    text = re.sub(r"(?m)^warning snapshot: there is no .*\n", "", text)
    text = re.sub(r"(?m)^ok      snapshot: .*\n", "ok      snapshot: DRIVER\n", text)
    check_golden("doctor", text)


@test
def a_volume_that_is_not_mounted_any_more_is_no_directory_to_be_made():
    a = Agent()
    os.makedirs(a.path("mnt"))
    a.config["destinations"] = [a.volume("archive", "mnt/neuron")]
    said = of(doctor(a), "warning", "destination archive")
    assert said and "the agent creates it" in said[0] and "waits for the mount" in said[0], said
    a.dump(size=65536)
    a.start()
    a.wait_delivered(1)
    os.rename(a.path("mnt", "neuron"), a.path("away"))
    result = doctor(a)
    said = of(result, "warning", "destination archive")  # the agent may create it again
    assert said and "waits for the mount" in said[0], result
    a.dump(size=65536, cluster_id="00000000000000bb", pid=5)
    a.wait_delivered(2)
    assert os.path.isdir(a.path("mnt", "neuron")), "the file system it was on is still there"
    a.stop()


@test
def an_agent_that_is_slow_is_not_said_to_be_down():
    a = Agent()
    a.write_config()
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(a.socket)
        s.listen(1)
        threading.Thread(target=lambda: s.accept()[0].close(), daemon=True).start()
        result = doctor(a)
    failed = of(result, "FAILED", "agent")
    assert result.returncode == 1 and failed and "no response" in failed[0], result
    assert "not running" not in result.stdout, result


class Page(http.server.BaseHTTPRequestHandler):
    """200 and a page to everything, as a login page or a proxy answers."""
    protocol_version = "HTTP/1.1"

    def do_GET(self):  # pylint: disable=invalid-name
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        page = b"<html><body>Welcome</body></html>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("ETag", '"0123456789abcdef0123456789abcdef"')
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass


@test
def an_endpoint_that_answers_200_and_a_page_to_everything_is_no_store():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    a = Agent()
    a.config["destinations"] = [{"name": "archive", "type": "s3", "bucket": "bucket",
                                 "endpoint": f"http://127.0.0.1:{server.server_port}",
                                 "region": "us-east-1", "prefix": "neuron/%d-%c"}]
    result = doctor(a, "--destination", "archive", environment={
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret"})
    server.shutdown()
    server.server_close()
    failed = of(result, "FAILED", "destination archive")
    assert result.returncode == 1 and failed, result
    assert "does not answer like an S3 store" in failed[0], failed


@test
def what_is_read_back_is_compared_with_what_was_written():
    with S3Server() as s:
        def other(_, reply):
            reply.body = b"x" * len(reply.body)

        def size(_, reply):
            reply.body = b"x" * 7

        def no_list(_, reply):
            reply.body = b"<html><body>Welcome</body></html>"
        for operation, edit in (("GetObject", other), ("HeadObject", size),
                                ("CreateMultipartUpload", no_list), ("ListParts", no_list),
                                ("ListMultipartUploads", no_list), ("ListObjectsV2", no_list)):
            a = with_bucket(s)
            s.clear_faults()
            s.fault(operation, times=None, edit=edit)
            result = at_bucket(a, s)
            failed = of(result, "FAILED", "destination archive")
            assert result.returncode == 1 and len(failed) == 1, (operation, result)
            assert f": {operation}" in failed[0] and " 200" in failed[0], (operation, failed)
            s.clear_faults()
            result = at_bucket(a, s)
            assert result.returncode == 0, (operation, result)
            if operation == "CreateMultipartUpload":  # one whose id the doctor was not told
                s.uploads.clear()
            assert not s.objects and not s.uploads, "the probe removed what it wrote"


@test
def without_an_agent_it_reports_so_and_the_rest_is_tried():
    a = Agent()
    result = doctor(a)
    assert result.returncode == 0, result
    assert of(result, "warning", "agent") == ["agent: neuron-collectd is not running (socket "
                                              f"'{a.socket}'); start neuron-collectd, or give its "
                                              "socket with --socket"]
    assert of(result, "warning", "source core-dumps"), "there is no such directory yet"


@test
def a_faulty_configuration_is_reported_fault_by_fault_and_exits_2():
    a = Agent()
    a.config["limits"] = {"memory": "1MiB", "memroy": "2MiB"}
    result = doctor(a)
    assert result.returncode == 2 and len(of(result, "FAILED",
                                             "configuration")) == 2 == len(findings(result)), result
    assert "did you mean" in result.stdout and not result.stderr
    answer = json.loads(doctor(a, "--json").stdout)
    assert answer["ok"] is False and len(answer["findings"]) == 2
    result = run(CLI, "doctor", "--config", "/nowhere/c.yaml")
    assert result.returncode == 2 and "/nowhere/c.yaml" in result.stdout, result


@test
def a_destination_that_is_not_configured_is_wrong_usage():
    a = Agent()
    result = doctor(a, "--destination", "archiv")
    assert result.returncode == 2 and "did you mean 'archive'?" in result.stderr, result
    assert doctor(a, "now").returncode == 2
    result = doctor(a, "--destination", "archive")
    assert (result.returncode == 0 and not of(result, "ok", "source")
            and of(result, "ok", "destination archive")), result


@test
def volumes_are_tried_but_never_made():
    a = Agent()
    a.config["destinations"] = [a.volume("there", "out"), a.volume("not-yet", "new"),
                                a.volume("lost", "no/such/mount"), a.volume("file", "plain"),
                                {**a.volume("full", "out"), "min_free": "99%"}]
    with open(a.path("plain"), "w", encoding="ascii") as f:
        f.write("x")
    before = everything_below(a.dir)
    result = doctor(a)
    assert result.returncode == 1 and everything_below(a.dir) == sorted(
        before + [a.config_file]), everything_below(a.dir)
    assert (of(result, "ok", "destination there") and of(result, "warning", "destination not-yet")
            and of(result, "FAILED", "destination lost"))
    assert of(result, "FAILED", "destination file") and of(result, "FAILED",
                                                           "destination full"), result.stdout
    assert "that it is mounted" in result.stdout and "min_free" in of(
        result, "FAILED", "destination full")[0], result.stdout


@test
def whoever_may_not_do_it_is_reported_what_and_as_whom():
    need_root()
    a = Agent()
    a.dump(size=1 << 16)
    a.dump(size=1 << 16, cluster_id="00000000000000bb", pid=7)
    os.chmod(a.path("dumps", sorted(os.listdir(a.path("dumps")))[0]), 0o700)
    program = shutil.copy(CLI, a.path("neuron-collect"))
    a.write_config()
    os.chmod(a.config_file, 0o644)
    os.chmod(a.path("state"), 0o711)
    result = doctor(a, program=program, **NOBODY)
    assert result.returncode == 1, result
    assert "cannot be written by this user" in of(result, "FAILED",
                                                  "state directory")[0], result.stdout
    warnings = of(result, "warning", "source core-dumps")
    assert any("cannot read 1 directory" in w and "CAP_DAC_READ_SEARCH" in result.stdout
               for w in warnings), "without an agent it is not known what the agent may"
    assert any("hard links" in w for w in warnings), warnings
    assert of(result, "FAILED",
              "destination archive") and "'nobody'" in of(result, "ok", "user")[0], result.stdout


@test
def a_stranger_in_the_place_of_the_links_is_found():
    need_root()
    a = Agent()
    a.dump(size=1 << 16)
    a.start()
    a.wait_delivered(1)
    shutil.rmtree(a.path(".neuron-collectd"), ignore_errors=True)
    os.mkdir(a.path(".neuron-collectd"))
    os.chown(a.path(".neuron-collectd"), 65534, 65534)
    result = doctor(a)
    assert result.returncode == 1 and "'nobody' and not to the agent" in of(
        result, "FAILED", "source core-dumps")[0], result.stdout


@test
def a_source_that_is_only_scanned_is_reported_with_its_interval():
    a = Agent()
    a.dump(size=1 << 16)
    a.config["sources"][0]["watch"] = "scan"
    result = doctor(a)
    assert "scanned every 1m, as configured" in result.stdout, result.stdout


@test
def a_bucket_is_tried_with_every_permission_and_left_empty():
    with S3Server() as s:
        a = with_bucket(s)
        result = at_bucket(a, s)
        assert result.returncode == 0 and not s.objects and not s.uploads, (result, s.story())
        told = " ".join(of(result, "ok", "destination archive"))
        for word in ("credentials: environment", "clock", "bucket", "PutObject", "HeadObject",
                     "GetObject", "CreateMultipartUpload", "UploadPart", "ListParts",
                     "ListMultipartUploads", "AbortMultipartUpload", "ListObjectsV2",
                     "DeleteObject"):
            assert word in told, (word, told)
        assert {r.key for r in s.log if r.key} == {"neuron/.neuron-collectd-probe-"
                                                   + a.config["node"]["instance_id"]}, s.story()


@test
def each_missing_permission_is_reported_by_name():
    needed = {"PutObject": "s3:PutObject", "CreateMultipartUpload": "s3:PutObject"}
    wanted = {"HeadObject": "s3:GetObject", "GetObject": "s3:GetObject",
              "ListParts": "s3:ListMultipartUploadParts",
              "ListMultipartUploads": "s3:ListBucketMultipartUploads",
              "AbortMultipartUpload": "s3:AbortMultipartUpload",
              "ListObjectsV2": "s3:ListBucket", "DeleteObject": "s3:DeleteObject"}
    with S3Server() as s:
        a = with_bucket(s)
        for operation, permission in {**needed, **wanted}.items():
            s.deny = {operation}
            result = at_bucket(a, s)
            state = "FAILED" if operation in needed else "warning"
            assert result.returncode == (1 if operation in needed else 0), (operation, result)
            told = [line for line in of(result, state, "destination archive") if operation in line]
            assert len(told) == 1 and permission in told[0], (operation, permission, result.stdout)


@test
def what_is_wrong_with_a_bucket_is_reported_with_the_remedy():
    with S3Server() as s:
        a = with_bucket(s)
        cases = [({"AWS_SECRET_ACCESS_KEY": "wrong"}, "SignatureDoesNotMatch"),
                 ({"AWS_ACCESS_KEY_ID": "AKIAWRONG"}, "AKIAWRONG|InvalidAccessKeyId")]
        for environment, said in cases:
            result = at_bucket(a, s, environment=environment)
            assert result.returncode == 1 and re.search(
                said, " ".join(of(result, "FAILED", "destination archive"))), result
        result = doctor(a, "--destination", "archive")
        assert (result.returncode == 0
                and "no AWS credentials" in of(result, "warning", "destination archive")[0]), result
        s.quota_bytes = 0
        result = at_bucket(a, s)
        assert (result.returncode == 1
                and "Quota" in " ".join(of(result, "FAILED", "destination archive"))), result
        s.quota_bytes = None
        s.clock_offset = 7200
        assert "set this machine's clock" in at_bucket(a, s).stdout
        s.clock_offset = 0
        a.config["destinations"][0]["bucket"] = "bukcet"
        result = at_bucket(a, s)
        assert (result.returncode == 1
                and "bukcet" in " ".join(of(result, "FAILED", "destination archive"))), result
        a.config["destinations"][0].update(bucket="bucket", endpoint="http://127.0.0.1:1")
        result = at_bucket(a, s)
        assert result.returncode == 1 and "connection refused" in " ".join(
            of(result, "FAILED", "destination archive")), result


@test
def what_the_running_agent_has_to_report_is_reported():
    a = Agent()
    with CannedApi({"GET /v1/status": golden_api("status")}) as api:
        a.config["api"] = {"socket": api.path}
        result = doctor(a)
        assert result.returncode == 1, result
        assert ("its last reload failed" in " ".join(of(result, "warning", "agent"))
                and "a configuration that was not checked" in result.stdout), result.stdout
        assert "is failing: cannot write" in " ".join(of(result, "FAILED", "agent")), result.stdout
        assert_harmless(result.stdout, "doctor")
        result = doctor(a, "--destination", "archive")
        assert result.returncode == 0 and not of(result,
                                                 "FAILED"), "it is another destination that fails"


def that_agrees(key="k1:" + 64 * "0", mode=0o600, **agreement):
    """An agent whose nodes agree, with a key file."""
    a = Agent()
    a.config["agreement"] = {"enabled": True, **agreement}
    if key is not None:
        with open(a.path("bus.key"), "w", encoding="ascii") as f:
            f.write(key + "\n")
        os.chmod(f.name, mode)
        a.config["agreement"]["key_file"] = f.name
    return a


@test
def without_a_key_the_store_alone_decides_and_doctor_names_the_remedy():
    result = doctor(that_agrees(key=None))
    assert result.returncode == 0, result
    warning = of(result, "warning", "agreement")[0]
    for words in ("agreement.key_file is not set", "only loopback and ipc", "store alone decides",
                  "`neuron-collect key new`"):
        assert words in warning, (words, warning)


@test
def faults_of_the_key_file_are_reported_and_the_key_is_not():
    secret = "5ec7e7" + 58 * "0"
    for a, fault in ((that_agrees(key="k1:" + secret, mode=0o644), "others may read"),
                     (that_agrees(key="# one\nk1" + secret), ", line 2: it has no id"),
                     (that_agrees(key="k1:" + secret[1:]), ", line 1: key 'k1' is not 64 hex"),
                     (that_agrees(key_file="/nonexistent/key", key=None), "No such file")):
        result = doctor(a)
        failed = of(result, "FAILED", "agreement")
        assert result.returncode == 1 and len(failed) == 1 and fault in failed[0], (fault, result)
        assert "agreement.key_file '" in failed[0] and "5ec7e7" not in result.stdout, failed


@test
def whether_other_agents_can_be_listened_for_is_tried():
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        a = that_agrees(listen=address)
        assert f"can listen on '{address}'" in " ".join(of(doctor(a), "ok", "agreement"))
        taken.listen(1)
        result = doctor(a)
        assert result.returncode == 1 and "in use, and not by the agent" in of(
            result, "FAILED", "agreement")[0], result
        status = {"agreement": {"bus": {"state": "listening", "has_key": True, "connected": 3}}}
        with CannedApi({"GET /v1/status": status}) as api:
            a.config["api"] = {"socket": api.path}
            held = " ".join(of(doctor(a), "ok", "agreement"))
            assert (f"the agent listens on '{address}'" in held
                    and "bus is listening, connected to 3" in held), held
    result = doctor(that_agrees(listen="tcp://192.0.2.1:7733"))
    assert "set agreement.listen to an address of this node" in of(
        result, "FAILED", "agreement")[0], result


@test
def a_destination_that_cannot_decide_is_reported_for_each_source_with_dumps():
    a = that_agrees()
    a.config["sources"].append(a.source("profiles", "neuron-profile", "profiles"))
    a.config["destinations"][0]["durable"] = False
    alone = of(doctor(a), "warning", "agreement")
    assert len(alone) == 1 and "destination archive is a volume of this node alone" in alone[
        0] and "core-dumps" in alone[0], alone
    for destination in ({**a.volume("archive", "out"), "durable": True},
                        {"name": "archive", "type": "s3", "bucket": "bucket",
                         "endpoint": "http://127.0.0.1:1"}):
        a.config["destinations"] = [destination]
        result = doctor(a)
        assert not of(result, "warning", "agreement"), result
        assert "destination archive decides what failures of source core-dumps" in " ".join(
            of(result, "ok", "agreement")), result


@test
def what_the_bus_of_the_running_agent_reports_is_reported():
    bus = {"state": "failing", "has_key": False, "connected": 0, "last_error": "it\x1b[2J died"}
    status = {"agreement": {"bus": bus}}
    a = that_agrees(listen="ipc:///run/bus.sock")
    with CannedApi({"GET /v1/status": status}) as api:
        a.config["api"] = {"socket": api.path}
        result = doctor(a)
        assert "has no key: it" in of(result, "FAILED", "agreement")[0], result
        assert_harmless(result.stdout, "doctor")
    bus["has_key"] = True
    with CannedApi({"GET /v1/status": status}) as api:
        a.config["api"] = {"socket": api.path}
        assert "bus is failing, connected to 0; its last error: it" in " ".join(
            of(doctor(a), "warning", "agreement"))
    with CannedApi({"GET /v1/status": {"agreement": None}}) as api:
        a.config["api"] = {"socket": api.path}
        assert "it is switched off in the running agent" in " ".join(
            of(doctor(a), "warning", "agreement"))


@test
def what_the_agent_may_and_has_counts_and_not_what_its_caller_lacks():
    need_root()
    with S3Server() as s:
        a = with_bucket(s)
        a.use_keys(s)
        a.dump(size=1 << 16)
        os.chmod(a.path("dumps", os.listdir(a.path("dumps"))[0]), 0o700)
        a.start()
        a.wait_all()
        program = shutil.copy(CLI, a.path("neuron-collect"))
        os.chmod(a.config_file, 0o644)
        os.chmod(a.socket, 0o666)
        result = doctor(a, program=program, **NOBODY)
        assert "the agent can read" in " ".join(
            of(result, "ok", "source core-dumps")), result.stdout
        assert "the agent delivered there" in " ".join(
            of(result, "ok", "destination archive")), result.stdout
        assert not of(result, "FAILED", "source") and not of(
            result, "FAILED", "destination"), result.stdout
        a.stop()


@test
def hostile_names_in_sources_are_harmless():
    a = Agent()
    unit = a.dump(size=1 << 16)
    os.rename(unit, unit + "\x1b[2J\n\u009b")
    need_root()
    os.chmod(unit + "\x1b[2J\n\u009b", 0)
    program = shutil.copy(CLI, a.path("neuron-collect"))
    a.write_config()
    result = doctor(a, program=program, text=False, **NOBODY)
    assert_harmless(result.stdout, "doctor")
    code, out = run_in_terminal("--config", a.config_file, "doctor", environment={"NO_COLOR": "1"})
    assert code in (0, 1) and b"\x1b[2J" not in out, out


if __name__ == "__main__":
    sys.exit(main(cleanup))
