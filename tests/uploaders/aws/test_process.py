#!/usr/bin/env python3
"""credential_process: how its line is taken apart, what it may say, and what is told when it does
not."""
import os
import stat
import time

from places import Driver, Keys, cleanup, iso, main, make_home, test, write

NOW = int(time.time())


def process(command, home=None, **environment):
    home = home or make_home()
    write(home + "/.aws/config", f"[profile p]\ncredential_process = {command}\n")
    return Driver({"AWS_EC2_METADATA_DISABLED": "true", **environment}, home, profile="p", now=NOW)


def script(home, text, name="get keys"):
    path = write(os.path.join(home, name), "#!/bin/sh\n" + text)
    os.chmod(path, stat.S_IRWXU)
    return path


def reports(home, text, name="answer.json"):
    return f"cat {write(os.path.join(home, name), text)}"


@test
def keys_come_from_a_program():
    home, keys = make_home(), Keys("process")
    answer = process(reports(home, keys.process_json(NOW + 900)), home).holds(keys)
    assert answer["origin"] == "credential_process of profile 'p'" and answer[
        "expires"] == NOW + 900
    keys = Keys("forever", token=False)
    assert process(reports(home, keys.process_json()), home).holds(keys)["expires"] == 0


@test
def an_expiration_may_have_a_fraction_or_a_zone():
    home, keys = make_home(), Keys()
    for text in (iso(NOW + 900)[:-1] + ".500Z", iso(NOW + 900 + 7200)[:-1] + "+02:00",
                 iso(NOW + 900 - 3600)[:-1] + "-0100"):
        assert process(reports(home, keys.process_json(Expiration=text)),
                       home).holds(keys)["expires"] == NOW + 900, text


@test
def the_line_is_parsed_as_a_shell_would_without_being_one():
    home, keys = make_home(), Keys()
    write(home + "/answer", keys.process_json())
    program = script(home, f'for a in "$@"; do printf "<%s>" "$a" >> {home}/heard; done; echo >> '
                           f'{home}/heard; cat {home}/answer\n')
    for line, heard in ((f'"{program}" a  b\tc', "<a><b><c>"),
                        (f"'{program}' 'a b' \"c d\"", "<a b><c d>"),
                        (program.replace(" ", "\\ ") + ' "" \'\'', "<><>"),
                        (f'"{program}" $HOME `id` ; | > x', "<$HOME><`id`><;><|><>><x>"),
                        (f'"{program}" "a\\"b\\\\c\\d" \'a\\b\' a\\\'b', "<a\"b\\c\\d><a\\b><a'b>"),
                        (f'"{program}" a"b"\'c\'d # e', "<abcd><#><e>"),
                        (f'"{program}" ~/x --flag=*', "<~/x><--flag=*>")):
        if os.path.exists(home + "/heard"):
            os.unlink(home + "/heard")
        process(line, home).holds(keys)
        with open(home + "/heard", encoding="ascii") as f:
            assert f.read().strip() == heard, (line, heard)


@test
def a_line_that_does_not_end_is_reported():
    for line, fault in (('"/bin/echo', "a quotation does not end"),
                        ("/bin/echo 'a", "a quotation does not end"),
                        ("/bin/echo \\", "it ends in a backslash")):
        assert process(line).error() == f"credential_process of profile 'p' cannot be run: {fault}"


@test
def a_program_that_is_missing_is_reported_by_the_profiles_name_and_not_by_its_arguments():
    error = process("/no/such/program --password hush").error()
    assert error == "credential_process of profile 'p': program not found", error
    assert process("no-such-program-in-path").error() == error
    home = make_home()
    error = process(write(home + "/plain", "no program"), home).error()
    assert error == "credential_process of profile 'p': cannot run it: Permission denied", error


@test
def the_first_line_on_stderr_is_reported_when_it_fails():
    home = make_home()
    program = script(home, "echo 'token cache: \033[31mlocked' >&2; echo second >&2; echo "
                           "'{\"SecretAccessKey\": \"hush\"'; exit 3\n")
    d = process(f'"{program}"', home)
    assert (d.error() == "credential_process of profile 'p' exited with status 3: token cache: "
            "\\x1b[31mlocked")
    assert "hush" not in d.said()
    assert process("false").error() == "credential_process of profile 'p' exited with status 1"
    assert process(
        "sh -c 'kill -9 $$'").error() == "credential_process of profile 'p' was killed by signal 9"


@test
def what_it_prints_must_be_credentials():
    home = make_home()
    keys = Keys()
    for text, fault in (
            ("", "it did not answer with a JSON object"),
            ("hush", "it did not answer with a JSON object"),
            (keys.process_json() + keys.process_json(), "it did not answer with a JSON object"),
            (keys.process_json(Version=2), 'the "Version" of its JSON is not 1'),
            (keys.process_json(Version="1"), 'the "Version" of its JSON is not 1'),
            ('{"AccessKeyId": "A", "SecretAccessKey": "hush"}',
             'its JSON has no "Version": it must be 1'),
            ('{"Version": 1, "SecretAccessKey": "hush"}', 'its JSON has no "AccessKeyId"'),
            ('{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": ""}',
             'its JSON has no "SecretAccessKey"')):
        d = process(reports(home, text), home)
        assert d.error() == f"credential_process of profile 'p' gives no credentials: {fault}", text
        assert "hush" not in d.said() and keys.secret_key not in d.said()


@test
def expired_keys_are_not_accepted():
    home = make_home()
    error = process(reports(home, Keys().process_json(NOW - 5)), home).error()
    assert error == ("the credentials of credential_process of profile 'p' expired at "
                     f"{iso(NOW - 5)[:-1]}.000000Z: renew them there, or set this "
                     "machine's clock right"), error


@test
def a_flood_is_stopped():
    assert (process("cat /dev/zero").error() ==
            "credential_process of profile 'p': its output is too long for credentials")


@test
def the_program_has_our_environment_and_no_input():
    home, keys = make_home(), Keys()
    write(home + "/answer", keys.process_json())
    program = script(home, '[ "$CORP_CACHE" = "a b" ] || exit 7; read x && exit 8; cat '
                           f'{home}/answer\n')
    process(f'"{program}"', home, CORP_CACHE="a b").holds(keys)


@test
def giving_up_waiting_does_not_stop_the_fetch_for_others():
    home, keys = make_home(), Keys()
    d = process(reports(home, keys.process_json()), home)
    assert d("cancel")["told"] == 0
    d.holds(keys, "peek")
    d.holds(keys, "fetch 5")


if __name__ == "__main__":
    raise SystemExit(main(cleanup))
