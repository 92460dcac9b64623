#!/bin/sh
# The code is laid out as `make format` does it. Other versions of clang-format lay out differently, so only 14 is asked.
# usage: check_format.sh [ROOT]
set -eu
# shellcheck source=/dev/null
. "$(dirname "$0")/report.sh"
cd "${1:-${srcdir:-.}}"

if ! command -v clang-format-14 > /dev/null; then
    echo '1..0 # SKIP clang-format-14 is not installed'
    exit 0
fi
echo 1..1
files=$(c_files agent cli collectors config hook lib tests uploaders)
tap_result 1 'the code is laid out as make format does it' \
    "$(printf '%s\n' "$files" | xargs clang-format-14 --dry-run 2>&1 |
        awk -F: '/warning: code should be clang-formatted/ { print $1 ":" $2 ": not laid out as make format does it: run make format" }')"
tap_exit
