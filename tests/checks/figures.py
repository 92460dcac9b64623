#!/usr/bin/env python3
"""Prints the figures of the tree: its size, its structure, its words. `make figures` runs it on the
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
from collections import Counter

import check_circles
import check_layers
import source_tree as tree

DIALECT = {"look", "looks", "looked", "take", "takes", "taken", "took", "tell", "tells", "told",
           "say", "says", "said", "heir",
           "crew", "desk", "wish", "wishes", "errand", "mend", "mended", "ill"}
NOT_DIALECT = {"TAKE_PTR", "TAKE_FD"}
GENERATED = {"docs/CONFIGURATION.md", "man/neuron-collectd.yaml.5"}
OPERATORS = ("README.md", "docs/OPERATIONS.md", "docs/S3.md", "docs/HOOK.md",
             "docs/HYPERPOD.md", "docs/PARALLELCLUSTER.md", "docs/PLAIN.md", "man/")
MAX_COLUMNS = 100


def words_of(name):
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", os.path.splitext(os.path.basename(name))[0])
    return {word.lower() for word in re.split(r"[^A-Za-z]+", spaced) if word}


def tracked(root, *paths):
    out = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard", *paths],
                         capture_output=True, text=True, check=True).stdout
    return sorted(name for name in set(out.splitlines())
                  if os.path.isfile(os.path.join(root, name)))


def code_lines(root, names):
    return sum(sum(1 for line in tree.without_comments(tree.read(root, name)).split("\n")
                   if line.strip()) for name in names)


def dialect_names(root, names):
    """Functions, types and files whose name has a word that docs/STYLE.md replaces."""
    found = set()
    for name in names:
        text = tree.without_literals(tree.read(root, name))
        kinds = [tree.function_name(head) for _, _, head in tree.functions(text)]
        # prototypes
        kinds += re.findall(r"^[A-Za-z_][\w \t*]*?(\w+)\([^;{]*\)[^;{=]*;", text, re.M)
        kinds += re.findall(r"\b(?:struct|enum|union)\s+(\w+)\s*{", text)
        kinds += re.findall(r"^}\s*(\w+);", text, re.M)
        kinds += re.findall(r"\btypedef\b[^;{]*?\(\*(\w+)\)", text)
        kinds += re.findall(r"\btypedef\b[^;{(]*?(\w+);", text)
        found |= {kind for kind in kinds if kind not in NOT_DIALECT and words_of(kind) & DIALECT}
        if words_of(name) & DIALECT:
            found.add(name)
    return found


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


def exported(root, build):
    """(exported functions, those with callers in exactly one other file)"""
    _, used, _ = check_circles.symbols(root, build)
    callers = Counter(symbol for symbols in used.values() for symbol in symbols)
    functions = check_circles.functions(root, build)
    return len(functions), sum(1 for symbol in functions if callers[symbol] == 1)


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
    per_folder = Counter(os.path.dirname(name) for name in names if name.endswith(".c"))
    folder, most = per_folder.most_common(1)[0]
    n_exported, n_single = exported(root, build)
    tests = [name for name in tracked(root, "tests")
             if not name.startswith(("tests/fuzz/corpus", "tests/golden"))
             and re.search(r"\.(c|h|py|sh)$|/box$", name)]
    docs = [name for name in tracked(root) if re.search(r"\.md$|^man/.*\.[1-8]$", name)
            and name != "CHANGELOG.md" and name not in GENERATED]
    operators = [name for name in docs if name in OPERATORS or name.startswith("man/")]
    long_lines = [too_long(root, group) for group in (names, tests,
                                                      [d for d in docs if d.endswith(".md")])]
    dialect = dialect_names(root, names)
    include_circles = tree.circles(check_circles.include_edges(root))
    defined, used, _ = check_circles.symbols(root, build)
    symbol_circles = tree.circles(check_circles.symbol_edges(defined, used))
    rows = [
        ("lines of C and headers, without tests, comments and blank lines",
         code_lines(root, names)),
        ("C files and headers, without tests", len(names)),
        ("`.c` files in the largest folder", f"{most} ({folder})"),
        ("exported functions with callers in one other file only",
         f"{100 * n_single / n_exported:.0f} % ({n_single} of {n_exported})" if n_exported
         else "no build"),
        ("circles between folders: includes; symbols", f"{len(include_circles)}; "
         f"{len(symbol_circles) if defined else 'no build'}"),
        ("includes against the layers", len(check_layers.faults(root))),
        ("functions, types and files with a word that docs/STYLE.md replaces", len(dialect)),
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
        for name in sorted(dialect):
            print("dialect:", name)
        for group in long_lines:
            for place in group:
                print("long line:", place)


main()
