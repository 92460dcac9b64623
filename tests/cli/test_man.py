#!/usr/bin/env python3
"""The man pages are well-formed, and tell of every command and option that the programs have, and
of no other."""
import os
import re
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
# pylint: disable=wrong-import-position
from cli_test import CLI, SOURCE_DIR, main, run, test

from agent import DAEMON, need

PAGES = {"neuron-collect.1": CLI, "neuron-collectd.8": DAEMON}


def page(name):
    with open(os.path.join(SOURCE_DIR, "man", name), encoding="utf-8") as f:
        return f.read()


def own_commands(text):
    return set(re.findall(r"^  ([a-z]+) ", text.split("\n  --socket PATH")[0],
                          re.M)) if "COMMAND" in text else set()


@test
def mandoc_finds_nothing_to_warn_of():
    need("mandoc")
    for name in [*PAGES, "neuron-collectd.yaml.5", "neuron-dump.8"]:
        result = run("mandoc", "-T", "lint", "-W", "warning", os.path.join(SOURCE_DIR, "man", name))
        assert not result.stdout, result.stdout


@test
def options_of_the_programs_and_of_their_pages_are_the_same():
    for name, program in PAGES.items():
        text = run(program, "--help").stdout
        if program == CLI:
            text += "".join(run(CLI, command, "--help").stdout for command in own_commands(text))
        wanted = set(re.findall(r"(?<![\w-])--([a-z-]+)", text)) | {"help", "version"}
        described = set()
        for line in page(name).splitlines():
            if line.startswith(".It ") and "Fl Fl" in line:
                described.update(re.findall(r"Fl Fl ([a-z-]+)", line))
        assert described == wanted - ({"check", "print-config"} if program == CLI
                                      else set()), (name, described ^ wanted)


@test
def commands_of_neuron_collect_and_of_its_page_are_the_same():
    wanted = own_commands(run(CLI, "--help").stdout)
    assert len(wanted) >= 13, wanted
    described = set()
    for line in page("neuron-collect.1").split(".Sh COMMANDS")[1].split(".Sh ")[0].splitlines():
        if line.startswith(".It "):
            described.update(re.findall(r"\bCm ([a-z]+)", line))
    assert described - {"check",
                        "show"} == wanted - {"show"} and "show" in described, described ^ wanted


@test
def exit_codes_of_the_help_and_of_the_pages_are_the_same():
    for name, codes in (("neuron-collect.1", "0123"), ("neuron-collectd.8", "012")):
        section = page(name).split(".Sh EXIT STATUS")[1].split(".Sh ")[0]
        assert re.findall(r"^\.It (\d)$", section, re.M) == list(codes), section
    told = re.findall(r"\b(\d) ", run(CLI, "--help").stdout.split("Exit: ")[1].splitlines()[0])
    assert told == list("0123"), told


if __name__ == "__main__":
    sys.exit(main())
