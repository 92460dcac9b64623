#!/usr/bin/env python3
"""A tag of a struct, union or enum is defined once in the product's tree: a noun is one type.
tests/checks/known_tags.txt has those that are still defined more often; nothing is added to it.
usage: check_tags.py [ROOT]"""
import re
from collections import defaultdict

import source_tree as tree

TAG = re.compile(r"\b(?:struct|union|enum)\s+([A-Za-z_]\w*)\s*\{")


def definitions(root):
    """{tag: [file:line, …]}"""
    found = defaultdict(list)
    for name in tree.c_files(root):
        for number, line in enumerate(tree.without_literals(tree.read(root, name)).split("\n"), 1):
            for tag in TAG.findall(line):
                found[tag].append(f"{name}:{number}")
    return found


def main():
    root = tree.root_of_arguments()
    found, known = definitions(root), tree.known(root, "known_tags.txt")
    faults, solved = [], []
    for tag, places in sorted(found.items()):
        if len(places) > 1 and tag not in known:
            faults.append(f"{places[-1]}: {tag} is defined in {', '.join(places[:-1])} too: give "
                          "the one that is less known another name")
    for tag in sorted(known):
        if len(found.get(tag, ())) < 2:
            solved.append(f"{tag} is defined once: delete its line in tests/checks/known_tags.txt")
    for note in solved:
        print("# " + note)
    tree.report([("no tag is defined twice", faults)])


main()
