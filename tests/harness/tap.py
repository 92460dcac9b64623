"""Tests that speak TAP: write functions, mark them with @test, end with main().

A test's name is its function's name, read as a sentence. It passes when it returns, is skipped by Skip("reason"), and fails on
any exception; what it leaves in `notes` is printed when it fails.
"""
import os
import sys
import time
import traceback

_tests = []
notes = []     # lines for whoever reads a failure: the test's helpers append, the runner prints and clears
figures = []   # measured numbers worth seeing also when all is well


class Skip(Exception):
    """The test cannot run here; its text says why."""


def test(function):
    _tests.append(function)
    return function


def _comment(text):
    for line in str(text).rstrip("\n").split("\n"):
        print("# " + line, flush=True)


def run_one(function):
    """@return "ok", "not ok" or "ok … # SKIP …" without number and name"""
    notes.clear()
    figures.clear()
    try:
        function()
    except Skip as skip:
        return f"# SKIP {skip}"
    except Exception:  # pylint: disable=broad-except  # whatever it is, the next test is to run
        _comment(traceback.format_exc())
        for note in notes:
            _comment(note)
        return None
    for figure in figures:
        _comment(figure)
    return ""


def main(cleanup=None):
    """Runs all tests of the file, or those whose name contains an argument. Exit 0 when none failed.
    @param cleanup  called after each test, whatever happened"""
    wanted = [t for t in _tests if not sys.argv[1:] or any(a in t.__name__ for a in sys.argv[1:])]
    if os.environ.get("NC_E2E") == "off":
        print("1..0 # SKIP NC_E2E=off")
        return 0
    print(f"1..{len(wanted)}", flush=True)
    failed = 0
    for number, function in enumerate(wanted, 1):
        name = function.__name__.replace("_", " ")
        begun = time.monotonic()
        result = run_one(function)
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
