#!/usr/bin/env python3
"""The code is laid out as `make format` does it. Other versions of clang-format lay out
differently, so only 14 is used. usage: check_format.py [ROOT]"""
import os
import re
import shutil
import subprocess

import source_tree as tree


def main():
    if not shutil.which("clang-format-14"):
        print("1..0 # SKIP clang-format-14 is not installed")
        return
    root = tree.root_of_arguments()
    files = [os.path.join(root, name) for name in tree.c_files(root, tree.FOLDERS + ("tests",))]
    out = subprocess.run(["clang-format-14", "--dry-run", *files], capture_output=True, text=True,
                         check=False).stderr
    faults = []
    for path, line in re.findall(r"^(.*?):(\d+):\d+: warning: code should be clang-formatted", out,
                                 re.M):
        faults.append(f"{os.path.relpath(path, root)}:{line}: not laid out as make format does it: "
                      "run make format")
    tree.report([("the code is laid out as make format does it", faults)])


main()
