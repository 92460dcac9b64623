#!/usr/bin/env python3
"""AssumeRole of a real server, Ceph's: that it takes the signature, and that what it says is
understood. (A `+` in a name it refuses, from the AWS CLI as well.)"""
import time

from places import Driver, cleanup, main, make_home, test
import radosgw  # beside tap.py, which places.py has made known


def role_home(arn, secret_key, more=""):
    return make_home(config=f"[profile up]\nrole_arn = {arn}\nsource_profile = base\n{more}",
                     credentials="[base]\naws_access_key_id = "
                                 f"{radosgw.ACCESS_KEY}\naws_secret_access_key = {secret_key}\n")


def driver(server, home):
    return Driver({"AWS_ENDPOINT_URL_STS": server.endpoint, "AWS_EC2_METADATA_DISABLED": "true"},
                  home, profile="up")


_roles = {}


def server_and_role():
    server = radosgw.shared(sts=True)
    if server not in _roles:
        _roles[server] = server.make_role("Uploader", ["s3:PutObject"])
    return server, _roles[server]


@test
def a_real_server_hands_out_keys_of_a_role():
    server, arn = server_and_role()
    now = time.time()
    answer = driver(server, role_home(arn, radosgw.SECRET_KEY,
                                      "external_id = a:b/c=d,e.f@g-h\nduration_seconds "
                                      "= 900\nrole_session_name = node=1@x,y.z\n"))("fetch")
    assert answer["error"] is None and answer["has"] and answer["token"], answer
    assert 890 <= answer["expires"] - now <= 910, answer
    assert answer["origin"].startswith(f"role {arn} by profile 'base' in "), answer


@test
def a_wrong_secret_is_refused_by_it_and_reported():
    server, arn = server_and_role()
    error = driver(server, role_home(arn, "wrong" + radosgw.SECRET_KEY)).error()
    assert f"the role {arn}" in error and server.endpoint[
        7:] in error and "profile 'base'" in error, error


if __name__ == "__main__":
    raise SystemExit(main(cleanup))
