#!/usr/bin/env python3
"""The instance metadata service (version 2 only) and the container endpoint of ECS and EKS Pod
Identity."""
import json
import os
import time

from places import (Driver, Imds, Keys, Server, cleanup, in_time, main, make_home, need_addresses,
                    sha256, test, write)

SOON = time.time() + 3600


def imds_driver(imds, more=None, **options):
    return Driver({"AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url, **(more or {})}, **options)


@test
def the_instance_role_is_asked_for_by_version_2():
    keys = Keys("imds")
    imds = Imds(keys, SOON)
    answer = imds_driver(imds).holds(keys)
    assert answer["origin"] == "instance role 'node-role' (IMDSv2)" and answer["expires"] == int(
        SOON)
    assert imds.asked() == ["PUT /latest/api/token", "GET " + Imds.ROLES,
                            "GET " + Imds.ROLES + "node-role"], imds.asked()
    assert imds.requests[0].headers["x-aws-ec2-metadata-token-ttl-seconds"] == "21600"


@test
def version_1_is_never_asked():
    for reply in ((404, "none"), (405, "no"), (500, "oops"), (200, ""), (200, "two\nlines")):
        imds = Imds(Keys(), SOON)
        imds.fail["/latest/api/token"] = reply
        error = imds_driver(imds).error()
        assert f"{imds.url} gives no IMDSv2 session token (status {reply[0]})" in error, error
        assert imds.asked() == ["PUT /latest/api/token"], imds.asked()


@test
def a_switched_off_service_is_reported():
    imds = Imds(Keys(), SOON)
    imds.fail["/latest/api/token"] = (403, "no")
    error = imds_driver(imds).error()
    assert (f"the metadata service at {imds.url} is switched off "
            "for this instance (403)" in error), error


@test
def a_token_that_ran_out_is_replaced_once():
    keys = Keys("imds")
    imds = Imds(keys, SOON)
    imds.answer = lambda r: (401, "expired") if r.path.endswith("node-role") and len(
        imds.tokens) == 1 else imds.imds(r)
    imds_driver(imds).holds(keys)
    assert imds.asked() == ["PUT /latest/api/token", "GET " + Imds.ROLES,
                            "GET " + Imds.ROLES + "node-role"] + \
        ["PUT /latest/api/token", "GET " + Imds.ROLES + "node-role"], imds.asked()
    imds = Imds(keys, SOON)
    imds.fail[Imds.ROLES + "node-role"] = (401, "never")
    error = imds_driver(imds).error()
    assert "answers 401 to /latest/meta-data/iam/security-credentials/node-role" in error and len(
        imds.requests) == 5, (error, imds.asked())


@test
def an_instance_without_a_role_is_advised_to_get_one():
    imds = Imds(Keys(), SOON)
    imds.role = None
    error = imds_driver(imds).error()
    assert error.endswith("and the instance has no role (attach an instance profile); give the "
                          "node a role that may write to the bucket, or set one of these"), error


@test
def a_role_that_cannot_be_used_is_reported_in_the_services_words():
    imds = Imds(Keys(), SOON)
    imds.fail[Imds.ROLES + "node-role"] = (200, json.dumps({"Code": "AssumeRoleUnauthorizedAccess",
                                                            "Message": "EC2 cannot assume the role "
                                                            "node-role.\n" + "x" * 999}))
    error = imds_driver(imds).error()
    assert error.startswith("instance role 'node-role' (IMDSv2) gives no credentials: it reports "
                            "AssumeRoleUnauthorizedAccess: EC2 cannot assume the role "
                            "node-role.\\x0ax"), error
    assert len(error) < 400


@test
def answers_that_are_no_credentials_are_reported_and_not_shown():
    for text, fault in (
            ("<html>", "it did not answer with a JSON object"),
            ("[]", "it did not answer with a JSON object"),
            ('{"Code":"Success"}', 'its JSON has no "AccessKeyId"'),
            ('{"AccessKeyId":"A"}', 'its JSON has no "SecretAccessKey"'),
            ('{"AccessKeyId":"A","SecretAccessKey":7}', 'its JSON has no "SecretAccessKey"'),
            ('{"AccessKeyId":"A","SecretAccessKey":"hush","Expiration":"tomorrow"}',
             'the "Expiration" of its JSON is not a time such as 2026-05-27T05:21:35Z'),
            ('{"AccessKeyId":"A","SecretAccessKey":"hush","Token":"hu\\r\\nsh"}',
             "a key or token in its JSON has characters that none can have, or is too long")):
        imds = Imds(Keys(), SOON)
        imds.fail[Imds.ROLES + "node-role"] = (200, text)
        d = imds_driver(imds)
        error = d.error()
        assert error == f"instance role 'node-role' (IMDSv2) gives no credentials: {fault}", error
        assert "hu" not in d.said()


@test
def an_endless_answer_is_given_up():
    imds = Imds(Keys(), SOON)
    imds.fail[Imds.ROLES] = (200, "r" * 100000)
    assert "does not answer" in imds_driver(imds).error()


@test
def a_name_of_a_role_cannot_lead_elsewhere():
    for role in ("../../../user-data", "a?b", "a#b", "a b", ""):
        imds = Imds(Keys(), SOON)
        imds.role = "x"
        imds.fail[Imds.ROLES] = (200, role)
        assert "the instance has no role" in imds_driver(imds).error()
        assert len(imds.requests) == 2, imds.asked()


@test
def silence_is_given_up_within_seconds_and_names_the_hop_limit():
    imds = Imds(Keys(), SOON)
    imds.fail["/latest/api/token"] = None
    begun = time.monotonic()
    error = imds_driver(imds).error()
    took = time.monotonic() - begun
    assert took > 4, took
    in_time(took, 12, "to give up")
    assert "; in a container, raise the instance's metadata hop limit to 2" in error, error


@test
def the_service_may_be_switched_off_here():
    for value in ("true", "TRUE"):
        imds = Imds(Keys(), SOON)
        assert "switched off by AWS_EC2_METADATA_DISABLED" in imds_driver(
            imds, {"AWS_EC2_METADATA_DISABLED": value}).error()
        assert not imds.requests
    keys = Keys()
    imds_driver(Imds(keys, SOON), {"AWS_EC2_METADATA_DISABLED": "false"}).holds(keys)


@test
def an_endpoint_that_is_none_is_reported():
    for endpoint in ("169.254.169.254", "ftp://x", "http://", "http:///x", "http://a@b",
                     "http://a b"):
        assert "AWS_EC2_METADATA_SERVICE_ENDPOINT is not a URL" in Driver(
            {"AWS_EC2_METADATA_SERVICE_ENDPOINT": endpoint}).error(), endpoint


@test
def the_service_is_found_at_its_own_address_and_never_through_a_proxy():
    need_addresses()
    keys = Keys("imds")
    Imds(keys, SOON, address="169.254.169.254", port=80)
    proxy = {"http_proxy": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1",
             "ALL_PROXY": "http://127.0.0.1:1"}
    Driver(proxy, proxy="http://127.0.0.1:1").holds(keys)


@test
def the_service_is_found_by_ipv6_where_that_is_asked_for():
    need_addresses()
    keys = Keys("imds")
    Imds(keys, SOON, address="fd00:ec2::254", port=80)
    Driver({"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE": "IPv6"}).holds(keys)
    assert "169.254.169.254" in Driver({"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE": "IPv4"}).error()
    assert "neither IPv4 nor IPv6" in Driver(
        {"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE": "IPv5"}).error()


@test
def keys_that_seem_expired_are_used_for_a_while():
    keys = Keys("imds")
    now = int(time.time())
    imds = Imds(keys, now - 100)  # our clock is ahead, or the service has trouble; S3 is the judge
    answer = imds_driver(imds, now=now).holds(keys)
    assert answer["expires"] == now + 600, answer


# The container's endpoint


def endpoint_for(keys, token=None):
    def answer(r):
        if r.headers.get("authorization") != token:
            return 401, "who are you?"
        return (200, keys.service_json(SOON)) if r.method == "GET" else (405, "")
    return answer


@test
def a_container_of_ecs_asks_its_own_address():
    need_addresses()
    keys = Keys("ecs")
    server = Server(endpoint_for(keys), address="169.254.170.2", port=80)
    d = Driver({"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/credentials/4d1f-hush"})
    assert d.holds(keys)["origin"] == "container endpoint http://169.254.170.2"
    assert server.asked() == ["GET /v2/credentials/4d1f-hush"]


@test
def a_pod_of_eks_asks_its_agent_with_the_token_of_a_file():
    need_addresses()
    keys, home = Keys("eks"), make_home()
    token_file = write(home + "/token", "pod-token-1")
    for address, url in (("169.254.170.23", "http://169.254.170.23/v1/credentials"),
                         ("fd00:ec2::23", "http://[fd00:ec2::23]/v1/credentials")):
        Server(endpoint_for(keys, "pod-token-1"), address=address, port=80)
        Driver({"AWS_CONTAINER_CREDENTIALS_FULL_URI": url,
                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": token_file,
                "AWS_CONTAINER_AUTHORIZATION_TOKEN": "the file goes first",
                "http_proxy": "http://127.0.0.1:1"}).holds(keys)


@test
def the_relative_uri_goes_before_the_full_one():
    error = Driver({"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "nowhere",
                    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1/"}).error()
    assert (error == "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI is not a path: "
            "it must begin with '/'"), error


@test
def a_token_is_read_anew_at_each_refresh():
    keys, home = Keys("one"), make_home()
    now = int(time.time())
    path = write(home + "/token", "first")
    server = Server(endpoint_for(keys, "first"))
    d = Driver({"AWS_CONTAINER_CREDENTIALS_FULL_URI": server.url + "/c",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": path}, now=now)
    d.holds(keys)
    write(path, "second")
    fresh = Keys("two")
    server.answer = endpoint_for(fresh, "second")
    d("refuse")
    d.holds(fresh)


@test
def a_token_of_the_environment_is_sent():
    keys = Keys("one")
    server = Server(endpoint_for(keys, "Bearer abc"))
    d = Driver({"AWS_CONTAINER_CREDENTIALS_FULL_URI": server.url + "/c?id=hush",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN": "Bearer abc"})
    assert d.holds(keys)["origin"] == f"container endpoint {server.url}"


@test
def a_token_with_a_line_break_is_refused_and_not_shown():
    server = Server(endpoint_for(Keys()))
    home = make_home()
    path = write(home + "/token", "hush\r\nX-Evil: 1")
    for environment, where in (({"AWS_CONTAINER_AUTHORIZATION_TOKEN": "hush\n"},
                                "AWS_CONTAINER_AUTHORIZATION_TOKEN"),
                               ({"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": path}, "in " + path)):
        d = Driver({"AWS_CONTAINER_CREDENTIALS_FULL_URI": server.url, **environment})
        error = d.error()
        assert (error == f"the container's token ({where}) has a line break in it, which "
                "no header can have"), error
        assert "hush" not in d.said() and not server.requests
    for content, fault in ((b"", "is empty"), (b"a\0b", "is not text")):
        write(path, content)
        assert fault in Driver({"AWS_CONTAINER_CREDENTIALS_FULL_URI": server.url,
                                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": path}).error()
    os.unlink(path)
    error = Driver({"AWS_CONTAINER_CREDENTIALS_FULL_URI": server.url,
                    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": path}).error()
    assert (error == "cannot read the container's token "
            f"from {path} (AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE): No such file "
            "or directory"), error


@test
def a_refused_token_and_other_trouble_are_reported():
    server = Server(endpoint_for(Keys(), "other"))
    d = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": server.url + "/v1/secret-id"}
    assert (Driver(d).error() == f"the container endpoint {server.url} answers 401: "
            "is the authorization token its own, and of this container?")
    server.answer = lambda r: (500, "oops")
    assert Driver(d).error() == f"the container endpoint {server.url} answers 500"
    server.close()
    error = Driver(d).error()
    assert error.startswith(f"the container endpoint {server.url} does not answer "
                            f"(127.0.0.1:{server.port}: ") and "refused" in error, error


@test
def a_redirect_is_not_followed():
    elsewhere = Server(endpoint_for(Keys()))
    server = Server(lambda r: (302, "", {"Location": elsewhere.url}))
    assert "answers 302" in Driver({"AWS_CONTAINER_CREDENTIALS_FULL_URI": server.url}).error()
    assert not elsewhere.requests


@test
def the_digests_of_the_program_are_those_of_the_keys():
    assert sha256("abc").startswith("ba7816bf")  # so that `holds` above compares what it claims to


if __name__ == "__main__":
    raise SystemExit(main(cleanup))
