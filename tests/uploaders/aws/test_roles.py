#!/usr/bin/env python3
"""Roles: AssumeRole with the signature checked, source_profile, web identity, and where STS is."""
import os
import shutil
import ssl
import subprocess
import time

from places import (Driver, Imds, Keys, Server, Skip, Sts, cleanup, main, make_home, sts_error,
                    test, write)

ARN, ARN2 = ("arn:aws:iam::123456789012:role/Uploader",
             "arn:aws:iam::210987654321:role/path/Second+Role")


def sts_env(sts, **more):
    return {"AWS_ENDPOINT_URL_STS": sts.url, "AWS_EC2_METADATA_DISABLED": "true", **more}


def role(arn=ARN, profile="up", source="base", more=""):
    return f"[profile {profile}]\nrole_arn = {arn}\nsource_profile = {source}\n{more}"


@test
def a_role_is_assumed_with_the_keys_of_its_source_profile():
    base, keys = Keys("base", token=False), Keys("role")
    sts = Sts({ARN: keys}, [base])
    home = make_home(config=role(), credentials=f"[base]\n{base.file()}")
    answer = Driver(sts_env(sts), home, profile="up").holds(keys)
    assert answer["origin"] == f"role {ARN} by profile 'base' in {home}/.aws/credentials", answer
    assert answer["expires"] == int(sts.expires)
    fields = sts.requests[0].fields
    assert fields == {"Action": "AssumeRole", "Version": "2011-06-15", "RoleArn": ARN,
                      "RoleSessionName": "neuron-collectd"}, fields
    assert sts.requests[0].path == "/" and not [h for h in sts.requests[0].headers if "token" in h]


@test
def what_the_profile_sets_for_the_role_is_sent():
    base, keys = Keys("base"), Keys("role")
    sts = Sts({ARN: keys}, [base])
    home = make_home(config=role(more="external_id = a b&c=d+é\nrole_session_name = "
                                      "node@host\nduration_seconds = 43200\n"),
                     credentials=f"[base]\n{base.file()}")
    Driver(sts_env(sts), home, profile="up").holds(keys)
    fields = sts.requests[0].fields
    assert (fields["ExternalId"], fields["RoleSessionName"],
            fields["DurationSeconds"]) == ("a b&c=d+é", "node@host", "43200"), fields


@test
def a_duration_out_of_range_is_reported():
    for value in ("899", "43201", "1h", "-1"):
        home = make_home(config=role(more=f"duration_seconds = {value}\n"),
                         credentials=f"[base]\n{Keys().file()}")
        assert (Driver({}, home, profile="up").error() == "profile 'up': duration_seconds "
                f"'{value}' is not between 900 and 43200")


@test
def a_chain_of_roles_is_refused_with_file_and_line():
    why = ("the source assumes a role itself, and chains of roles are not supported: name a "
           "profile with keys or a credential_process")
    for config in (role() + role(ARN2, "base", "third"), role() + role(ARN2, "base", "up"),
                   role(source="up"),
                   role() + f"[profile base]\nrole_arn = {ARN}\nweb_identity_token_file = /x\n"):
        home = make_home(config=config)
        error = Driver({}, home, profile="up").error()
        assert error == f"{home}/.aws/config:3: profile 'up', source_profile: {why}", error


@test
def a_profile_may_be_its_own_source():
    base, keys = Keys("base", token=False), Keys("role")
    sts = Sts({ARN: keys}, [base])
    Driver(sts_env(sts), make_home(config=role(source="up", more=base.file())),
           profile="up").holds(keys)


@test
def a_source_with_keys_gives_these_and_not_its_role():
    base, keys = Keys("base", token=False), Keys("role")
    sts = Sts({ARN: keys}, [base])
    Driver(sts_env(sts), make_home(config=role() + role(ARN2, "base", "nowhere", base.file())),
           profile="up").holds(keys)


@test
def roles_that_nobody_can_assume_here_are_reported():
    for config, error in (
            (role(more="mfa_serial = arn:aws:iam::1:mfa/me\n"),
             "CONFIG:4: profile 'up', mfa_serial: an MFA code cannot be entered here: use a role "
             "without, or a credential_process"),
            (role(more="credential_source = Environment\n"),
             "profile 'up' has role_arn and both source_profile and credential_source: set one of "
             "them, it names whose keys assume the role"),
            (f"[profile up]\nrole_arn = {ARN}\n",
             "profile 'up' has role_arn and neither source_profile nor credential_source: set one "
             "of them, it names whose keys assume the role"),
            (role() + "[profile base]\nregion = x\n", "profile 'base', the source_profile "
             "of 'up', has neither keys nor a credential_process"),
            (f"[profile up]\nrole_arn = {ARN}\ncredential_source = Ec2\n", "CONFIG:3: profile "
             "'up', credential_source: must be Environment, Ec2InstanceMetadata or EcsContainer"),
            (f"[profile up]\nrole_arn = {ARN}\ncredential_source = Environment\n",
             "profile 'up' requires the keys of the environment (credential_source), which has no "
             "AWS_ACCESS_KEY_ID"),
            (f"[profile up]\nrole_arn = {ARN}\ncredential_source = EcsContainer\n",
             "profile 'up' requires the keys of the container (credential_source), but neither "
             "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI nor "
             "AWS_CONTAINER_CREDENTIALS_FULL_URI is set"),
            ("[profile up]\nweb_identity_token_file = /x\n",
             "profile 'up' has web_identity_token_file but no role_arn: set both")):
        home = make_home(config=config)
        got = Driver({}, home, profile="up").error()
        assert got == error.replace("CONFIG", f"{home}/.aws/config"), got
    home = make_home(config=role())
    assert Driver({}, home, profile="up").error() == (
        "no profile 'base', the source_profile of 'up': searched for [base] in "
        f"{home}/.aws/credentials (no such file) and for [profile base] in {home}/.aws/config")


@test
def a_role_is_assumed_with_keys_of_environment_instance_or_container():
    env, instance, container, keys = Keys("env"), Keys("imds"), Keys("ecs"), Keys("role")
    soon = time.time() + 3600
    sts = Sts({ARN: keys}, [env, instance, container])
    imds = Imds(instance, soon)
    endpoint = Server(lambda r: (200, container.service_json(soon)))
    environment = {"AWS_ENDPOINT_URL_STS": sts.url, "AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url,
                   "AWS_CONTAINER_CREDENTIALS_FULL_URI": endpoint.url, **env.environment()}
    for source, by in (("Environment", "environment (AWS_ACCESS_KEY_ID)"),
                       ("Ec2InstanceMetadata", "instance role 'node-role' (IMDSv2)"),
                       ("EcsContainer", f"container endpoint {endpoint.url}")):
        home = make_home(config=f"[profile up]\nrole_arn = {ARN}\ncredential_source = {source}\n")
        answer = Driver(environment, home, profile="up").holds(keys)
        assert answer["origin"] == f"role {ARN} by {by}", answer
    imds.role = None
    error = Driver(environment, make_home(config="[profile up]\nrole_arn = "
                                          f"{ARN}\ncredential_source = Ec2InstanceMetadata\n"),
                   profile="up").error()
    assert (error == "no credentials of the instance: the instance has no role (attach "
            "an instance profile)"), error


@test
def a_role_is_assumed_with_keys_of_a_process():
    base, keys = Keys("base"), Keys("role")
    sts = Sts({ARN: keys}, [base])
    home = make_home()
    write(home + "/keys.json", base.process_json())
    write(home + "/.aws/config",
          role() + f"[profile base]\ncredential_process = cat {home}/keys.json\n")
    Driver(sts_env(sts), home, profile="up").holds(keys)


@test
def a_refusal_is_reported_with_the_reason_and_the_remedy():
    base = Keys("base", token=False)
    home = make_home(config=role(), credentials=f"[base]\n{base.file()}")
    by = f"profile 'base' in {home}/.aws/credentials"
    sts = Sts({}, [base])
    host = sts.url[7:]
    d = Driver(sts_env(sts), home, profile="up")
    assert d.error() == (f"STS at {host} refuses the role {ARN} to {by}: AccessDenied: User is not "
                         f"authorized to perform: sts:AssumeRole on resource: {ARN}; let the "
                         "role's trust policy name this identity, and allow sts:AssumeRole to it")
    assert base.secret_key not in d.said()
    wrong = Keys("base", token=False)
    wrong.access_key = base.access_key
    sts.callers = [wrong]
    error = Driver(sts_env(sts), home, profile="up").error()
    assert error == (f"STS at {host} refuses the role {ARN} to {by}: SignatureDoesNotMatch; the "
                     "secret key does not belong to the access key, or " "is damaged"), error
    sts.fault = sts_error(403, "InvalidClientTokenId",
                          "The security token included in the request is invalid.")
    assert "renew them" in Driver(sts_env(sts), home, profile="up").error()


@test
def what_is_no_sts_is_reported():
    base = Keys("base", token=False)
    home = make_home(config=role(), credentials=f"[base]\n{base.file()}")
    sts = Server(lambda r: (404, "<html>nothing here</html>"))
    host = sts.url[7:]
    by = f"profile 'base' in {home}/.aws/credentials"
    assert Driver(sts_env(sts), home, profile="up").error() == \
        f"STS at {host} answers 404 to a request for the role {ARN} by {by}; is it an STS endpoint?"
    for text in ("", "<html/>", "<AssumeRoleResponse></AssumeRoleResponse>", "x" * 100):
        sts.answer = lambda r, text=text: (200, text)
        assert (Driver(sts_env(sts), home, profile="up").error() == f"the answer of STS at {host} "
                "has no credentials in it; is it an STS endpoint?")
    sts.close()
    error = Driver(sts_env(sts), home, profile="up").error()
    assert error.startswith(f"STS does not answer ({host}: ") and "refused" in error, error


@test
def a_wrong_clock_is_learned_from_the_answer_and_the_role_assumed_all_the_same():
    base, keys = Keys("base", token=False), Keys("role")
    now = int(time.time())
    sts = Sts({ARN: keys}, [base])
    sts.now = now
    sts.expires = now + 3600
    for offset in (-7200, 5400):
        home = make_home(config=role(), credentials=f"[base]\n{base.file()}")
        before = len(sts.requests)
        answer = Driver(sts_env(sts), home, profile="up", now=now + offset).holds(keys)
        assert len(sts.requests) - before == 2
        # by our clock, as all that looks at it
        assert abs(answer["expires"] - (now + offset + 3600)) <= 2, answer


@test
def a_web_identity_is_sent_in_the_body_and_not_signed():
    keys = Keys("web")
    sts = Sts({ARN: keys})
    sts.web_token = "eyJ.a-b_c.d/+= &x"
    home = make_home()
    token = write(home + "/token", sts.web_token + "\n")
    environment = sts_env(sts, AWS_WEB_IDENTITY_TOKEN_FILE=token, AWS_ROLE_ARN=ARN,
                          AWS_ROLE_SESSION_NAME="pod-7")
    answer = Driver(environment, home).holds(keys)
    assert answer["origin"] == f"role {ARN} by web identity", answer
    r = sts.requests[0]
    assert r.path == "/" and "authorization" not in r.headers and r.fields[
        "RoleSessionName"] == "pod-7" and "DurationSeconds" not in r.fields


@test
def a_web_identity_of_a_profile_is_used():
    sts = Sts({ARN: Keys("web")})
    sts.web_token = "jwt"
    home = make_home()
    token = write(home + "/token", "jwt")
    write(home + "/.aws/config", f"[profile up]\nrole_arn = {ARN}\nweb_identity_token_file = "
                                 f"{token}\nduration_seconds = 900\n")
    answer = Driver(sts_env(sts), home, profile="up").holds(sts.roles[ARN])
    assert answer["origin"] == f"role {ARN} by web identity (profile 'up')", answer
    assert sts.requests[0].fields["DurationSeconds"] == "900"


@test
def the_token_of_a_web_identity_is_read_anew_each_time():
    sts = Sts({ARN: Keys("first")})
    sts.web_token = "one"
    home = make_home()
    token = write(home + "/token", "one")
    d = Driver(sts_env(sts, AWS_WEB_IDENTITY_TOKEN_FILE=token, AWS_ROLE_ARN=ARN), home)
    d.holds(sts.roles[ARN])
    write(home + "/new", "two")
    os.rename(home + "/new", token)  # as Kubernetes does it, by a symlink's change
    sts.web_token, sts.roles[ARN] = "two", Keys("second")
    d("refuse")
    d.holds(sts.roles[ARN])


@test
def trouble_with_a_web_identity_is_reported():
    home = make_home()
    sts = Sts({ARN: Keys()})
    sts.web_token = "right"
    at = f"{home}/token"
    environment = sts_env(sts, AWS_WEB_IDENTITY_TOKEN_FILE=at, AWS_ROLE_ARN=ARN)
    assert (Driver(environment, home).error() == f"cannot read the web identity's token from {at}: "
            "No such file or directory")
    write(at, "\n")
    assert Driver(environment, home).error() == f"the web identity's token file {at} is empty"
    write(at, "wrong-hush")
    d = Driver(environment, home)
    assert d.error() == (f"STS at {sts.url[7:]} refuses the role {ARN} to the token in {at}: "
                         "InvalidIdentityToken: No OpenIDConnect provider found in your "
                         "account; let the account have an IAM OIDC provider for the cluster, and "
                         "the token be meant for sts.amazonaws.com")
    assert "hush" not in d.said()
    error = Driver(sts_env(sts, AWS_WEB_IDENTITY_TOKEN_FILE=at), home).error()
    assert error.startswith("the environment has AWS_WEB_IDENTITY_TOKEN_FILE but no AWS_ROLE_ARN: "
                            "set both or neither"), error


@test
def sts_is_where_environment_and_profile_set_it():
    base, keys = Keys("base", token=False), Keys("role")
    here, elsewhere = Sts({ARN: keys}, [base],
                          region="eu-west-3"), Sts({ARN: keys}, [base], region="eu-west-3")
    for environment, more in (({"AWS_ENDPOINT_URL_STS": here.url,
                                "AWS_ENDPOINT_URL": elsewhere.url}, ""),
                              ({"AWS_ENDPOINT_URL": here.url}, "services = mine\n"),
                              ({}, f"endpoint_url = {here.url}\n")):
        home = make_home(config=role(more="region = eu-west-3\n" + more),
                         credentials=f"[base]\n{base.file()}")
        Driver({"AWS_EC2_METADATA_DISABLED": "true", **environment}, home, profile="up").holds(keys)
    assert len(here.requests) == 3 and not elsewhere.requests
    home = make_home(config=role(more="services = mine\n"), credentials=f"[base]\n{base.file()}")
    assert Driver({}, home, profile="up").error() == (
        f"{home}/.aws/config:4: profile 'up', services: endpoints of a [services] section are not "
        "supported: set AWS_ENDPOINT_URL_STS, " "or endpoint_url in the profile")
    home = make_home(config=role(), credentials=f"[base]\n{base.file()}")
    assert (Driver({"AWS_ENDPOINT_URL_STS": "sts.local"}, home, profile="up").error()
            == "invalid STS endpoint 'sts.local': check AWS_ENDPOINT_URL_STS, AWS_ENDPOINT_URL "
            "and the profile's endpoint_url")


@test
def the_region_to_sign_for_is_the_environments_then_the_profiles_then_the_destinations():
    base, keys = Keys("base", token=False), Keys("role")
    for environment, more, options, region in (({"AWS_REGION": "eu-west-1"}, "region = eu-west-2\n",
                                                {"region": "eu-west-3"}, "eu-west-1"),
                                               ({}, "region = eu-west-2\n",
                                                {"region": "eu-west-3"}, "eu-west-2"),
                                               ({}, "", {"region": "eu-west-3"}, "eu-west-3"),
                                               ({}, "", {}, "us-east-1")):
        sts = Sts({ARN: keys}, [base], region=region)
        home = make_home(config=role(more=more), credentials=f"[base]\n{base.file()}")
        Driver(sts_env(sts, **environment), home, profile="up", **options).holds(keys)


@test
def the_hosts_of_sts_are_those_of_the_region():
    base = Keys("base", token=False)
    home = make_home(config=role(), credentials=f"[base]\n{base.file()}")
    for environment, host in (({"AWS_REGION": "eu-west-1"}, "sts.eu-west-1.amazonaws.com"),
                              ({"AWS_REGION": "cn-north-1"}, "sts.cn-north-1.amazonaws.com.cn"),
                              ({"AWS_REGION": "us-west-2", "AWS_USE_FIPS_ENDPOINT": "true"},
                               "sts-fips.us-west-2.amazonaws.com")):
        proxy = ConnectProxy()
        Driver({"AWS_EC2_METADATA_DISABLED": "true", **environment}, home, profile="up",
               proxy=proxy.url).error()
        assert proxy.wanted == [f"{host}:443"], proxy.wanted
    error = Driver({"AWS_REGION": "x.evil.example/"}, home, profile="up").error()
    assert error == "invalid region 'x.evil.example/': check AWS_REGION", error


class ConnectProxy(Server):
    """Notes whom it is to connect to, and refuses."""

    def __init__(self):
        self.wanted = []
        super().__init__(lambda r: (403, "no"))
        wanted = self.wanted

        def do_CONNECT(handler):
            wanted.append(handler.path)
            handler.send_error(403)

        self.server.RequestHandlerClass.do_CONNECT = do_CONNECT


@test
def https_is_checked_against_the_given_authority():
    if not shutil.which("openssl"):
        raise Skip("needs openssl")
    base, keys = Keys("base", token=False), Keys("role")
    home = make_home(config=role(), credentials=f"[base]\n{base.file()}")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", home + "/key.pem", "-out",
                    home + "/ca.pem", "-days", "2", "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    sts = Sts({ARN: keys}, [base])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(home + "/ca.pem", home + "/key.pem")
    sts.server.socket = context.wrap_socket(sts.server.socket, server_side=True,
                                            do_handshake_on_connect=False)
    url = sts.url.replace("http://", "https://")
    Driver({"AWS_ENDPOINT_URL_STS": url}, home, profile="up", ca_file=home + "/ca.pem").holds(keys)
    error = Driver({"AWS_ENDPOINT_URL_STS": url}, home, profile="up").error()
    assert error.startswith("STS does not answer (127.0.0.1:") and "certificate" in error, error


if __name__ == "__main__":
    raise SystemExit(main(cleanup))
