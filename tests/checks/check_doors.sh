#!/bin/sh
# Each foreign library has one door (docs/ARCHITECTURE.md): the only files that include its header. And mutexes have one.
# Tests may use a library to check what came out of its door.
# usage: check_doors.sh [ROOT]
set -eu
# shellcheck source=/dev/null
. "$(dirname "$0")/report.sh"
cd "${1:-${srcdir:-.}}"

# shellcheck disable=SC2016 # awk's $0, not the shell's
doors='
function door(name, header, files) { n++; library[n] = name; headers[n] = header; allowed[n] = files }
BEGIN {
    door("libyaml", "^yaml\\.h$", "^config/load\\.c$")
    door("SQLite", "^sqlite3(ext)?\\.h$", "^agent/store/store((_[a-z0-9_]+)?\\.c|_private\\.h)$")
    door("nanomsg", "^nanomsg/", "^lib/event/nn_loop\\.c$")
    door("libcurl", "^curl/", "^((lib/http/curl_loop|cli/client)\\.c|lib/http/http_private\\.h)$")
    door("libmicrohttpd", "^microhttpd", "^lib/http/mhd_loop\\.c$")
    door("libarchive", "^archive(_entry)?\\.h$", "^lib/bundle/(plan|reader)\\.c$")
    door("zstd", "^(zstd|zdict)[a-z_]*\\.h$", "^lib/bundle/frame\\.c$")
    door("expat", "^expat(_external)?\\.h$", "^uploaders/s3_xml\\.c$")
    door("OpenSSL", "^openssl/", "^lib/base/digest\\.c$")
    door("elfutils", "^(elfutils/.*|libelf|gelf|libdw|libdwfl|dwarf)\\.h$", "^collectors/crash[a-z0-9_]*\\.c$")
}
function fault(text) { printf "%s:%d: %s\n", FILENAME, FNR, text }
/^[ \t]*#[ \t]*include[ \t]*["<]/ {
    header = $0
    sub(/^[^"<]*["<]/, "", header)
    sub(/[">].*$/, "", header)
    for (i = 1; i <= n; i++)
        if (header ~ headers[i] && FILENAME !~ allowed[i])
            fault("<" header "> is behind the door of " library[i] ": use what that file offers, or say in the commit why there must be a second door")
}'

# shellcheck disable=SC2016
mutexes='
/^[ \t]*(\/\*|\*|\/\/)/ { next }
/(^|[^A-Za-z0-9_])(pthread_(mutex|cond|rwlock|spin|barrier)_|mtx_|cnd_)[a-z]/ && FILENAME != "lib/event/worker_pool.c" {
    printf "%s:%d: locks belong to lib/event/worker_pool.c alone: give the work to the pool\n", FILENAME, FNR
}'

echo 1..2
files=$(c_files agent cli collectors config hook lib uploaders)
tap_result 1 'each foreign library has one door' "$(printf '%s\n' "$files" | on_files "$doors")"
tap_result 2 'only the worker pool has locks' "$(printf '%s\n' "$files" | on_files "$mutexes")"
tap_exit
