#!/bin/sh
# Includes go down the stairs (docs/ARCHITECTURE.md): a room includes itself and lower floors only, by whole paths.
# usage: check_floors.sh [ROOT]
set -eu
# shellcheck source=/dev/null
. "$(dirname "$0")/report.sh"
cd "${1:-${srcdir:-.}}"

# shellcheck disable=SC2016 # awk's $0, not the shell's
floors='
BEGIN {
    floor["lib/base"] = 0
    floor["lib/loop"] = floor["lib/dump"] = floor["config"] = 1
    floor["agent/peers"] = floor["agent/store"] = floor["agent/api"] = 2
    floor["collectors"] = floor["uploaders"] = floor["lib/bundle"] = 2
    floor["agent"] = floor["cli"] = floor["hook"] = 3
    floor["tests"] = 4
}
# A path belongs to the deepest room on its way; "" when there is none.
function room_of(path) {
    while (sub(/\/[^\/]*$/, "", path))
        if (path in floor)
            return path
    return ""
}
function fault(text) { printf "%s:%d: %s\n", FILENAME, FNR, text }
FNR == 1 {
    room = room_of(FILENAME)
    if (room == "" || (room == "agent" && FILENAME ~ /^agent\/.*\//))
        fault("this room is on no floor: give it one in docs/ARCHITECTURE.md and tests/checks/check_floors.sh")
}
/^[ \t]*#[ \t]*include[ \t]*["<]/ {
    quoted = $0 ~ /include[ \t]*"/
    path = $0
    sub(/^[^"<]*["<]/, "", path)
    sub(/[">].*$/, "", path)
    theirs = room_of(path)
    if (theirs == "") {
        if (quoted && path != "build-config.h")
            fault("\"" path "\" is not the whole path of a file in a room: write it from the top of the tree")
        next
    }
    if (path ~ /(^|\/)\.\.?(\/|$)/)
        fault("\"" path "\" goes by dots: write the whole path from the top of the tree")
    else if (room == "" || theirs == room || floor[theirs] < floor[room])
        next
    else if (floor[theirs] == floor[room])
        fault("\"" path "\": " room " and " theirs " are on one floor (" floor[room] ") and never meet: let the floor above introduce them")
    else
        fault("\"" path "\": " room " (floor " floor[room] ") includes " theirs " (floor " floor[theirs] "): includes only go down, move it or turn it round")
}'

echo 1..1
tap_result 1 'includes go down the stairs' \
    "$(c_files agent cli collectors config hook lib tests uploaders | on_files "$floors")"
tap_exit
