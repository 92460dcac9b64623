#!/bin/sh
# The sizes of docs/STYLE.md, section 14, and a README in each room of more than three files.
# usage: check_sizes.sh [-v] [ROOT]      -v: also tells functions of more than four parameters, which is advice
set -eu
# shellcheck source=/dev/null
. "$(dirname "$0")/report.sh"
verbose=0
if [ "${1:-}" = -v ]; then
    verbose=1
    shift
fi
cd "${1:-${srcdir:-.}}"

# shellcheck disable=SC2016 # awk's $0, not the shell's
lengths='
function tell() {
    max = name ~ /\.h$/ ? 200 : 800
    if (lines > max)
        printf "%s:%d: %d lines, at most %d: split it by what changes for different reasons\n", name, max + 1, lines, max
}
FNR == 1 { tell() }
{ name = FILENAME; lines = FNR }
END { tell() }'

# A function begins with a line in the first column that has a "(" and whose statement ends in "{", and ends with a "}" in the
# first column: clang-format sees to that. It may be long when most of it is cases of one statement.
# shellcheck disable=SC2016
functions='
function close_case() {
    if (in_case > 0 && in_case <= 3)
        in_cases += in_case
    in_case = 0
}
function count_parameters(head,    i, c, depth, n, at) {
    depth = 0
    n = 1
    for (i = 1; i <= length(head); i++) {
        c = substr(head, i, 1)
        if (c == "(" && ++depth == 1)
            at = i
        else if (c == ")" && --depth == 0)
            break
        else if (c == "," && depth == 1)
            n++
    }
    return substr(head, at + 1, i - at - 1) ~ /^[ \t]*(void)?[ \t]*$/ ? 0 : n
}
FNR == 1 { head = ""; inside = continued = 0 }
!inside && (continued || /^#/) { continued = /\\$/; next }
!inside && /^[A-Za-z_]/ && head == "" { start = FNR }
!inside && (head != "" || /^[A-Za-z_]/) {
    head = head " " $0
    if (head ~ /[;=}]/ || (head ~ /[{][ \t]*$/ && head !~ /\(/))
        head = ""
    else if (head ~ /[{][ \t]*$/) {
        inside = 1
        in_case = in_cases = 0
        signature = head
        head = ""
    }
    next
}
inside && /^[}]/ {
    close_case()
    inside = 0
    size = FNR - start + 1
    label = signature
    sub(/\(.*/, "", label)
    sub(/^.*[ \t*]/, "", label)
    if (advice && count_parameters(signature) > 4)
        printf "%s:%d: %s has %d parameters: past four, pass a const struct\n", FILENAME, start, label, count_parameters(signature)
    if (!advice && size > 80 && 2 * in_cases <= size)
        printf "%s:%d: %s has %d lines, at most 80: give a part of it a name of its own\n", FILENAME, start, label, size
    next
}
inside && /^[ \t]*(case[ \t(]|default:)/ {
    if (in_case == 1 && last_was_label)
        in_case = 0 # two labels of one case
    close_case()
    in_case = 1
    last_was_label = 1
    next
}
inside && in_case > 0 {
    last_was_label = 0
    if (/^[ \t]*[}]/)
        close_case()
    else
        in_case++
}'

readmes() {
    for d in agent cli collectors config hook lib uploaders; do
        if [ -d "$d" ]; then
            find "$d" -type d
        fi
    done | LC_ALL=C sort | while read -r d; do
        n=$(find "$d" -maxdepth 1 -type f \( -name '*.c' -o -name '*.h' \) | wc -l)
        if [ ! -f "$d/README.md" ]; then
            if [ "$n" -gt 3 ]; then
                echo "$d/README.md:1: missing, and the room has $((n)) files: say what it owns, what it refuses, one sentence a file"
            fi
        elif [ "$(wc -l < "$d/README.md")" -gt 30 ]; then
            echo "$d/README.md:31: longer than 30 lines: the rest belongs into docs/ or into the headers"
        fi
    done
}

echo 1..3
files=$(c_files agent cli collectors config hook lib tests uploaders)
tap_result 1 'a .c has at most 800 lines, a .h at most 200' "$(printf '%s\n' "$files" | on_files "$lengths")"
tap_result 2 'a function has at most 80 lines' "$(printf '%s\n' "$files" | on_files "$functions")"
tap_result 3 'a room of more than three files has a README.md of at most 30 lines' "$(readmes)"
if [ "$verbose" -eq 1 ]; then
    printf '%s\n' "$files" | on_files "BEGIN { advice = 1 } $functions" | sed 's/^/# advice: /'
fi
tap_exit
