#!/usr/bin/env python3
"""Prints the figures of the tree: its size and its structure. `make figures` runs it on the
sources and this build.
usage: figures.py [ROOT [BUILD]] [--coverage DIR]

--coverage DIR: also counts the files that a delivery runs. DIR is a build of its own, configured
and made there with
--enable-coverage when it is not there yet (some minutes); needs gcov and python3.
"""
import os
import re
import subprocess
import sys

import check_circles
import check_layers
import source_tree as tree

GENERATED = {"docs/CONFIGURATION.md", "man/neuron-collectd.yaml.5"}
OPERATORS = ("README.md", "docs/OPERATIONS.md", "docs/S3.md", "docs/HOOK.md",
             "docs/HYPERPOD.md", "docs/PARALLELCLUSTER.md", "docs/PLAIN.md", "man/")
MAX_COLUMNS = 100


def tracked(root, *paths):
    out = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard", *paths],
                         capture_output=True, text=True, check=True).stdout
    return sorted(name for name in set(out.splitlines())
                  if os.path.isfile(os.path.join(root, name)))


def code_lines(root, names):
    return sum(sum(1 for line in tree.without_comments(tree.read(root, name)).split("\n")
                   if line.strip()) for name in names)


def too_long(root, names):
    """Lines over MAX_COLUMNS: without what stands in /* clang-format off */ and without the rows of
    Markdown tables."""
    found = []
    for name in names:
        try:
            text = tree.read(root, name)
        except UnicodeDecodeError:
            continue
        is_table = False
        for number, line in enumerate(text.split("\n"), 1):
            if "clang-format off" in line or "clang-format on" in line:
                is_table = "clang-format off" in line
            if name.endswith(".md") and line.lstrip().startswith("|"):
                continue
            if len(line) > MAX_COLUMNS and not is_table:
                found.append(f"{name}:{number}")
    return found


def words(root, names):
    return sum(len(tree.read(root, name).split()) for name in names)


def main():
    arguments = sys.argv[1:]
    coverage = None
    if "--coverage" in arguments:
        at = arguments.index("--coverage")
        coverage = arguments[at + 1]
        del arguments[at:at + 2]
    root = arguments[0] if arguments else os.environ.get("srcdir", ".")
    build = arguments[1] if len(arguments) > 1 else os.environ.get("builddir", ".")
    names = tree.c_files(root)
    tests = [name for name in tracked(root, "tests")
             if not name.startswith(("tests/fuzz/corpus", "tests/golden"))
             and re.search(r"\.(c|h|py|sh)$|/box$", name)]
    docs = [name for name in tracked(root) if re.search(r"\.md$|^man/.*\.[1-8]$", name)
            and name != "CHANGELOG.md" and name not in GENERATED]
    operators = [name for name in docs if name in OPERATORS or name.startswith("man/")]
    long_lines = [too_long(root, group) for group in (names, tests,
                                                      [d for d in docs if d.endswith(".md")])]
    include_circles = tree.circles(check_circles.include_edges(root))
    defined, used, _ = check_circles.symbols(root, build)
    symbol_circles = tree.circles(check_circles.symbol_edges(defined, used))
    rows = [
        ("lines of C and headers, without tests, comments and blank lines",
         code_lines(root, names)),
        ("C files and headers, without tests", len(names)),
        ("circles between folders: includes; symbols", f"{len(include_circles)}; "
         f"{len(symbol_circles) if defined else 'no build'}"),
        ("includes against the layers", len(check_layers.faults(root))),
        (f"lines over {MAX_COLUMNS} columns, tables excepted: code; tests; docs",
         "; ".join(str(len(g)) for g in long_lines)),
        ("words of docs, READMEs and man pages, without CHANGELOG and generated parts",
         words(root, docs)),
        ("… of these for operators", words(root, operators)),
        ("lines of tests", sum(tree.read(root, name).count("\n") for name in tests)),
    ]
    if coverage:
        import coverage_files
        rows.append(("files that run for one S3 bundle and not in an idle agent",
                     coverage_files.count(os.path.abspath(root), os.path.abspath(coverage))))
    for what, figure in rows:
        print(f"{what:78} {figure}")
    if os.environ.get("FIGURES_LIST"):
        for group in long_lines:
            for place in group:
                print("long line:", place)


main()
