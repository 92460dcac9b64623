# Sourced by the checks: TAP, with each fault as a comment `FILE:LINE: what, and the remedy`.
# shellcheck shell=sh

tap_failed=0

# tap_result NUMBER CLAIM FAULTS: the claim holds when FAULTS is empty
tap_result() {
    if [ -z "$3" ]; then
        printf 'ok %s - %s\n' "$1" "$2"
    else
        printf '%s\n' "$3" | sed 's/^/# /'
        printf 'not ok %s - %s\n' "$1" "$2"
        tap_failed=1
    fi
}

tap_exit() {
    exit "$tap_failed"
}

# c_files DIRECTORY...: the .c and .h files in those of them that exist, one a line
c_files() {
    for d in "$@"; do
        if [ -d "$d" ]; then
            find "$d" -type f \( -name '*.c' -o -name '*.h' \)
        fi
    done | LC_ALL=C sort
}

# on_files PROGRAM < LIST: runs an awk program over the listed files; their names hold no blanks in this house
on_files() {
    xargs awk "$1" /dev/null
}
