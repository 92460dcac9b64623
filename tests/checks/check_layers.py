#!/usr/bin/env python3
"""Includes go down the layers of docs/ARCHITECTURE.md, by paths from the top of the tree.
usage: check_layers.py [ROOT]"""
import source_tree as tree


def fault_of(name, is_quoted, path):
    ours = tree.owner(name, tree.LAYERS)
    theirs = tree.owner(path, tree.LAYERS)
    if theirs is None:
        if is_quoted and path != "build-config.h":
            return f'"{path}" is not a path from the top of the tree: write it so'
        return None
    if ".." in path.split("/") or "." in path.split("/"):
        return f'"{path}" is not a path from the top of the tree: write it so'
    if ours is None or ours == theirs or tree.LAYERS[theirs] < tree.LAYERS[ours]:
        return None
    if any(ours == folder and path.startswith(allowed) for folder, allowed in tree.WITHIN_LAYER):
        return None
    if tree.LAYERS[theirs] == tree.LAYERS[ours]:
        return (f'"{path}": {ours} and {theirs} are both in layer {tree.LAYERS[ours]}: '
                "connect them in a higher layer")
    return (f'"{path}": {ours} (layer {tree.LAYERS[ours]}) includes {theirs} (layer '
            f'{tree.LAYERS[theirs]}): ' "includes go down only")


def faults(root):
    found = []
    for name in tree.c_files(root, tree.FOLDERS + ("tests",)):
        if tree.owner(name, tree.LAYERS) is None:
            found.append(f"{name}:1: its folder has no layer: give it one in docs/ARCHITECTURE.md "
                         "and " "tests/checks/source_tree.py")
        for number, is_quoted, path in tree.includes(tree.read(root, name)):
            fault = fault_of(name, is_quoted, path)
            if fault:
                found.append(f"{name}:{number}: {fault}")
    return found


if __name__ == "__main__":
    tree.report([("includes go down the layers", faults(tree.root_of_arguments()))])
