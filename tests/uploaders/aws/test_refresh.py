#!/usr/bin/env python3
"""Credentials in time: asked for once by many, anew before they expire, kept while they are good,
less and less often when nobody answers."""
import os
import time

from places import Driver, Imds, Keys, Server, cleanup, main, make_home, test, write

NOW = 1_800_000_000
OFF = {"AWS_EC2_METADATA_DISABLED": "true"}


class Endpoint(Server):
    """A container's endpoint: `keys`, `expires` (seconds since 1970) and `status` may be changed at
    any time."""

    def __init__(self, life=6 * 3600):
        self.keys, self.expires, self.status = Keys("one"), NOW + life, 200
        super().__init__(lambda r: (self.status, self.keys.service_json(self.expires)
                                    if self.status == 200 else "no"))

    def renew(self, life, at):
        self.keys, self.expires, self.status = Keys("next"), at + life, 200
        return self.keys

    def driver(self):
        return Driver({"AWS_CONTAINER_CREDENTIALS_FULL_URI": self.url}, now=NOW)


@test
def many_who_wait_share_one_question():
    e = Endpoint()
    answer = e.driver()("fetch 20")
    assert answer["told"] == 20 and answer["has"] and len(e.requests) == 1, e.asked()


@test
def who_asks_later_gets_what_is_held():
    e = Endpoint()
    d = e.driver()
    for _ in range(5):
        d.holds(e.keys)
    assert len(e.requests) == 1


@test
def they_are_asked_for_anew_at_eighty_per_cent_of_their_life():
    e = Endpoint(life=10 * 3600)
    d = e.driver()
    first = e.keys
    d.holds(first)
    at = 0
    for step in (7 * 3600 - 60, 3600 + 120):  # jitter: somewhere in the tenth before
        d(f"advance {step}")
        at += step
        fresh = e.renew(10 * 3600, NOW + at)
        answer = d("tick")
        if at < 7 * 3600:
            assert len(e.requests) == 1, "too early"
            d.holds(first, "peek")
            e.keys = first
    assert len(e.requests) == 2 and answer["expires"] == NOW + at + 36000
    d.holds(fresh, "peek")


@test
def five_minutes_before_the_end_is_the_latest():
    e = Endpoint(life=1200)
    d = e.driver()
    d.holds(e.keys)
    d("advance 901")  # of 1200, which is less than 80 %
    fresh = e.renew(1200, NOW + 901)
    d("tick")
    d.holds(fresh, "peek")


@test
def a_refresh_that_fails_leaves_the_old_ones_in_use_while_they_are_good():
    e = Endpoint(life=3600)
    d = e.driver()
    old = e.keys
    d.holds(old)
    e.status = 500
    d("advance 3300")
    d("tick")
    assert len(e.requests) == 2
    d.holds(old, "peek")
    d.holds(old)  # nobody who asks hears of it
    d("advance 200")
    d("tick")
    d.holds(old, "peek")
    d("advance 60")  # 40 s before their end
    assert not d("peek")["has"]
    error = d.error()
    assert error == f"the container endpoint {e.url} answers 500", error
    d("advance 60")
    d.holds(e.renew(3600, NOW + 3620))


@test
def failures_are_asked_again_after_one_second_then_two_up_to_sixty():
    e = Endpoint()
    e.status = 500
    d = e.driver()
    asked = []
    first = d.error()
    for second in range(1, 200):
        d("advance 1")
        before = len(e.requests)
        assert d.error() == first  # the same at once, also without asking
        if len(e.requests) > before:
            asked.append(second)
    assert asked == [1, 3, 7, 15, 31, 63, 123, 183], asked
    e.status = 200
    d("advance 61")
    d.holds(e.keys)


@test
def a_refusal_asks_the_source_again_at_once():
    e = Endpoint()
    d = e.driver()
    d.holds(e.keys)
    fresh = e.renew(3600, NOW)
    d("refuse")
    assert not d("peek")["has"]
    d.holds(fresh)
    assert len(e.requests) == 2


@test
def a_refusal_of_what_is_not_held_any_more_changes_nothing():
    e = Endpoint()
    d = e.driver()
    d.holds(e.keys)
    answer = d("refuse-other")
    assert answer["has"] and answer["again"], answer
    d.holds(e.keys)
    assert len(e.requests) == 1


@test
def one_refusal_after_the_other_asks_the_source_less_and_less_often():
    e = Endpoint()
    d = e.driver()
    d.holds(e.keys)
    asked = []
    for second in range(200):
        assert d("peek")["has"]
        if d("refuse")["again"]:
            asked.append(second)
        d.holds(e.keys)  # which may do for other requests
        d("advance 1")
    assert asked == [0, 1, 3, 7, 15, 31, 63, 123, 183] and len(e.requests) == 1 + len(asked), asked
    d("advance 301")  # they served well in the meantime
    for wait in (0, 1, 2):
        d(f"advance {wait}")
        assert d("refuse")["again"]
        d.holds(e.keys)


@test
def the_serial_reports_whether_others_came():
    home = make_home(credentials="[default]\naws_access_key_id = AKIA1\naws_secret_access_key = "
                                 "one\n")
    d = Driver(OFF, home)
    assert d("peek")["serial"] == 0
    first = d("fetch")["serial"]
    assert first > 0 and d("refuse")["again"] and d("fetch")["serial"] == first
    serials = {first}
    for content in ("aws_access_key_id = AKIA1\naws_secret_access_key = two",
                    "aws_access_key_id = AKIA2\naws_secret_access_key = two",
                    "aws_access_key_id = AKIA2\naws_secret_access_key "
                    "= two\naws_session_token = t"):
        write(home + "/.aws/credentials", f"[default]\n{content}\n")
        assert d("refuse")["again"]
        serials.add(d("fetch")["serial"])
    assert len(serials) == 4, serials


@test
def a_source_that_fails_after_a_refusal_leaves_what_is_held_in_use():
    e = Endpoint()
    d = e.driver()
    d.holds(e.keys)
    e.status = 500
    assert d("refuse")["again"]
    answer = d.holds(e.keys)
    assert answer["failure"] == f"the container endpoint {e.url} answers 500", answer
    d("advance 1")
    e.status = 200
    assert d("refuse")["again"]
    assert d.holds(e.keys)["failure"] is None


@test
def a_file_that_has_changed_is_read_at_once_however_often_it_was_read_in_vain():
    keys = [Keys(token=False) for _ in range(8)]
    home = make_home(credentials=f"[default]\n{keys[0].file()}")
    path = home + "/.aws/credentials"
    d = Driver(OFF, home)
    d.holds(keys[0])
    while d("refuse")["again"]:
        d.holds(keys[0])
    for fresh in keys[1:]:  # each in a new file, as an editor does
        write(path + ".new", f"[default]\n{fresh.file()}")
        os.replace(path + ".new", path)
        assert d("refuse")["again"]
        d.holds(fresh)
        assert not d("refuse")["again"]
    write(path, "[default]\naws_access_key_id = AKIAHALF\n")
    assert d("refuse")["again"]
    answer = d.holds(keys[-1])
    assert "no aws_secret_access_key" in answer["failure"], answer
    write(path, f"[default]\n{keys[0].file()}")
    assert d("refuse")["again"]
    d.holds(keys[0])


@test
def keys_that_were_rotated_in_the_file_are_found_after_a_refusal():
    old, new = Keys("old", token=False), Keys("new", token=False)
    home = make_home(credentials=f"[default]\n{old.file()}")
    d = Driver(OFF, home)
    d.holds(old)
    write(home + "/.aws/credentials", f"[default]\n{new.file()}")
    d.holds(old)
    d("refuse")
    d.holds(new)


@test
def keys_that_appear_later_are_found():
    keys = Keys(token=False)
    home = make_home()
    d = Driver(OFF, home)
    assert "no such file" in d.error()
    for _ in range(4):
        d("advance 1")
        d.error()
    write(home + "/.aws/credentials", f"[default]\n{keys.file()}")
    d.holds(keys)  # the files have changed: at once


@test
def keys_that_do_not_expire_are_never_asked_for_again():
    home = make_home(credentials=f"[default]\n{Keys().file()}")
    d = Driver(OFF, home)
    before = d("fetch")["access_key"]
    write(home + "/.aws/credentials", f"[default]\n{Keys().file()}")
    d("advance 100000000")
    assert d("tick")["access_key"] == before and d("fetch")["access_key"] == before


@test
def the_timer_asks_by_itself():
    e = Endpoint(life=4)  # comes with less than five minutes: anew after half of it
    d = e.driver()
    d.holds(e.keys)
    fresh = e.renew(4, NOW)
    d("advance 2")
    begun = time.monotonic()
    d.holds(fresh, "wait-new")
    assert time.monotonic() - begun < 10 and len(e.requests) == 2


@test
def credentials_of_a_short_life_are_good_for_most_of_it():
    e = Endpoint(life=40)
    d = e.driver()
    d.holds(e.keys)
    d("advance 35")
    d.holds(e.keys, "peek")
    d("advance 2")
    assert not d("peek")["has"]


@test
def an_instance_role_that_is_rotated_is_followed():
    imds = Imds(Keys("imds"), NOW + 21600)
    d = Driver({"AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url}, now=NOW)
    d.holds(imds.keys)
    imds.keys, imds.expires, imds.role = Keys("rotated"), NOW + 43200, "other-role"
    d("advance 20000")
    d("tick")
    assert d.holds(imds.keys, "peek")["origin"] == "instance role 'other-role' (IMDSv2)"


if __name__ == "__main__":
    raise SystemExit(main(cleanup))
