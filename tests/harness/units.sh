# Sourced behind tap.sh by tests of the systemd files: what systemd's own tools say of a unit, and
# what a box (tests/harness/box) is made of.
# shellcheck shell=bash

# systemd 250
can_analyze() {
	command -v systemd-analyze >/dev/null && systemd-analyze --help | grep -q -- --offline
}
judge_exposure() { # UNIT TENTHS NAME: it is no more than that, and without its sandbox it would be
	local bare=${dir:?}/bare-${1##*/} most=${2%?}.${2: -1}
	systemd-analyze security --no-pager --offline=true --threshold="$2" "$1" >"$dir/out" 2>&1
	ok "exposure of $3 is at most $most"
	sed -e '/^Protect/d' -e '/^Restrict/d' -e '/^SystemCall/d' "$1" >"$bare"
	! systemd-analyze security --no-pager --offline=true --threshold="$2" "$bare" >"$dir/out" 2>&1
	ok "without its sandbox $3 would be above $most"
}
verify_is_silent() { # ROOT UNIT...
	local root=$1
	shift
	systemd-analyze --root="$root" --man=no --recursive-errors=no verify "$@" >"$dir/out" 2>&1 &&
		[ ! -s "$dir/out" ]
	ok "systemd-analyze verify has nothing to say"
}

make_variable() { # NAME: as configured; before it, make may have to tell of a new configure
	env -u MAKEFLAGS -u MAKELEVEL make -s --no-print-directory -C "${builddir:?}" --eval \
		"print-it:; @echo \$($1)" print-it 2>/dev/null | tail -n 1
}
# A root with systemd and the libraries that the programs are linked with, whatever their names are
# in this release; made once, for all tests.
make_base() { # sets $base
	local cache=${NC_TEST_CACHE:-/var/tmp/neuron-collectd-tests} program packages
	mkdir -p "$cache" || return
	packages=$(for program in neuron-collectd neuron-collect; do
		[ ! -x "$builddir/$program" ] || ldd "$builddir/$program"
	done | awk '$3 ~ "^/" { print $3 }' | sort -u | xargs -r realpath | sort -u |
		xargs -r dpkg-query -S 2>/dev/null | sed 's/:.*//' | sort -u | tr '\n' ' ')
	base=$cache/base-$(echo "$packages" | sha256sum | cut -c1-12)
	# shellcheck disable=SC2086  # a list of packages
	flock "$cache/lock" "${box:?}" base "$base" $packages >"$dir/out" 2>&1
}
