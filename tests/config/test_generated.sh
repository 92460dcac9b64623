#!/bin/sh
# What people read about the configuration is made from the table, and what is committed is what
# would be made now.
set -eu
src="${srcdir:-.}"
generate="${builddir:-.}/config/generate"
work=$(mktemp -d "${TMPDIR:-/tmp}/nc-generated-XXXXXX")
trap 'rm -rf "$work"' EXIT
failed=0

# result NUMBER CLAIM COMMAND...: the claim holds when the command succeeds
result() {
    number=$1
    claim=$2
    shift 2
    if "$@" > "$work/output" 2>&1; then
        printf 'ok %s - %s\n' "$number" "$claim"
    else
        sed 's/^/# /' "$work/output"
        printf 'not ok %s - %s\n' "$number" "$claim"
        failed=1
    fi
}

# The functions below are called through result().
# shellcheck disable=SC2317
is_current() {
    if "$generate" "$1" < "$src/config/$2.in" > "$work/made" && diff -u "$src/$3" "$work/made"; then
        return 0
    fi
    echo "run: make generate-config"
    return 1
}

# No output is no fault; a manual that is not installed here is none either.
# shellcheck disable=SC2317
is_lint_free() {
    ! mandoc -T lint "$src/man/neuron-collectd.yaml.5" 2>&1 | grep -v 'referenced manual not found'
}

# A reader that is not ours agrees on what was printed.
# shellcheck disable=SC2317
is_yaml_for_others() {
    python3 - "$src/tests/golden/config/full.printed" "$src/tests/golden/config/s3.printed" \
        << 'PYTHON'
import sys
import yaml

config = yaml.safe_load(open(sys.argv[1], encoding="utf-8"))
assert config["node"]["labels"] == {
    "cluster": "prod-a", "on": "off", "note": "one # two: three"}, config["node"]
assert config["sources"][0]["exclude"] == ["*.tmp", "cache/*", "$${literal}"], config["sources"][0]
assert config["sources"][1]["destinations"] == ["fsx", "nfs"], config["sources"][1]
assert config["destinations"][0]["path"] == "/fsx/neuron/%k/%n/%d-%c", config["destinations"]
assert config["limits"]["compression_level"] == 12 and config["agreement"]["rendezvous"] == "off"
assert config["log"] == {"level": "debug", "format": "json"}, config["log"]

bucket = yaml.safe_load(open(sys.argv[2], encoding="utf-8"))["destinations"][0]
assert bucket["tags"] == {"team": "ml", "cost center": "a/b:c@d = 1", "on": ""}, bucket
assert bucket["sse"] == "aws:kms" and bucket["expected_bucket_owner"] == "012345678901", bucket
PYTHON
}

echo 1..5
result 1 'the example file is what the table makes' is_current example example \
	config/neuron-collectd.yaml
result 2 'the man page is what the table makes' is_current man manual man/neuron-collectd.yaml.5
result 3 'the document is what the table makes' is_current markdown document docs/CONFIGURATION.md
if command -v mandoc > /dev/null; then
    result 4 'mandoc finds no fault in the man page' is_lint_free
else
    echo 'ok 4 - mandoc finds no fault in the man page # SKIP no mandoc'
fi
if python3 -c 'import yaml' 2> /dev/null; then
    result 5 'another YAML reader reads what is printed' is_yaml_for_others
else
    echo 'ok 5 - another YAML reader reads what is printed # SKIP no python3-yaml'
fi
exit "$failed"
