"""Tests that speak TAP: write functions, mark them with @test, end with main().

A test's name is its function's name, read as a sentence. It passes when it returns, is skipped by
Skip("reason"), and fails on any exception; what it leaves in `notes` is printed when it fails.
"""
import os
import signal
import sys
import time
import traceback

_tests = []
# lines for the reader of a failure: the test's helpers append, the runner prints and clears
notes = []
figures = []   # measured numbers worth seeing also when all is well


TRIES = 4      # of a test that was late


class Skip(Exception):
    """The test cannot run here; its text says why."""


class Late(AssertionError):
    """Something took longer than it may."""


def in_time(seconds, limit, what="it"):
    """Asserts a bound on what the clock on the wall says. A machine that does other things as well
    stands still now and then: a test that was late is run again, up to TRIES times in all, and
    fails when it is late each time, as it is when the program is what waits too long."""
    if seconds > limit:
        raise Late(f"{what} took {seconds:.3f} s, {limit:g} s at most was wanted")


def test(function):
    # a file that is imported lends what it has, not its tests
    if function.__module__ == "__main__":
        _tests.append(function)
    return function


def plain_test(function):
    """One that means nothing, or less, in a build with sanitizers: with NC_PARTS=plain a file that
    has such tests runs no others."""
    function.is_plain = True
    return test(function)


def _comment(text):
    for line in str(text).rstrip("\n").split("\n"):
        print("# " + line, flush=True)


def run_one(function, again=None):
    """@param again  called between two tries of a test that was late
    @return what follows "ok" and the name: nothing, or "# SKIP …"; None when it failed"""
    for n in range(1, TRIES + 1):
        try:
            return run_once(function)
        except Late as late:
            _comment(f"{late}; try {n} of {TRIES}")
            if again and n < TRIES:
                again()
    return None


def run_once(function):
    notes.clear()
    figures.clear()
    try:
        function()
    except Skip as skip:
        return f"# SKIP {skip}"
    except Late:
        raise
    except Exception:  # pylint: disable=broad-except  # whatever it is, the next test is to run
        _comment(traceback.format_exc())
        for note in notes:
            _comment(note)
        return None
    for figure in figures:
        _comment(figure)
    return ""


def main(cleanup=None):
    """Runs all tests of the file, or those whose name contains an argument. Exit 0 when none
    failed.
    @param cleanup  called after each test, whatever happened"""
    # ignored in a shell's background, and so by all that is started here
    signal.signal(signal.SIGINT, signal.default_int_handler)
    wanted = [t for t in _tests if not sys.argv[1:] or any(a in t.__name__ for a in sys.argv[1:])]
    if os.environ.get("NC_E2E") == "off":
        print("1..0 # SKIP NC_E2E=off")
        return 0
    if os.environ.get("NC_PARTS") == "plain":
        wanted = [t for t in wanted if hasattr(t, "is_plain")] or wanted
    print(f"1..{len(wanted)}", flush=True)
    failed = 0
    for number, function in enumerate(wanted, 1):
        name = function.__name__.replace("_", " ")
        begun = time.monotonic()
        result = run_one(function, cleanup and (lambda: cleanup(failed=False)))
        if cleanup:
            try:
                cleanup(failed=result is None)
            except Exception:  # pylint: disable=broad-except
                _comment(traceback.format_exc())
                result = None
        if os.environ.get("NC_TIMES"):
            _comment(f"{time.monotonic() - begun:.2f} s")
        if result is None:
            failed += 1
            print(f"not ok {number} - {name}", flush=True)
        else:
            print(f"ok {number} - {name} {result}".rstrip(), flush=True)
    return 1 if failed else 0
