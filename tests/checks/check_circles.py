#!/usr/bin/env python3
"""No circle between folders: neither of includes, nor of symbols between the object files of a
build. And none between the files of a folder: of two files one may use the other, and what both need
is in a third, or comes by a callback. usage: check_circles.py [ROOT [BUILD]]"""
import os
import subprocess
import sys
from collections import defaultdict

import source_tree as tree


def include_edges(root):
    """{folder: {folder: 'file includes path', …}, …}"""
    edges = defaultdict(dict)
    for name in tree.c_files(root):
        for number, _, path in tree.includes(tree.read(root, name)):
            ours, theirs = os.path.dirname(name), os.path.dirname(path)
            if theirs.split("/")[0] in tree.FOLDERS and ours != theirs:
                edges[ours].setdefault(theirs, f"{name}:{number} includes {path}")
    return edges


def global_symbols(root, build):
    """(object file without .o, symbol, kind of nm) of each global symbol; objects have the names of
    their sources."""
    for name in [name[:-2] for name in tree.c_files(root) if name.endswith(".c")]:
        path = os.path.join(build, name + ".o")
        if not os.path.exists(path):
            continue
        out = subprocess.run(["nm", "-P", "-g", path], check=True, text=True, capture_output=True)
        for line in out.stdout.splitlines():
            symbol, kind = line.split()[:2]
            if symbol != "main" and not symbol.startswith("__"):
                yield name, symbol, kind


def functions(root, build):
    """The functions that the object files export."""
    return {symbol for _, symbol, kind in global_symbols(root, build) if kind in "TW"}


def symbols(root, build):
    """(who defines each global symbol, who refers to which, clashes)"""
    defined, used, clashes = {}, defaultdict(set), []
    for name, symbol, kind in global_symbols(root, build):
        if kind in "TDBRVW":
            if symbol in defined:
                clashes.append(f"{name}.c: {symbol} is defined in {defined[symbol]}.c too: "
                               f"give it its module's name")
            defined[symbol] = name
        elif kind == "U":
            used[name].add(symbol)
    return defined, used, clashes


def symbol_edges(defined, used):
    edges = defaultdict(dict)
    for name, names in used.items():
        for symbol in sorted(names):
            if symbol in defined:
                ours, theirs = os.path.dirname(name), os.path.dirname(defined[symbol])
                if ours != theirs:
                    edges[ours].setdefault(theirs, f"{name}.c uses {symbol} of {defined[symbol]}.c")
    return edges


def file_edges(defined, used):
    """Between the files of each folder."""
    edges = defaultdict(dict)
    for name, names in used.items():
        for symbol in sorted(names):
            other = defined.get(symbol, name)
            if other != name and os.path.dirname(other) == os.path.dirname(name):
                edges[name].setdefault(other, f"{name}.c uses {symbol} of {other}.c")
    return edges


def faults(edges, remedy, ending=""):
    found = []
    for component in tree.circles(edges):
        found.append("circle of " + ", ".join(name + ending for name in component) + ": " + remedy)
        found += [f"  {edges[a][b]}" for a in component for b in component if b in edges.get(a, ())]
    return found


OF_FOLDERS = "connect them in a folder above by callbacks, or move what both need below both"
OF_FILES = "let one of two files use the other, and move what both need into a third, or pass a callback"


def main():
    root = tree.root_of_arguments()
    build = sys.argv[2] if len(sys.argv) > 2 else os.environ.get("builddir", ".")
    results = [("no circle of includes between folders", faults(include_edges(root), OF_FOLDERS))]
    defined, used, clashes = symbols(root, build)
    if defined:
        results.append(("no circle of symbols between folders",
                        faults(symbol_edges(defined, used), OF_FOLDERS)))
        results.append(("no circle of symbols between the files of a folder",
                        faults(file_edges(defined, used), OF_FILES, ".c")))
        results.append(("no symbol is defined twice", clashes))
    tree.report(results)


if __name__ == "__main__":
    main()
