#!/usr/bin/env python3
"""The reading commands and doctor against a production S3 server: what other programs have put
there is listed, fetched and verified."""
import json
import os
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
# pylint: disable=wrong-import-position
from cli_test import main, test

import radosgw
from agent import Agent, cleanup, sha256_file
from reading import BIG, EMPTY, MIB, SMALL, SPARSE, Here, Made, assert_complete, escaped
from s3tools import Bucket
from servers import stop_all

_bucket = []


def filled():
    """@return (server, bucket) with all that was delivered, put there by rclone"""
    server = radosgw.shared()
    if not _bucket:
        bucket = Bucket(server, "evidence")
        bucket.rclone("copy", Made.get().volume, bucket.remote("neuron"))
        _bucket.append(bucket)
    return server, _bucket[0]


def here_at(server):
    return Here({"AWS_ENDPOINT_URL": server.endpoint, "AWS_ACCESS_KEY_ID": server.access_key,
                 "AWS_SECRET_ACCESS_KEY": server.secret_key})


def url():
    return "s3://evidence/" + Made.get().key


@test
def bundles_are_listed_fetched_and_verified():
    server, _ = filled()
    with here_at(server) as here:
        result = here.run("ls", "s3://evidence")
        assert result.returncode == 0 and result.stdout.count(
            "  complete  ") == 4 and not result.stderr, result
        assert here.run("verify", url()).returncode == 0
        here.fetched(url())
        assert_complete(here(os.path.basename(Made.get().big)))
        result = here.run("get", url(), "-o", "-", text=False)
        assert result.returncode == 0 and len(result.stdout) == os.path.getsize(Made.get().big)
        os.rename(here(os.path.basename(Made.get().big)), here("x.tar.zst.partial"))
        os.truncate(here("x.tar.zst.partial"), 11 * MIB)
        assert here.fetched(url(), "-o", "x.tar.zst")["loaded_bytes"] == os.path.getsize(Made.get(
            ).big) - 11 * MIB
        assert_complete(here("x.tar.zst"))


@test
def members_are_fetched():
    server, _ = filled()
    with here_at(server) as here:
        for path in (BIG, SPARSE, EMPTY, SMALL):
            here.fetched(url(), "--member", escaped(path))
            assert sha256_file(here(os.path.basename(path))) == sha256_file(
                os.path.join(Made.get().source, path)), path


@test
def more_than_a_page_of_keys_of_every_spelling_is_listed():
    server, bucket = filled()
    with here_at(server) as here:
        prefix = "a b+c%25=&/\u00e4\u6f22/'()!*~"
        os.makedirs(here("many", prefix, "i-0"))
        for i in range(1100):
            with open(here("many", prefix, "i-0", f"process-core-20260527T051233-{i:012x}.tar.zst"),
                      "w", encoding="ascii") as f:
                f.write("x")
        bucket.rclone("copy", "--transfers", "16", here("many"), bucket.remote("many"))
        result = here.run("--json", "ls", "s3://evidence/many/")
        incidents = json.loads(result.stdout)
        assert result.returncode == 0 and len(incidents) == 1, result.stderr
        assert incidents[0]["incident"] == "s3://evidence/many/" + prefix, incidents[0]["incident"]
        assert [b["url"] for b in incidents[0]["bundles"]] == [
            f"s3://evidence/many/{prefix}/i-0/process-core-20260527T051233-{i:012x}.tar.zst"
            for i in range(1100)]
        assert {b["fault"] for b in incidents[0]["bundles"]} == {"not delivered (no manifest)"}


@test
def what_is_wrong_is_reported():
    server, _ = filled()
    with here_at(server) as here:
        wrong = {**here.environment, "AWS_SECRET_ACCESS_KEY": "wrong"}
        for arguments in (["ls", "s3://evidence"], ["get", url()], ["verify", url()]):
            result = here.run(*arguments, env=wrong)
            assert (result.returncode == 1 and "SignatureDoesNotMatch" in result.stderr
                    and not result.stdout), result
            result = here.run(*[a.replace("evidence", "no-such-bucket") for a in arguments])
            assert (result.returncode == 1 and "no-such-bucket" in result.stderr
                    and not result.stdout), result
        result = here.run("get", url().replace("directory-", "directoy-"))
        assert result.returncode == 1 and "`neuron-collect ls`" in result.stderr, result


@test
def doctor_tries_everything_and_leaves_nothing():
    server, bucket = filled()
    a = Agent()
    a.config["destinations"] = [{"name": "archive", "type": "s3", "bucket": "evidence",
                                 "endpoint": server.endpoint, "prefix": "doctor/%d-%c"}]
    a.write_config()
    with here_at(server) as here:
        before = bucket.rclone("lsf", "-R", bucket.remote()).stdout
        result = here.run("--config", a.config_file, "doctor", "--destination", "archive")
        assert result.returncode == 0 and "FAILED" not in result.stdout, result
        assert bucket.rclone("lsf", "-R", bucket.remote()).stdout == before
        result = here.run("--config", a.config_file, "doctor", "--destination", "archive",
                          env={**here.environment, "AWS_SECRET_ACCESS_KEY": "wrong"})
        assert (result.returncode == 1 and "SignatureDoesNotMatch" in result.stdout
                and server.secret_key not in result.stdout), result


def clean(failed=False):
    cleanup(failed)


if __name__ == "__main__":
    CODE = main(clean)
    Made.forget()
    stop_all()
    sys.exit(CODE)
