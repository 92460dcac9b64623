#!/usr/bin/env python3
"""Credentials from wherever the AWS SDKs take them, refreshed and rotated, and never seen
anywhere."""
import json
import os
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import radosgw
from agent import DAEMON, Agent, cleanup, is_instrumented, need, run, wait_for
from credential_server import IMDS_TOKEN, CredentialServer
from s3tools import AWS, Endpoint, judge, new_bucket
from tap import Skip, figures, main, plain_test, test
from tcp_proxy import through

MIB = 1 << 20
_made = {}


def server():
    """With STS: it checks session tokens, so nobody can forget to send one."""
    return radosgw.shared(sts=True)


def role():
    if "role" not in _made:
        _made["role"] = server().make_role("uploader", ["s3:*"])
    return _made["role"]


def session():
    """Keys with a session token, made by the server itself. @return Endpoint"""
    if not AWS:
        raise Skip("awscli is not installed")
    bucket = new_bucket(server(), make=False)
    result = run(AWS, "--endpoint-url", server().endpoint, "--output", "json", "sts", "assume-role",
                 "--role-arn", role(), "--role-session-name", "e2e", env=bucket.environment)
    assert result.returncode == 0, result.stderr
    keys = json.loads(result.stdout)["Credentials"]
    return Endpoint(server().endpoint, keys["AccessKeyId"], keys["SecretAccessKey"],
                    token=keys["SessionToken"])


def agent_without_keys(**more):
    """@return (agent, bucket, unit): nothing but what a test adds says who it is"""
    bucket = new_bucket(server())
    a = Agent()
    a.config["destinations"] = [a.s3("s3", server(), bucket, **more)]
    a.use_keys(None)
    return a, bucket, a.dump(size=65536)


def aws_files(a, credentials="", config=""):
    os.makedirs(a.path("home", ".aws"), exist_ok=True)
    for name, text in (("credentials", credentials), ("config", config)):
        if text:
            with open(a.path("home", ".aws", name), "w", encoding="utf-8") as f:
                f.write(text)


def keys_section(keys):
    return f"aws_access_key_id = {keys.access_key}\naws_secret_access_key = {keys.secret_key}\n" + (
        f"aws_session_token = {keys.token}\n" if getattr(keys, "token", None) else "")


def delivers(a, bucket, unit):
    a.start()
    a.wait_known(1)
    a.wait_all()
    judge(a, bucket, [unit])


@test
def a_session_token_in_the_environment_is_sent():
    a, bucket, unit = agent_without_keys()
    a.use_keys(session())
    delivers(a, bucket, unit)
    a.stop()


@test
def a_profile_of_the_shared_files_is_used():
    a, bucket, unit = agent_without_keys(profile="neuron")
    aws_files(a, credentials="[default]\naws_access_key_id = "
                             "WRONG000000000000001\naws_secret_access_key = "
                             f"canary-wrong\n[neuron]\n{keys_section(server())}")
    delivers(a, bucket, unit)
    a.stop()


@test
def the_environment_names_the_profile_and_files_elsewhere():
    a, bucket, unit = agent_without_keys()
    with open(a.path("shared"), "w", encoding="ascii") as f:
        f.write(f"[other]\n{keys_section(server())}")
    a.environment |= {"AWS_SHARED_CREDENTIALS_FILE": a.path("shared"),
                      "AWS_CONFIG_FILE": a.path("no-such-file"), "AWS_PROFILE": "other"}
    delivers(a, bucket, unit)
    a.stop()


@test
def a_role_is_assumed_by_the_servers_own_sts():
    a, bucket, unit = agent_without_keys(profile="uploader")
    aws_files(a, credentials=f"[base]\n{keys_section(server())}",
              config=f"[profile uploader]\nrole_arn = {role()}\nsource_profile = "
                     "base\nrole_session_name = e2e\n")
    a.environment |= {"AWS_ENDPOINT_URL_STS": server().endpoint}
    delivers(a, bucket, unit)
    a.stop()


@test
def a_credential_process_is_run():
    a, bucket, unit = agent_without_keys()
    keys = session()
    answer = {"Version": 1, "AccessKeyId": keys.access_key, "SecretAccessKey": keys.secret_key,
              "SessionToken": keys.token,
              "Expiration": "2099-01-01T00:00:00Z"}
    program = a.path("give keys")
    with open(program, "w", encoding="ascii") as f:
        f.write(f"#!/bin/sh\n[ \"$1\" = 'two words' ] || exit 3\necho '{json.dumps(answer)}'\n")
    os.chmod(program, 0o700)
    aws_files(a, config=f"[default]\ncredential_process = \"{program}\" \"two words\"\n")
    delivers(a, bucket, unit)
    a.stop()


@test
def the_container_endpoint_is_asked_with_its_token_file():
    a, bucket, unit = agent_without_keys()
    giver = CredentialServer(session())
    giver.authorization = "canary-container-token"
    with open(a.path("token"), "w", encoding="ascii") as f:
        f.write(giver.authorization)
    a.environment |= {"AWS_CONTAINER_CREDENTIALS_FULL_URI": giver.endpoint + "/container",
                      "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": a.path("token")}
    delivers(a, bucket, unit)
    assert giver.asked == ["container"], giver.asked
    assert "canary" not in a.log
    a.stop()
    giver.close()


@test
def an_instance_role_comes_from_imds_version_2():
    a, bucket, unit = agent_without_keys()
    giver = CredentialServer(session())
    a.environment |= {"AWS_EC2_METADATA_DISABLED": "false",
                      "AWS_EC2_METADATA_SERVICE_ENDPOINT": giver.endpoint}
    delivers(a, bucket, unit)
    # the other token is for the questions whether this instance ends
    assert giver.asked[0] == "imds token" and giver.asked.count(
        "imds token") <= 2 and giver.asked.count("imds") == 1, giver.asked
    assert IMDS_TOKEN not in a.log
    a.stop()
    giver.close()


@test
def a_web_identity_is_exchanged_for_a_role():
    a, bucket, unit = agent_without_keys()
    giver = CredentialServer(session())
    giver.web_token = "canary.web.identity"
    with open(a.path("token"), "w", encoding="ascii") as f:
        f.write(giver.web_token)
    a.environment |= {"AWS_WEB_IDENTITY_TOKEN_FILE": a.path("token"), "AWS_ROLE_ARN": role(),
                      "AWS_ENDPOINT_URL_STS": giver.endpoint}
    delivers(a, bucket, unit)
    assert giver.asked == ["web identity"], giver.asked
    a.stop()
    giver.close()


@test
def a_credential_source_that_fails_pauses_the_destination_and_is_tried_again():
    a, bucket, unit = agent_without_keys()
    giver = CredentialServer(session())
    giver.fails = 500
    a.environment |= {"AWS_EC2_METADATA_DISABLED": "false",
                      "AWS_EC2_METADATA_SERVICE_ENDPOINT": giver.endpoint}
    a.start()
    error = wait_for("the destination says so",
                     lambda: a.status()["destinations"][0]["last_error"], 30)
    assert "credentials" in error.lower(), error
    assert a.counts()["delivered"] == 0
    giver.fails = None
    a.wait_all()
    judge(a, bucket, [unit])
    a.stop()
    giver.close()


@test
def keys_that_are_rotated_in_the_middle_of_an_upload_are_fetched_anew():
    server().make_user("rotating", "ROTATING000000000001", "canary-first-of-two")
    first = server().as_user("ROTATING000000000001", "canary-first-of-two")
    proxy, way = through(server())
    bucket = new_bucket(first)
    giver = CredentialServer(first)
    a = Agent()
    a.use_directories()
    a.config["destinations"] = [a.s3("s3", way, bucket, part_size="5MiB", connections=2)]
    a.use_keys(None)
    a.environment |= {"AWS_EC2_METADATA_DISABLED": "false",
                      "AWS_EC2_METADATA_SERVICE_ENDPOINT": giver.endpoint}
    unit = a.incompressible(33 * MIB)
    proxy.hold_after(12 * MIB)
    a.start(wait=False)
    wait_for("the wire stands still", proxy.is_holding, 60)
    second = server().add_key("rotating", "ROTATING000000000002", "canary-second-of-two")
    server().remove_key("rotating", first.access_key)
    giver.keys = second
    proxy.release()
    wait_for("the daemon answers", a.is_healthy)
    a.wait_known(1)
    a.wait_all()
    bucket.server = second
    bucket.environment |= {"RCLONE_CONFIG_T_ACCESS_KEY_ID": second.access_key,
                           "RCLONE_CONFIG_T_SECRET_ACCESS_KEY": second.secret_key,
                           "AWS_ACCESS_KEY_ID": second.access_key,
                           "AWS_SECRET_ACCESS_KEY": second.secret_key}
    judge(a, bucket, [unit])
    assert len({r.query["uploadId"] for r in proxy.requests
                if r.part}) == 1, "another upload was begun"
    assert giver.asked.count("imds") == 2, giver.asked
    a.stop()
    giver.close()


@test
def no_secret_is_in_the_log_the_status_the_manifest_the_database_or_argv():
    proxy, way = through(server())
    a, bucket, unit = agent_without_keys()
    keys = session()
    bad = Endpoint(way.endpoint, keys.access_key, "canary-wrong-secret", token=keys.token)
    a.config["destinations"][0]["endpoint"] = way.endpoint
    a.use_keys(bad)
    a.start()
    wait_for("the wrong secret is refused", lambda: a.status()["destinations"][0]["last_error"])
    texts = {"status": a.curl("/v1/status").stdout,
             "explain": a.cli("explain", a.bundles()[0]["id"]).stdout if a.bundles() else ""}
    a.stop()
    a.use_keys(keys)
    a.start()
    a.wait_known(1)
    a.wait_all()
    texts |= {"status, good": a.curl("/v1/status").stdout, "bundles": a.curl("/v1/bundles").stdout,
              "metrics": a.curl("/metrics").stdout,
              "show": a.cli("show", a.bundles()[0]["id"]).stdout,
              "doctor": a.cli("--config", a.config_file, "doctor").stdout}
    with open(f"/proc/{a.pid}/cmdline", encoding="utf-8") as f:
        texts["argv"] = f.read()
    texts["print-config"] = run(DAEMON, "--config", a.config_file, "--print-config").stdout
    a.stop()
    texts["log"] = a.log
    where = bucket.fetch()
    for path, _ in a.manifests(where):
        with open(path, encoding="utf-8") as f:
            texts[path] = f.read()
    for name in os.listdir(a.path("state")):
        if os.path.isfile(a.path("state", name)):
            with open(a.path("state", name), "rb") as f:
                texts[name] = f.read().decode("latin-1")
    for request in proxy.requests:
        texts[f"{request.method} {request.target}"] = request.target
    for where, text in texts.items():
        for what in (keys.secret_key, keys.token, "canary-wrong-secret"):
            assert what not in text, f"a secret is in {where}"
    judge(a, bucket, [unit])


@plain_test
def a_core_of_the_daemon_holds_no_secret_key():
    """gcore takes what a crash would write, and a debugger's owner could read. A session token goes
    out with each request and is of no use without the secret key, so it is only counted."""
    need("gcore")
    if is_instrumented():
        raise Skip("the core of a sanitized daemon has terabytes")
    keys = session()
    for place in ("file", "environment"):
        a, bucket, unit = agent_without_keys()
        if place == "file":
            aws_files(a, credentials=f"[default]\n{keys_section(keys)}")
        else:
            a.use_keys(keys)
        delivers(a, bucket, unit)
        result = run("gcore", "-o", a.path("core"), str(a.pid))
        if result.returncode:
            raise Skip(f"gcore cannot: {result.stderr.strip()[-200:]}")
        with open(a.path(f"core.{a.pid}"), "rb") as f:
            core = f.read()
        assert keys.access_key.encode() in core, "this is no core of it"
        figures.append(f"S3: core with credentials of the {place}: session token "
                       f"{core.count(keys.token.encode())} times")
        assert core.count(keys.secret_key.encode()) == 0, (
            f"the secret key from the {place} is in the core "
            f"{core.count(keys.secret_key.encode())} times")
        a.stop()


@test
def programs_that_are_run_get_no_keys_of_the_daemon():
    a, bucket, unit = agent_without_keys(profile="p")
    keys = session()
    answer = {"Version": 1, "AccessKeyId": keys.access_key, "SecretAccessKey": keys.secret_key,
              "SessionToken": keys.token}
    with open(a.path("process"), "w", encoding="ascii") as f:
        f.write(f"#!/bin/sh\nenv >{a.path('seen')}\nls -l /proc/self/fd >{a.path('fds')}\ncat "
                f"<<'E'\n{json.dumps(answer)}\nE\n")
    os.chmod(a.path("process"), 0o700)
    aws_files(a, config=f"[profile p]\ncredential_process = {a.path('process')}\n")
    a.environment |= {"AWS_SECRET_ACCESS_KEY": "canary-of-the-environment",
                      "AWS_ACCESS_KEY_ID": "X", "AWS_SESSION_TOKEN": "canary-token"}
    delivers(a, bucket, unit)
    with open(a.path("seen"), encoding="utf-8") as f:
        assert "canary" not in f.read(), "the environment's keys were handed on"
    with open(a.path("fds"), encoding="utf-8") as f:
        descriptors = f.read()
    assert ("state.db" not in descriptors and "socket" not in descriptors
            and "eventpoll" not in descriptors), descriptors
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
