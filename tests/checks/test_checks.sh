#!/bin/sh
# The checks themselves: one fault of each sort is planted in a copy of a tiny tree, and must be found by file and line.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d "${TMPDIR:-/tmp}/nc-checks-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
tree=$scratch/tree
number=0
failed=0

# lines N [TEXT]: N lines
lines() {
    awk -v n="$1" -v text="${2:-/* a line */}" 'BEGIN { while (n-- > 0) print text }'
}

# A tree in which every check has something to look at and nothing to say.
tiny_tree() {
    rm -rf "$tree"
    mkdir -p "$tree/agent/store" "$tree/agent/api" "$tree/cli" "$tree/config" "$tree/lib/base" "$tree/lib/bundle" \
        "$tree/lib/loop" "$tree/tests/base" "$tree/uploaders"
    cp "$here/../../.clang-format" "$tree/"
    for f in agent/agent agent/store/store agent/api/api config/load lib/base/digest lib/bundle/plan lib/bundle/frame \
        lib/event/worker_pool \
        uploaders/volume cli/client; do
        printf '#pragma once\n' > "$tree/$f.h"
        printf '#include "%s.h"\n' "$f" > "$tree/$f.c"
    done
    printf '\n#include <stdio.h>\n\n' >> "$tree/agent/agent.c"
    printf '#include "agent/store/store.h"\n#include "build-config.h"\n#include "lib/base/digest.h"\n' >> "$tree/agent/agent.c"
    printf '#include <sqlite3.h>\n' >> "$tree/agent/store/store.c"
    printf '#include <openssl/sha.h>\n' >> "$tree/lib/base/digest.c"
    printf '#include <archive.h>\n' >> "$tree/lib/bundle/plan.c"
    printf '#include <zstd.h>\n' >> "$tree/lib/bundle/frame.c"
    printf '#include <yaml.h>\n' >> "$tree/config/load.c"
    printf '#include <curl/curl.h>\n' >> "$tree/cli/client.c"
    printf 'static void f(void) {\n        pthread_mutex_lock(&m);\n}\n' >> "$tree/lib/event/worker_pool.c"
    printf '#include "agent/agent.h"\n#include <sqlite3.h>\n' > "$tree/tests/lib/base/test_all.c"
}

# plant FILE TEXT: appends the text and keeps FILE:LINE of its first line in $where
plant() {
    touch "$tree/$1"
    where=$1:$(($(wc -l < "$tree/$1") + 1))
    printf '%s\n' "$2" >> "$tree/$1"
}

tell() {
    number=$((number + 1))
    if [ "$1" = yes ]; then
        echo "ok $number - $2"
    else
        echo "not ok $number - $2"
        sed 's/^/#   /' "$scratch/out"
        failed=1
    fi
}

# run CHECK: its output goes to $scratch/out, its exit status to $status
run() {
    status=0
    "$here/check_$1.sh" "$tree" > "$scratch/out" 2>&1 || status=$?
}

# finds CHECK TEXT CLAIM: the check fails and names $where, with this text in its message
finds() {
    run "$1"
    if [ "$status" -ne 0 ] && grep -F "# $where: " "$scratch/out" | grep -qF -e "$2" && grep -q '^not ok ' "$scratch/out"; then
        tell yes "$3"
    else
        tell no "$3 ($where: $2)"
    fi
}

# passes CHECK CLAIM
passes() {
    run "$1"
    if [ "$status" -eq 0 ] && ! grep -q '^not ok ' "$scratch/out" && grep -q '^ok 1' "$scratch/out"; then
        tell yes "$2"
    else
        tell no "$2"
    fi
}

# --- floors
tiny_tree
passes floors 'a tree whose includes go down passes'
plant lib/base/digest.c '#include "lib/event/worker_pool.h"'
finds floors 'lib/base (floor 0) includes lib/loop (floor 1)' 'an include that goes up is found'
tiny_tree
plant agent/store/store.h '#include "agent/agent.h"'
finds floors 'agent/store (floor 2) includes agent (floor 3)' 'an include that goes up inside of agent/ is found, in a header too'
tiny_tree
plant agent/api/api.c '#  include   "agent/store/store.h"'
finds floors 'agent/api and agent/store are on one floor (2)' 'rooms of one floor that meet are found'
tiny_tree
plant cli/client.c '#include "agent/agent.h"'
finds floors 'cli and agent are on one floor (3)' 'a program that includes another is found'
tiny_tree
plant config/load.c '#include <lib/event/worker_pool.h>'
finds floors 'config and lib/loop are on one floor (1)' 'angle brackets hide nothing'
tiny_tree
plant config/load.c '#include "load.h"'
finds floors 'is not the whole path' 'a path that is not whole is found'
tiny_tree
plant config/load.c '#include "lib/base/../loop/worker_pool.h"'
finds floors 'goes by dots' 'a way round by dots is found'
tiny_tree
plant uploaders/volume/volume.c '#include "tests/lib/base/helper.h"'
finds floors 'includes tests (floor 4)' 'a room that includes a test is found'
tiny_tree
mkdir "$tree/lib/new" "$tree/agent/new"
plant lib/new/new.c 'int x;'
finds floors 'is on no floor' 'a room that is on no floor is found'
rm -r "$tree/lib/new"
plant agent/new/new.c 'int x;'
finds floors 'is on no floor' 'and so is one below agent/'

# --- doors
tiny_tree
passes doors 'a tree whose libraries have one door passes, whatever its tests include'
while read -r file header library; do
    tiny_tree
    plant "$file" "#include <$header>"
    finds doors "behind the door of $library" "$header outside of its door is found"
done << 'END'
config/check.c yaml.h libyaml
agent/agent.c sqlite3.h SQLite
agent/api/store.c sqlite3.h SQLite
agent/peers.c nanomsg/nn.h nanomsg
uploaders/volume/volume.c curl/curl.h libcurl
agent/api/api.c microhttpd.h libmicrohttpd
lib/bundle/manifest.c archive_entry.h libarchive
lib/bundle/bundle_writer.c archive.h libarchive
lib/bundle/writer.h zstd.h zstd
uploaders/s3/s3_sign.c openssl/hmac.h OpenSSL
lib/base/digest.h openssl/sha.h OpenSSL
cli/crash.c elfutils/libdwfl.h elfutils
END
tiny_tree
plant agent/store/store_rows.c '#include <sqlite3.h>'
plant agent/store/store_private.h '#include <sqlite3.h>'
passes doors 'a door may have several leaves'
tiny_tree
plant agent/agent.c 'static pthread_mutex_t m;'
finds doors 'locks belong to lib/event/worker_pool.c' 'a second mutex is found'
tiny_tree
plant cli/client.c '        mtx_lock(&m);'
finds doors 'locks belong to lib/event/worker_pool.c' 'a second mutex of C11 is found'

# --- sizes
tiny_tree
passes sizes 'a tree of small files passes'
tiny_tree
lines 798 >> "$tree/cli/client.c"
lines 199 >> "$tree/cli/client.h"
passes sizes 'a .c of 800 lines and a .h of 200 pass'
lines 1 >> "$tree/cli/client.c"
where=cli/client.c:801
finds sizes '801 lines, at most 800' 'a .c of 801 lines is found'
tiny_tree
lines 200 >> "$tree/tests/lib/base/long.h"
lines 1 >> "$tree/tests/lib/base/long.h"
where=tests/lib/base/long.h:201
finds sizes '201 lines, at most 200' 'a .h of 201 lines is found, among the tests too'

# function HEAD N: a function of N lines
function_of() {
    printf '%s {\n' "$1"
    lines "$(($2 - 2))" '        work();'
    printf '}\n'
}
tiny_tree
plant cli/client.c "$(function_of 'static int short_enough(void)' 80)"
passes sizes 'a function of 80 lines passes'
plant cli/client.c "$(function_of 'static const char *too_long(int a,
                            int b)' 80)"
finds sizes 'too_long has 81 lines' 'a function of 81 lines is found'
tiny_tree
plant cli/client.c "static const int table[] = {
$(lines 100 '        1,')
};
enum {
$(lines 100 '        A,')
};
struct s {
$(lines 100 '        int a;')
};
#define LONG(x) \\
$(lines 100 "        work(); \\\\")
        work()
int prototype(int a,
              int b);"
passes sizes 'tables, types and macros are not functions'
cases() {
    awk -v n="$1" -v body="$2" 'BEGIN { while (n-- > 0) { printf "        case %d:\n", n; for (i = 0; i < body; i++) print "                return 1;" } }'
}
tiny_tree
plant cli/client.c "static int names(int a) {
        switch (a) {
$(cases 60 1)
        }
}"
passes sizes 'a long switch of one-line cases passes'
tiny_tree
plant cli/client.c "static int machine(int a) {
        switch (a) {
$(cases 20 5)
        }
}"
finds sizes 'machine has 124 lines' 'a long switch of long cases is found'
tiny_tree
plant cli/client.c 'static int five(int a, int (*b)(int, int), int c, int d, int e) {
        return 0;
}'
passes sizes 'five parameters are no fault'
if "$here/check_sizes.sh" -v "$tree" > "$scratch/out" && grep -qF "# advice: $where: five has 5 parameters" "$scratch/out"; then
    tell yes 'but -v tells of them'
else
    tell no 'but -v tells of them'
fi
tiny_tree
touch "$tree/uploaders/a.c" "$tree/uploaders/b.c"
where=uploaders/README.md:1
finds sizes 'missing' 'a room of four files without a README is found'
lines 30 text > "$tree/uploaders/README.md"
passes sizes 'a README of 30 lines passes'
lines 1 text >> "$tree/uploaders/README.md"
where=uploaders/README.md:31
finds sizes 'longer than 30 lines' 'a README of 31 lines is found'

# --- format
if command -v clang-format-14 > /dev/null; then
    tiny_tree
    passes format 'a tree laid out as make format does it passes'
    plant cli/client.c 'int  x ;'
    finds format 'run make format' 'a line laid out otherwise is found'
fi

echo "1..$number"
exit "$failed"
