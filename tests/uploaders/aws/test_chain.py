#!/usr/bin/env python3
"""Which of the sources is the one: environment, web identity, shared files, container endpoint,
instance role, in this order."""
import json
import os
import pwd
import subprocess
import time

from places import (Driver, Imds, Keys, Server, Skip, Sts, cleanup, in_time, iso, main, make_home,
                    need_addresses, sha256, test, write)

OFF = {"AWS_EC2_METADATA_DISABLED": "true"}
ARN = "arn:aws:iam::123456789012:role/Uploader"


def home_with(keys, profile="default"):
    return make_home(credentials=f"[{profile}]\n{keys.file()}")


@test
def keys_of_the_environment_come_without_any_network():
    keys = Keys("env", token=False)
    d = Driver({**keys.environment(), "AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
    assert not d("peek")["has"] and d("peek")["origin"] == "not found yet"
    answer = d.holds(keys)
    assert answer["origin"] == "environment (AWS_ACCESS_KEY_ID)" and answer["expires"] == 0
    d.holds(keys, "peek")


@test
def a_session_token_of_the_environment_belongs_to_the_keys():
    keys = Keys("env")
    Driver(keys.environment()).holds(keys)


@test
def half_a_pair_in_the_environment_is_reported_and_not_passed_over():
    home = home_with(Keys())
    assert Driver({"AWS_ACCESS_KEY_ID": "AKIA"}, home).error() == \
        "the environment has AWS_ACCESS_KEY_ID but no AWS_SECRET_ACCESS_KEY: set both or neither"
    assert Driver({"AWS_SECRET_ACCESS_KEY": "s"}, home).error() == \
        "the environment has AWS_SECRET_ACCESS_KEY but no AWS_ACCESS_KEY_ID: set both or neither"


@test
def an_empty_variable_is_the_same_as_none():
    keys = Keys()
    Driver({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_PROFILE": ""},
           home_with(keys)).holds(keys)


@test
def keys_that_cannot_be_keys_are_reported_without_being_shown():
    error = Driver({"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "top secret"}).error()
    assert (error == "the keys of environment (AWS_ACCESS_KEY_ID) have characters that no key has, "
            "such as blanks: copy them again"), error
    d = Driver({"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "a",
                "AWS_SESSION_TOKEN": "evil\r\nX-Header: 1"})
    assert "evil" not in d.error() and "evil" not in d.said()


@test
def keys_of_the_environment_may_state_when_they_expire():
    keys = Keys("env")
    now = int(time.time())
    d = Driver({**keys.environment(), "AWS_CREDENTIAL_EXPIRATION": iso(now + 3600)}, now=now)
    assert d.holds(keys)["expires"] == now + 3600
    error = Driver({**keys.environment(), "AWS_CREDENTIAL_EXPIRATION": iso(now - 60)},
                   now=now).error()
    assert error.startswith("the credentials of environment (AWS_ACCESS_KEY_ID) expired at "
                            f"{iso(now - 60)[:-1]}"), error
    assert "clock" in error
    assert "'soon' is not a" in Driver({**keys.environment(),
                                        "AWS_CREDENTIAL_EXPIRATION": "soon"}).error()


@test
def each_source_gives_way_to_the_ones_before_it():
    env, web, shared, container, instance = Keys("env"), Keys("web"), Keys("shared"), Keys(
        "container"), Keys("imds")
    expires = time.time() + 3600
    imds = Imds(instance, expires)
    endpoint = Server(lambda r: (200, container.service_json(expires)))
    sts = Sts({ARN: web})
    sts.web_token = "jwt"
    home = home_with(shared)
    token = write(os.path.join(home, "token"), "jwt")
    environment = {**env.environment(), "AWS_WEB_IDENTITY_TOKEN_FILE": token, "AWS_ROLE_ARN": ARN,
                   "AWS_ENDPOINT_URL_STS": sts.url,
                   "AWS_CONTAINER_CREDENTIALS_FULL_URI": endpoint.url + "/c",
                   "AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url}
    origins = []

    def go(keys, *without):
        for name in without:
            environment.pop(name)
        origins.append(Driver(environment, home).holds(keys)["origin"])

    go(env)
    go(web, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    go(shared, "AWS_WEB_IDENTITY_TOKEN_FILE")
    os.unlink(os.path.join(home, ".aws/credentials"))
    go(container)
    go(instance, "AWS_CONTAINER_CREDENTIALS_FULL_URI")
    assert origins == ["environment (AWS_ACCESS_KEY_ID)", f"role {ARN} by web identity",
                       f"profile 'default' in {home}/.aws/credentials", "container endpoint "
                       f"{endpoint.url}", "instance role 'node-role' (IMDSv2)"], origins


@test
def a_profile_named_in_the_configuration_goes_before_the_environment():
    keys = Keys("shared")
    environment = {**Keys("env").environment(), "AWS_WEB_IDENTITY_TOKEN_FILE": "/nowhere",
                   "AWS_ROLE_ARN": ARN}
    Driver(environment, home_with(keys, "upload"), profile="upload").holds(keys)


@test
def keys_of_the_environment_go_before_a_profile_named_there():
    keys = Keys("env")
    Driver({**keys.environment(), "AWS_PROFILE": "upload"}, home_with(Keys(), "upload")).holds(keys)


@test
def the_profile_of_the_environment_is_used():
    keys = Keys()
    answer = Driver({"AWS_PROFILE": "upload"}, home_with(keys, "upload")).holds(keys)
    assert answer["origin"].startswith("profile 'upload' in "), answer


@test
def the_files_may_be_elsewhere():
    home = make_home()
    a, b = Keys("a"), Keys("b")
    environment = {"AWS_SHARED_CREDENTIALS_FILE": write(home + "/keys", f"[a]\n{a.file()}"),
                   "AWS_CONFIG_FILE": "~/conf"}
    write(home + "/conf", f"[profile b]\n{b.file()}region = eu-central-1\n")
    Driver(environment, home, profile="a").holds(a)
    d = Driver(environment, home, profile="b")
    assert d.holds(b)["origin"] == f"profile 'b' in {home}/conf"
    assert d("region")["region"] == "eu-central-1"


@test
def home_is_read_from_the_environment_when_none_is_given():
    keys = Keys()
    home = home_with(keys)
    Driver({"HOME": home}, "").holds(keys)


@test
def a_system_service_without_HOME_searches_where_its_user_lives():
    error = Driver({}, "", profile="nobody-has-this").error()
    assert f"{pwd.getpwuid(os.geteuid()).pw_dir}/.aws/credentials" in error, error


@test
def a_region_is_found_in_environment_or_profile():
    home = make_home(config="[default]\nregion = eu-west-3\n[profile x]\nregion = eu-north-1\n")
    for environment, options, region in (
            ({}, {}, "eu-west-3"), ({"AWS_PROFILE": "x"}, {}, "eu-north-1"),
            ({}, {"profile": "x"}, "eu-north-1"),
            ({"AWS_DEFAULT_REGION": "us-east-2"}, {}, "us-east-2"),
            ({"AWS_DEFAULT_REGION": "us-east-2", "AWS_REGION": "us-west-1"}, {}, "us-west-1"),
            ({}, {"profile": "none"}, None)):
        assert Driver(environment, home,
                      **options)("region")["region"] == region, (environment, options)


@test
def the_credentials_file_goes_before_the_config_file_and_they_are_not_mixed():
    both, config = Keys("both", token=False), Keys("config")
    home = make_home(config=f"[profile x]\n{config.file()}", credentials=f"[x]\n{both.file()}")
    Driver({}, home, profile="x").holds(both)  # without the session token of the other file
    home = make_home(config=f"[profile x]\n{config.file()}",
                     credentials="[x]\nregion = eu-west-1\n")
    Driver({}, home, profile="x").holds(config)


@test
def a_missing_profile_is_reported_with_where_it_was_searched_for():
    home = make_home(credentials=f"[other]\n{Keys().file()}")
    at = f"{home}/.aws"
    assert (Driver({}, home, profile="upload").error() == "no profile 'upload': searched "
            f"for [upload] in {at}/credentials and for [profile upload] in {at}/config "
            "(no such file)")
    assert Driver({"AWS_PROFILE": "upload"},
                  home).error().startswith("no profile 'upload': ")
    write(home + "/.aws/config", "aws_access_key_id = lost\n[upload]\nregion = eu-west-1\n")
    assert Driver({}, home, profile="upload").error() == \
        f"profile 'upload' is written [upload] in {at}/config, where it must be [profile upload]"
    error = Driver({}, home, profile="else").error()
    assert error.endswith(f"in {at}/config (line 1: a setting that belongs to no [section])"), error
    assert "lost" not in error


@test
def a_file_that_cannot_be_read_is_reported():
    home = make_home(config="")
    os.mkdir(home + "/.aws/credentials")
    error = Driver({}, home, profile="x").error()
    assert f"{home}/.aws/credentials (not a regular file)" in error, error
    write(home + "/big", b"#" * (1 << 20) + b"\n[x]\n")
    error = Driver({"AWS_SHARED_CREDENTIALS_FILE": home + "/big"}, home, profile="x").error()
    assert f"{home}/big (larger than 1 MiB)" in error, error


@test
def half_a_pair_in_a_file_is_reported():
    home = make_home(credentials="[x]\naws_access_key_id = AKIA\n")
    assert (Driver({}, home, profile="x").error() == f"profile 'x' in {home}/.aws/credentials "
            "has aws_access_key_id but no aws_secret_access_key: set both or neither")


@test
def a_profile_without_keys_lets_the_instance_role_be_asked():
    keys = Keys("imds")
    imds = Imds(keys, time.time() + 3600)
    home = make_home(config="[default]\nregion = eu-west-1\n[profile x]\nregion = eu-west-1\n")
    environment = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url}
    Driver(environment, home).holds(keys)
    Driver(environment, home, profile="x").holds(keys)


@test
def nothing_anywhere_is_reported_with_all_that_was_examined_and_the_remedy():
    home = make_home(config="[default]\nregion = eu-west-1\n")
    at = f"{home}/.aws"
    assert Driver(OFF, home).error() == (
        "no AWS credentials: checked the environment (AWS_ACCESS_KEY_ID, "
        "AWS_WEB_IDENTITY_TOKEN_FILE), "
        f"profile 'default' in {at}/credentials (no such file) and {at}/config, "
        "the container endpoint (AWS_CONTAINER_CREDENTIALS_RELATIVE_URI, …_FULL_URI), "
        "and the instance metadata service is switched off by AWS_EC2_METADATA_DISABLED; "
        "give the node a role that may write to the bucket, or set one of these")
    error = Driver(OFF, make_home(config="[profile x]\n"), profile="x").error()
    assert error.startswith("no AWS credentials: checked profile 'x' in "), error


@test
def off_ec2_the_answer_is_quick():
    need_addresses()
    begun = time.monotonic()
    error = Driver({}).error()
    assert ("the metadata service at http://169.254.169.254 does not answer (" in error
            and "refused" in error), error
    in_time(time.monotonic() - begun, 4, "the answer")


@test
def single_sign_on_is_refused_with_the_way_round_it():
    home = make_home(config="[profile dev]\nsso_session = corp\nsso_account_id = 1\nsso_role_name "
                            "= r\n[sso-session corp]\nsso_start_url = u\n")
    assert Driver({}, home, profile="dev").error() == (
        f"{home}/.aws/config:2: profile 'dev', sso_session: single sign-on needs a browser: use a "
        "role of the node, or in another profile " "'credential_process = aws configure "
        "export-credentials --format process --profile' with the name of this one")
    keys = Keys()
    home = make_home(config="[profile dev]\nsso_start_url = u\n",
                     credentials=f"[dev]\n{keys.file()}")
    Driver({}, home, profile="dev").holds(keys)  # what tools for single sign-on leave there


def cli_python():
    """The AWS CLI's own reader of the files, asked once for all."""
    if not os.path.exists("/usr/bin/aws") or subprocess.run(
            ["/usr/bin/python3", "-c", "import awscli.botocore.session"], capture_output=True,
            check=False).returncode != 0:
        raise Skip("the AWS CLI is not installed")


ASK_CLI = """
import json, sys
import awscli.botocore.session as s
out = {}
for name, (config, credentials, profile) in json.load(sys.stdin).items():
    import os
    os.environ.update(AWS_CONFIG_FILE=config, AWS_SHARED_CREDENTIALS_FILE=credentials,
                      AWS_EC2_METADATA_DISABLED="true")
    try:
        c = s.Session(profile=profile).get_credentials()
        out[name] = c and [c.access_key, c.secret_key, c.token]
    except Exception as e:
        out[name] = type(e).__name__
json.dump(out, sys.stdout)
"""

PAIR = "aws_access_key_id = AKIDX\naws_secret_access_key = s/+=\n"
AS_THE_CLI = {  # name: (config, credentials, profile)
    "plain": ("", f"[x]\n{PAIR}", "x"),
    "default without the word": (f"[default]\n{PAIR}", "", "default"),
    "default with the word": (f"[profile default]\n{PAIR}", "", "default"),
    "config": (f"[profile x]\n{PAIR}", "", "x"),
    "quoted name": (f'[profile "my upload"]\n{PAIR}', "", "my upload"),
    "name with a blank in credentials": ("", f"[my upload]\n{PAIR}", "my upload"),
    "tab after the word": (f"[profile\tx]\n{PAIR}", "", "x"),
    "without the word": (f"[x]\n{PAIR}", "", "x"),
    "windows line ends": ("", f"[x]\n{PAIR}".replace("\n", "\r\n"), "x"),
    "no blanks": ("", "[x]\naws_access_key_id=AKIDX\naws_secret_access_key=s/+=", "x"),
    "colons": ("", "[x]\naws_access_key_id: AKIDX\naws_secret_access_key : s/+=\n", "x"),
    "capitals": ("", "[x]\nAWS_Access_Key_Id = AKIDX\nAWS_SECRET_ACCESS_KEY = s/+=\n", "x"),
    "indented": ("", "[x]\n  aws_access_key_id = AKIDX\n  aws_secret_access_key = s/+=\n", "x"),
    "comments": ("", f"# one\n; two\n[x]\n# three\n{PAIR}; four\n", "x"),
    "indented comments": ("", f"[x]\n{PAIR}   # aws_session_token = no\n", "x"),
    "nested block": ("[profile x]\ns3 =\n    max_concurrent_requests = 20\n    aws_access_key_id = "
                     "no\n" + PAIR, "", "x"),
    "credentials over config": ("[profile x]\naws_access_key_id = C\naws_secret_access_key = C\n",
                                f"[x]\n{PAIR}", "x"),
    "token": ("", f"[x]\n{PAIR}aws_session_token = t==\n", "x"),
    "token by its old name": ("", f"[x]\n{PAIR}aws_security_token = t==\n", "x"),
    "other sections": ("[preview]\na = b\n[plugins]\n[services y]\ns3 =\n  endpoint_url = "
                       f"u\n[profile x]\n{PAIR}", "", "x"),
    "no such profile": ("", f"[x]\n{PAIR}", "y"),
    "half a pair": ("", "[x]\naws_access_key_id = AKIDX\n", "x"),
    "equals in a value": ("", "[x]\naws_access_key_id = AKIDX\naws_secret_access_key = a=b=:c\n",
                          "x"),
    "process": ("[profile x]\ncredential_process = printf "
                "'{\"Version\":1,\"AccessKeyId\":\"AKIDX\",\"SecretAccessKey\":\"%s\"}' "
                "\"a\\\\\\\"b\"\n", "", "x"),
    "process with a hash": ("[profile x]\ncredential_process = printf "
                            "'{\"Version\":1,\"AccessKeyId\":\"AKIDX\","
                            "\"SecretAccessKey\":\"s%s%s\"}' # z\n", "", "x"),
    "process between the files": (f"[profile x]\n{PAIR}credential_process = echo "
                                  "'{\"Version\":1,\"AccessKeyId\":\"P\","
                                  "\"SecretAccessKey\":\"P\"}'\n", "", "x"),
    "process after credentials": ("[profile x]\ncredential_process = false\n", f"[x]\n{PAIR}", "x"),
    "self as source": (f"[profile x]\ncredential_source = Nowhere\nrole_arn = r\n{PAIR}", "", "x"),
    "circle": ("[profile x]\nrole_arn = r\nsource_profile = y\n[profile y]\nrole_arn = "
               "r\nsource_profile = x\n", "", "x"),
    "no source": ("[profile x]\nrole_arn = r\n", "", "x"),
}


@test
def profiles_are_read_as_the_aws_cli_reads_them():
    cli_python()
    home = make_home()
    cases = {}
    for i, (name, (config, credentials, profile)) in enumerate(AS_THE_CLI.items()):
        cases[name] = (write(f"{home}/config{i}", config),
                       write(f"{home}/credentials{i}", credentials), profile)
    answers = json.loads(subprocess.run(
        ["/usr/bin/python3", "-c", ASK_CLI], input=json.dumps(cases), capture_output=True,
        text=True, check=True, env={"PATH": os.environ["PATH"], "HOME": home}, timeout=60).stdout)
    wrong = []
    for name, (config, credentials, profile) in cases.items():
        ours = Driver({**OFF, "AWS_CONFIG_FILE": config,
                       "AWS_SHARED_CREDENTIALS_FILE": credentials}, home, profile=profile)("fetch")
        theirs = answers[name]
        same = not ours["has"] if not isinstance(theirs, list) else [ours["access_key"], ours[
            "secret_key"], ours["token"]] == [t and sha256(t) for t in theirs]
        if not same:
            wrong.append(f"{name}: the CLI has {theirs}, we {ours}")
    assert len(answers) == len(AS_THE_CLI) and sum(isinstance(a, list)
                                                   for a in answers.values()) > 20, answers
    assert not wrong, "\n".join(wrong)


if __name__ == "__main__":
    raise SystemExit(main(cleanup))
