#!/usr/bin/env python3
"""The checks themselves: in a copy of a tiny tree one fault of each kind is planted, and must be
found by file and line."""
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.realpath(__file__))
FORMAT = os.path.join(HERE, "..", "..", ".clang-format")
results = []

FILES = {
    "agent/agent.c": '#include "agent/agent.h"\n\n#include <stdio.h>\n\n#include '
                     '"agent/store/store.h"\n'
                     '#include "build-config.h"\n#include "lib/base/digest.h"\n',
    "agent/store/store.c": '#include "agent/store/store.h"\n\n#include <sqlite3.h>\n',
    "agent/api/api.c": "", "cli/common/client.c": "#include <curl/curl.h>\n",
    "config/load.c": "#include <yaml.h>\n", "lib/base/digest.c": "#include <openssl/sha.h>\n",
    "lib/bundle/plan.c": "#include <archive.h>\n", "lib/bundle/frame.c": "#include <zstd.h>\n",
    "uploaders/volume/volume.c": "",
    "lib/http/http.c": '#include "lib/event/worker_pool.h"\n', "lib/http/url.c": "",
    "lib/event/worker_pool.c": "static void f(void) {\n        pthread_mutex_lock(&m);\n}\n",
    "lib/http/README.md": "text\n", "lib/bundle/README.md": "text\n",
    "tests/lib/base/test_all.c": '#include "agent/agent.h"\n#include <sqlite3.h>\n',
}


class Tree:
    """A tree in which every check has something to check and finds nothing."""

    def __init__(self):
        self.root = tempfile.mkdtemp(prefix="nc-checks-")
        shutil.copy(FORMAT, self.root)
        for name, text in FILES.items():
            self.write(name, text)
            if name.endswith(".c") and not name.startswith("tests/"):
                self.write(name[:-2] + ".h", "#pragma once\n")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.root)

    def write(self, name, text):
        os.makedirs(os.path.dirname(os.path.join(self.root, name)), exist_ok=True)
        with open(os.path.join(self.root, name), "w", encoding="utf-8") as file:
            file.write(text)

    def plant(self, name, text):
        """Appends the text; gives FILE:LINE of its first line."""
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a+", encoding="utf-8") as file:
            file.seek(0)
            line = file.read().count("\n") + 1
            file.write(text + "\n")
        return f"{name}:{line}"

    def run(self, check, *arguments):
        return subprocess.run([os.path.join(HERE, f"check_{check}.py"), self.root, *arguments],
                              capture_output=True, text=True, check=False)


def result(is_good, claim, done):
    results.append(is_good)
    print(f"{'ok' if is_good else 'not ok'} {len(results)} - {claim}")
    if not is_good:
        print("".join(f"#   {line}\n" for line in (done.stdout + done.stderr).splitlines()), end="")


def passes(tree, check, claim, *arguments):
    done = tree.run(check, *arguments)
    result(done.returncode == 0 and "not ok" not in done.stdout and "ok 1" in done.stdout, claim,
           done)


def finds(tree, check, where, text, claim, *arguments):
    """The check fails, and one line names the place with this text in its message."""
    done = tree.run(check, *arguments)
    is_named = any(line.startswith(f"# {where}: ") and text in line
                   for line in done.stdout.splitlines())
    result(done.returncode != 0 and is_named and "not ok" in done.stdout,
           f"{claim} ({where}: {text})", done)


def planted(check, file, text, message, claim):
    with Tree() as tree:
        finds(tree, check, tree.plant(file, text), message, claim)


def layers():
    with Tree() as tree:
        passes(tree, "layers", "a tree whose includes go down passes")
        tree.plant("config/load.c", '#include "lib/http/url.h"')
        passes(tree, "layers", "config may include lib/http/url.h")
    planted("layers", "lib/base/digest.c", '#include "lib/event/worker_pool.h"',
            "lib/base (layer 0) includes lib/event (layer 1)", "an include that goes up is found")
    planted("layers", "agent/store/store.h", '#include "agent/agent.h"',
            "agent/store (layer 2) includes agent (layer 3)", "and in a header of agent/ too")
    planted("layers", "agent/intake/intake.c", '#include "cli/client.h"',
            "agent and cli are both in layer 3",
            "a sub-folder of agent/ is in agent's layer, and programs do not include each other")
    planted("layers", "agent/api/api.c", '#  include   "agent/store/store.h"',
            "agent/api and agent/store are both in layer 2",
            "folders of one layer that include each other are found")
    planted("layers", "lib/event/worker_pool.c", '#include "lib/http/http.h"', "lib/event and "
            "lib/http are both in layer 1", "the exception within a layer has one direction")
    planted("layers", "config/load.c", "#include <lib/event/worker_pool.h>",
            "config and lib/event are both in layer 1", "angle brackets hide nothing")
    planted("layers", "config/load.c", '#include "load.h"', "not a path from the top",
            "a short path is found")
    planted("layers", "config/load.c", '#include "lib/base/../event/worker_pool.h"',
            "not a path from the top", "a path with dots is found")
    planted("layers", "uploaders/volume/volume.c", '#include "tests/lib/base/helper.h"',
            "includes tests (layer 4)", "a module that includes a test is found")
    with Tree() as tree:
        tree.plant("lib/new/new.c", "int x;")
        finds(tree, "layers", "lib/new/new.c:1", "has no layer",
              "a folder without a layer is found")


def wrappers():
    with Tree() as tree:
        passes(tree, "wrappers", "a tree whose libraries have one wrapper passes, whatever its "
                                 "tests include")
    for file, header, library in (
            ("config/check.c", "yaml.h", "libyaml"), ("agent/agent.c", "sqlite3.h", "SQLite"),
            ("agent/api/store.c", "sqlite3.h", "SQLite"),
            ("agent/peers/bus.c", "nanomsg/nn.h", "nanomsg"),
            ("uploaders/volume/volume.c", "curl/curl.h", "libcurl"),
            ("agent/api/api.c", "microhttpd.h", "libmicrohttpd"),
            ("lib/bundle/manifest.c", "archive_entry.h", "libarchive"),
            ("lib/bundle/manifest.h", "zstd.h", "zstd"),
            ("uploaders/aws/sign.c", "openssl/hmac.h", "OpenSSL"),
            ("lib/base/digest.h", "openssl/sha.h", "OpenSSL"),
            ("uploaders/volume/volume.c", "expat.h", "expat"),
            ("cli/crash.c", "elfutils/libdwfl.h", "elfutils")):
        planted("wrappers", file, f"#include <{header}>", f"belongs to the wrapper of {library}",
                f"{header} outside of its wrapper is found")
    planted("wrappers", "agent/agent.c", "        pthread_mutex_lock(&m);",
            "locks belong to lib/event/worker_pool.c", "a second lock is found")
    planted("wrappers", "cli/common/client.c", "        mtx_lock(&m);",
            "locks belong to lib/event/worker_pool.c", "a second lock of C11 is found")


def function_of(head, lines):
    return head + " {\n" + "        work();\n" * (lines - 2) + "}"


def sizes():
    with Tree() as tree:
        passes(tree, "sizes", "a tree of small files passes")
        tree.plant("cli/common/client.c", function_of("static int short_enough(void)", 80))
        tree.plant("cli/common/client.c", "static const int table[] = {\n" + "        1,\n" * 100
                   + "};")
        tree.plant("cli/common/client.c", "#define LONG(x) \\\n" + "        work(); \\\n" * 100
                   + "        work()")
        tree.plant("cli/common/client.c", "int prototype(int a,\n              int b);")
        tree.plant("cli/common/client.c", "static int names(int a) {\n        switch (a) {\n" +
                   "        case 1:\n                return 1;\n" * 60 + "        }\n}")
        passes(tree, "sizes", "80 lines, tables, types, macros and a switch of short cases pass")
        where = tree.plant("cli/common/client.c",
                           function_of("static const char *too_long(int a,\n        int b)", 80))
        finds(tree, "sizes", where, "too_long has 81 lines", "a function of 81 lines is found")
    planted("sizes", "cli/common/client.c", "static int machine(int a) {\n        switch (a) {\n" +
            ("        case 1:\n" + "                work();\n" * 5) * 20 + "        }\n}",
            "machine has 124 lines", "a long switch of long cases is found")
    planted("sizes", "tests/lib/base/test_all.c", function_of("static void t(void **state)", 81),
            "t has 81 lines", "a test that is too long is found")
    with Tree() as tree:
        tree.write("uploaders/volume/a.c", "")
        tree.write("uploaders/volume/b.c", "")
        finds(tree, "sizes", "uploaders/volume/README.md:1", "missing",
              "a folder of four files without a README is found")
        tree.write("uploaders/README.md", "- `volume/`: text\n")
        passes(tree, "sizes", "one that the README above describes passes")


def compile_into(tree, directory, *names):
    for name in names:
        out = os.path.join(directory, name[:-2] + ".o")
        os.makedirs(os.path.dirname(out), exist_ok=True)
        subprocess.run(["cc", "-c", "-x", "c", "-I", tree.root, "-o", out,
                        os.path.join(tree.root, name)], check=True)


def circles():
    with Tree() as tree, tempfile.TemporaryDirectory() as build:
        passes(tree, "circles", "a tree without a circle passes", build)
        tree.plant("agent/store/store.h", '#include "agent/api/api.h"')
        tree.plant("agent/api/api.h", '#include "agent/agent.h"')
        done = tree.run("circles", build)
        result(done.returncode == 1 and "# circle of agent, agent/api, agent/store: " in done.stdout
               and "agent/api/api.h:2 includes agent/agent.h" in done.stdout,
               "a circle of includes through three folders is found, with the lines that make it",
               done)
    with Tree() as tree, tempfile.TemporaryDirectory() as build:
        tree.write("agent/agent.c",
                   "void store_a(void);\nvoid agent_b(void) {\n        store_a();\n}\n")
        tree.write("agent/store/store.c", "void agent_c(void);\nvoid store_a(void) {\n}\n")
        compile_into(tree, build, "agent/agent.c", "agent/store/store.c")
        passes(tree, "circles", "calls that go down pass", build)
        tree.write("agent/store/store.c",
                   "void agent_b(void);\nvoid store_a(void) {\n        agent_b();\n}\n")
        compile_into(tree, build, "agent/store/store.c")
        done = tree.run("circles", build)
        result(done.returncode == 1 and "# circle of agent, agent/store: " in done.stdout and
               "agent/store/store.c uses agent_b of agent/agent.c" in done.stdout,
               "a call against them without an include is found", done)
        tree.write("cli/common/client.c", "void store_a(void) {\n}\n")
        compile_into(tree, build, "cli/common/client.c")
        done = tree.run("circles", build)
        result("cli/common/client.c: store_a is defined in agent/store/store.c too" in done.stdout,
               "a symbol that is defined twice is found", done)
    circles_inside()


def circles_inside():
    with Tree() as tree, tempfile.TemporaryDirectory() as build:
        tree.write("agent/store/store.c", "void row_b(void);\nvoid store_a(void) {\n"
                                          "        row_b();\n}\n")
        tree.write("agent/store/row.c", "void row_b(void) {\n}\n")
        compile_into(tree, build, "agent/store/store.c", "agent/store/row.c")
        passes(tree, "circles", "files of a folder of which one uses the other pass", build)
        tree.write("agent/store/row.c", "void store_a(void);\nvoid row_b(void) {\n"
                                        "        store_a();\n}\n")
        compile_into(tree, build, "agent/store/row.c")
        done = tree.run("circles", build)
        result(done.returncode == 1
               and "# circle of agent/store/row.c, agent/store/store.c: " in done.stdout
               and "agent/store/row.c uses store_a of agent/store/store.c" in done.stdout,
               "files of a folder that use each other are found", done)


def tags():
    with Tree() as tree:
        tree.plant("lib/http/url.c", "struct Part {\n        int x;\n};")
        tree.plant("lib/http/http.c", "/* struct Part { */ struct Part *p;")
        passes(tree, "tags", "a tag that is defined once passes")
        where = tree.plant("uploaders/volume/volume.c", "typedef enum Part { A } Part;")
        finds(tree, "tags", where, "Part is defined in lib/http/url.c",
              "a tag that is defined twice is found")


def states():
    with Tree() as tree:
        tree.plant("lib/http/http.c", "struct Call {\n        bool a, b : 1;\n        Reply reply;\n"
                   "        const bool c;\n        bool (*is_due)(bool e, bool f);\n"
                   "        atomic_bool d; /* bool g; */\n};")
        tree.plant("lib/http/url.c", "typedef struct ScanUnit {\n        bool a, b, c, d, e;\n"
                   "} ScanUnit;")
        passes(tree, "states", "four booleans pass, and five of a struct without a life cycle")
        where = tree.plant("uploaders/volume/volume.c", "typedef struct {\n        struct {\n"
                           "                bool a, b;\n        } listing;\n"
                           "        bool c;\n        bool d[2], e;\n} Volume;")
        finds(tree, "states", where, "Volume has 5 booleans",
              "five booleans are found, with those of an anonymous struct")
        where = tree.plant("cli/common/client.c", "typedef struct Cli {\n        bool a;\n} Cli;")
        finds(tree, "states", where, "Cli has 1 booleans",
              "a struct that is listed without need is found")


def layout():
    if not shutil.which("clang-format-14"):
        return
    with Tree() as tree:
        passes(tree, "format", "a tree laid out as make format does it passes")
        where = tree.plant("cli/common/client.c", "int  x ;")
        finds(tree, "format", where, "run make format", "a line laid out otherwise is found")


layers()
wrappers()
sizes()
circles()
states()
tags()
layout()
print(f"1..{len(results)}")
sys.exit(not all(results))
