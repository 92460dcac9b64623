#!/usr/bin/env python3
"""Each foreign library has one wrapper (docs/ARCHITECTURE.md), the only files that include its
header, and locks have one module. Tests may use a library to check the results of its wrapper.
usage: check_wrappers.py [ROOT]"""
import re

import source_tree as tree

WRAPPERS = (  # library, its headers, who may include them
    ("libyaml", r"yaml\.h", r"config/load\.c"),
    ("SQLite", r"sqlite3(ext)?\.h", r"agent/store/[a-z_]+\.c|agent/store/\w*private\.h"),
    ("nanomsg", r"nanomsg/.*", r"lib/event/bus_child\.c"),
    ("libcurl", r"curl/.*",
     r"lib/http/(curl_loop|http|http_error|http_request|url)\.[ch]|cli/common/client\.c"),
    ("libmicrohttpd", r"microhttpd.*", r"lib/http/mhd_loop\.c"),
    ("libarchive", r"archive(_entry)?\.h", r"lib/bundle/(plan|reader)\.c"),
    ("zstd", r"(zstd|zdict)[a-z_]*\.h", r"lib/bundle/frame\.c"),
    ("expat", r"expat(_external)?\.h", r"uploaders/aws/aws_xml\.c"),
    ("OpenSSL", r"openssl/.*", r"lib/base/digest\.c"),
    ("elfutils", r"elfutils/.*|(libelf|gelf|libdw|libdwfl|dwarf)\.h",
     r"collectors/crash/(elf_file|unwind)\.c"),
)
LOCK = re.compile(r"(?<!\w)(pthread_(mutex|cond|rwlock|spin|barrier)_|mtx_|cnd_)[a-z]")
LOCKS = "lib/event/worker_pool.c"


def main():
    root = tree.root_of_arguments()
    headers, locks = [], []
    for name in tree.c_files(root):
        text = tree.read(root, name)
        for number, _, path in tree.includes(text):
            for library, pattern, files in WRAPPERS:
                if re.fullmatch(pattern, path) and not re.fullmatch(files, name):
                    headers.append(f"{name}:{number}: <{path}> belongs to the wrapper of "
                                   f"{library}: use what that "
                                   "offers, or say in the commit why there must be a second one")
        for number, line in enumerate(tree.without_literals(text).split("\n"), 1):
            if LOCK.search(line) and name != LOCKS:
                locks.append(f"{name}:{number}: locks belong to {LOCKS} alone: give the work to "
                             "the pool")
    tree.report([("each foreign library has one wrapper", headers),
                 ("only the worker pool has locks", locks)])


main()
