# Sourced by tests written in shell: TAP, one claim after the other. The test sets $dir to a
# directory of its own, and its last line is tap_done. A function on_failure of the test's is called
# after each claim that does not hold.
# shellcheck shell=bash
tap_n=0
tap_failed=0

ok() { # SENTENCE: the last command's status decides; its output in $dir/out is shown if it failed
	local status=$?
	tap_n=$((tap_n + 1))
	if [ $status -eq 0 ]; then
		echo "ok $tap_n - $1"
		return
	fi
	echo "not ok $tap_n - $1"
	tap_failed=$((tap_failed + 1))
	sed 's/^/# /' "${dir:?}/out" 2>/dev/null
	if [ "$(type -t on_failure)" = function ]; then on_failure; fi
}
skip() { # WHAT REASON
	tap_n=$((tap_n + 1))
	echo "ok $tap_n - $1 # SKIP $2"
}
skip_rest() { # WHAT REASON
	skip "$1" "$2"
	tap_done
	exit
}
tap_done() { # status 0 when no claim has failed
	echo "1..$tap_n"
	[ "$tap_failed" -eq 0 ]
}

until_true() { # SECONDS COMMAND...: a fact with a deadline, which is multiplied by NC_PATIENCE
	local end
	end=$(awk -v now="$(date +%s%N)" -v wait="$1" -v patience="${NC_PATIENCE:-1}" \
		'BEGIN { printf "%.0f", now + wait * patience * 1e9 }')
	shift
	until "$@" >"${dir:?}/out" 2>&1; do
		[ "$(date +%s%N)" -lt "$end" ] || return 1
		sleep 0.1
	done
}
