#!/usr/bin/env python3
"""A tag of a struct, union or enum is defined once in the product's tree: a noun is one type.
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
    faults = []
    for tag, places in sorted(definitions(tree.root_of_arguments()).items()):
        if len(places) > 1:
            faults.append(f"{places[-1]}: {tag} is defined in {', '.join(places[:-1])} too: give "
                          "the one that is less known another name")
    tree.report([("no tag is defined twice", faults)])


main()
