#!/usr/bin/env python3
"""How fast requests and bytes go, and how many at once: the node's limits, and what the store asks
for."""
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from drive import OK, S3Server, check_object, drive, finish, start, upload  # noqa: E402
from tap import in_time, main, test  # noqa: E402

RETRIES, SENT_BYTES = 0, 1
LARGE = 70000      # bytes of a part that needs one of the connections for large ones


def parts_of(server):
    return [r for r in server.log if r.operation == "UploadPart"]


def most_at_once(requests):
    """An answer is noted when it is sent, and by then the next request may be here: the last bit of
    each does not count."""
    edges = sorted([(r.begun, 1) for r in requests] + [(r.begun + 0.6 * (r.ended - r.begun), -1)
                                                       for r in requests])
    most = now = 0
    for _, step in edges:
        now += step
        most = max(most, now)
    return most


@test
def requests_keep_their_rate_beyond_what_was_saved_up():
    with S3Server() as s:
        s.put("k", b"x")
        drive(s, "call", "HeadObject", "k", calls=30, request_rate=10)
        begun = sorted(r.begun for r in s.log)
        assert len(begun) == 30 and begun[-1] - begun[0] >= 1.9, begun[-1] - begun[0]
        in_time(begun[9] - begun[0], 1, "the second's worth that was saved up")


@test
def tries_again_count_as_requests():
    with S3Server() as s:
        s.put("k", b"x")
        s.fault("HeadObject", status=500, times=24)
        began = time.monotonic()
        run = drive(s, "call", "HeadObject", "k", tries=25, request_rate=10)
        assert run.n_tries == [25] and time.monotonic() - began >= 1.4


@test
def requests_that_the_http_library_repeats_on_a_new_connection_count_too():
    """Each connection is dead from its second request on, which the store sees all the same."""
    with S3Server() as s:
        used = set()
        s.put("k", b"x")
        s.fault("HeadObject", drop="head", times=None,
                when=lambda r: r.connection in used or used.add(r.connection))
        drive(s, "call", "HeadObject", "k", calls=30, request_rate=10)
        begun = sorted(r.begun for r in s.log)
        assert len(begun) > 36, s.story()
        # a second's worth was saved up, and a repeat is counted when it has gone
        assert begun[-1] - begun[0] >= 0.1 * (len(begun) - 10 - 8), (len(begun),
                                                                    begun[-1] - begun[0])


@test
def an_order_to_wait_holds_for_all_requests_of_the_client():
    with S3Server() as s:
        s.min_part_bytes = 0
        s.latency = 0.1
        s.fault("UploadPart", part=2, status=503, code="SlowDown", headers={"Retry-After": "1"})
        # more than a second's work
        run = upload(s, parts=50, part_bytes=LARGE, connections=4, in_flight=4)
        assert run.outcome == OK
        told = next(r.ended for r in s.log if r.status == 503)
        # what was under way when the answer came was begun before; a moment for the answer to be
        # heard
        early = [r for r in s.log if told + 0.2 < r.begun < told + 0.95]
        assert not early, s.story()
        assert any(r.begun > told + 0.95 for r in parts_of(s))
        check_object(s, parts=50, part_bytes=LARGE)


@test
def an_order_to_wait_is_capped():
    with S3Server() as s:      # retry.maximum is 50 ms here, and 10 s are granted all the same
        s.put("k", b"x")
        s.fault("HeadObject", status=503, headers={"Retry-After": "100000"})
        drive(s, "call", "HeadObject", "k", tries=2)
        assert 9.5 < s.log[1].begun - s.log[0].ended < 60, s.story()


@test
def a_store_that_asks_for_less_gets_fewer_at_once_and_more_again_later():
    with S3Server() as s:
        s.min_part_bytes = 0
        s.latency = 0.1
        s.fault("UploadPart", status=503, code="SlowDown", times=8)
        run = upload(s, parts=60, part_bytes=LARGE, connections=8, in_flight=8)
        assert run.outcome == OK
        check_object(s, parts=60, part_bytes=LARGE)
        requests = parts_of(s)
        assert most_at_once(requests[:8]) >= 5, s.story()
        # eight that began together are one cut, to four; then one more with each round
        good = [r for r in requests if r.status == 200]
        assert most_at_once(good[:8]) <= 5, most_at_once(good[:8])
        assert most_at_once(good[-16:]) >= 6, most_at_once(good[-16:])


@test
def a_store_that_fails_does_not_ask_for_less():
    for trouble in ({"status": 500, "code": "InternalError"},
                    {"status": 400, "code": "RequestTimeout"}):
        with S3Server() as s:
            s.min_part_bytes = 0
            s.latency = 0.1
            s.fault("UploadPart", times=8, **trouble)
            run = upload(s, parts=24, part_bytes=LARGE, connections=8, in_flight=8)
            assert run.outcome == OK
            good = [r for r in parts_of(s) if r.status == 200]
            assert most_at_once(good[:12]) >= 6, s.story()


@test
def bytes_keep_their_rate_and_arrive_unchanged():
    with S3Server() as s:
        s.min_part_bytes = 0
        began = time.monotonic()
        assert upload(s, parts=8, part_bytes=262144, connections=4, in_flight=4,
                      upload_rate=1 << 20).outcome == OK
        assert time.monotonic() - began >= 1.9
        check_object(s, parts=8, part_bytes=262144)


@test
def what_is_sent_is_counted_by_who_asked_for_it():
    with S3Server() as s:
        s.min_part_bytes = 0
        s.fault("UploadPart", part=2, status=500, code="InternalError", times=2)
        run = upload(s, parts=3, part_bytes=LARGE)
        assert run.outcome == OK
        counted, under_way = map(int, run.one("counted"))
        assert counted == run.stats[SENT_BYTES] == sum(r.body_bytes for r in s.log), s.story()
        assert under_way == 0


@test
def what_is_cut_off_is_counted_too():
    with S3Server() as s:
        s.min_part_bytes = 0
        s.fault("UploadPart", part=1, stall="body")
        process = start(s, "upload", "k", parts=2, part_bytes=4 << 20, free_after=1)
        run = finish(process, s)
        counted, under_way = map(int, run.one("counted"))
        assert counted + under_way == run.stats[SENT_BYTES] > 0


if __name__ == "__main__":
    sys.exit(main())
