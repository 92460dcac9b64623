#!/usr/bin/env python3
"""A struct with a life cycle has at most four booleans: more are states that an enum would name.
The booleans of an anonymous struct inside count too; those of a member with a type do not.
usage: check_states.py [ROOT]"""
import re

import source_tree as tree

MAX_BOOLEANS = 4

# Structs that have no life cycle: they are filled once, and then read.
FILLED_ONCE = {
    "Cli": "options of the command line",
    "Fault": "facts of a crash, for the report",
    "IntakeFacts": "facts of a unit, for agent/intake/rules.c",
    "LinkDeletion": "options of one deletion",
    "Sandbox": "options of a child",
    "ScanUnit": "facts of a unit, by one walk",
}

STRUCT = re.compile(r"\bstruct(?:\s+(\w+))?\s*\{")
BOOLEANS = re.compile(r"(?:(?:const|volatile|_Atomic)\s+)*(?:bool|_Bool|atomic_bool)\s+([^(]+)")


def end_of_block(text, start):
    """The offset of the } that ends the block whose { is at start."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return match.start()
    return len(text)


def count_booleans(body):
    found = (BOOLEANS.fullmatch(member.strip()) for member in re.split(r"[;{}]", body))
    return sum(match.group(1).count(",") + 1 for match in found if match)


def structs(text):
    """(line, name, number of booleans) of each struct that is not inside of another one"""
    text, at = tree.without_literals(text), 0
    while match := STRUCT.search(text, at):
        at = end_of_block(text, match.end() - 1)
        name = match.group(1) or re.match(r"}\s*(\w*)", text[at:]).group(1)
        yield text.count("\n", 0, match.start()) + 1, name, count_booleans(text[match.end():at])


def main():
    root = tree.root_of_arguments()
    many, stale = [], []
    for file in tree.c_files(root):
        for line, name, n in structs(tree.read(root, file)):
            if n > MAX_BOOLEANS and name not in FILLED_ONCE:
                many.append(f"{file}:{line}: {name} has {n} booleans, at most {MAX_BOOLEANS}: make "
                            "those that exclude each other an enum, and compute those that follow "
                            "from others")
            elif n <= MAX_BOOLEANS and name in FILLED_ONCE:
                stale.append(f"{file}:{line}: {name} has {n} booleans: remove it from FILLED_ONCE")
    tree.report([(f"a struct with a life cycle has at most {MAX_BOOLEANS} booleans", many),
                 ("no struct is listed without need", stale)])


main()
