#!/usr/bin/env python3
"""The sizes of docs/STYLE.md: functions, folders, READMEs.
usage: check_sizes.py [ROOT]"""
import os
import re
from collections import Counter

import source_tree as tree

MAX_FUNCTION_LINES = 80
MAX_FILES_WITHOUT_README = 3


def is_switch_of_short_cases(lines):
    """More than half of the lines are cases of at most three lines."""
    short, case = 0, None
    for line in lines:
        if re.match(r"\s*(case[ \t(]|default:)", line):
            short += case or 0 if (case or 0) <= 3 else 0
            case = 1
        elif case is not None:
            case += 1
    short += case or 0 if (case or 0) <= 3 else 0
    return 2 * short > len(lines)


def is_described_above(root, folder):
    """The README of the folder above has an entry for it, as in cli/."""
    above = os.path.join(root, os.path.dirname(folder), "README.md")
    if not os.path.exists(above):
        return False
    with open(above, encoding="utf-8") as file:
        return f"`{os.path.basename(folder)}/`" in file.read()


def main():
    root = tree.root_of_arguments()
    functions, readmes = [], []
    for name in tree.c_files(root, tree.FOLDERS + ("tests",)):
        text = tree.read(root, name)
        lines = text.split("\n")
        for first, last, head in tree.functions(text):
            size = last - first + 1
            if size > MAX_FUNCTION_LINES and not is_switch_of_short_cases(lines[first - 1:last]):
                functions.append(f"{name}:{first}: {tree.function_name(head)} has {size} lines, at "
                                 f"most {MAX_FUNCTION_LINES}: give a part of it a name of its own")
    names = tree.c_files(root)
    for folder, n in sorted(Counter(os.path.dirname(f) for f in names).items()):
        readme = os.path.join(root, folder, "README.md")
        if not os.path.exists(readme):
            if n > MAX_FILES_WITHOUT_README and not is_described_above(root, folder):
                readmes.append(f"{folder}/README.md:1: missing in a folder of {n} files: say what "
                               "it owns and how its " "files relate")
    tree.report([
        (f"a function has at most {MAX_FUNCTION_LINES} lines", functions),
        (f"a folder of more than {MAX_FILES_WITHOUT_README} files has a README.md", readmes),
    ])


main()
