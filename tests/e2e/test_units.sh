#!/bin/bash
# The systemd files judged by systemd's own tools: verify without a word, a bound on the exposure,
# sysusers and tmpfiles carried out in an empty root. Needs no daemon. TAP.
set -u
srcdir=$(realpath "${srcdir:-.}")
builddir=$(realpath "${builddir:-.}")
# shellcheck source=tests/harness/tap.sh
. "$srcdir/tests/harness/tap.sh" || exit 99
# shellcheck source=tests/harness/units.sh
. "$srcdir/tests/harness/units.sh" || exit 99

dir=$(mktemp -d "${TMPDIR:-/tmp}/neuron-collectd-units.XXXXXX") || exit 99
trap 'rm -rf "$dir"' EXIT
root=$dir/root
unit=$dir/neuron-collectd.service
mkdir -p "$root/usr/sbin" "$root/bin" "$root/lib/systemd" "$root/etc/systemd/system"

# As make installs it with --prefix=/usr --sysconfdir=/etc.
sed -e 's|@sbindir[@]|/usr/sbin|g' -e 's|@sysconfdir[@]|/etc|g' \
	"$srcdir/systemd/neuron-collectd.service.in" >"$unit"
probe=$dir/neuron-collectd-probe@.service
sed -e 's|@sbindir[@]|/usr/sbin|g' "$srcdir/systemd/neuron-collectd-probe@.service.in" >"$probe"
! grep -q '@[a-z]*@' "$unit" "$probe" "$builddir/systemd/neuron-collectd.service" >"$dir/out" 2>&1
ok "no placeholder is left in the unit"

if can_analyze; then
	# 0.2 of it is capset(2), by which other programs start without capabilities, 0.1 that the /proc
	# of other users is visible (ProtectProc=default), from which the container of a hook is read.
	judge_exposure "$unit" 25 "the daemon"
	judge_exposure "$probe" 30 "a probe"

	printf '#!/bin/sh\n' >"$root/usr/sbin/neuron-collectd"
	printf '#!/bin/sh\n' >"$root/bin/kill"
	chmod 755 "$root/usr/sbin/neuron-collectd" "$root/bin/kill"
	cp -r /lib/systemd/system "$root/lib/systemd/"
	cp "$unit" "$probe" "$srcdir"/systemd/neuron-collectd*.socket "$root/etc/systemd/system/"
	verify_is_silent "$root" neuron-collectd.service \
		neuron-collectd-hook.socket neuron-collectd-probe.socket
	sed -i 's/^WatchdogSec=/WatchdogSecs=/' "$root/etc/systemd/system/neuron-collectd.service"
	systemd-analyze --root="$root" --man=no --recursive-errors=no verify neuron-collectd.service \
		>"$dir/out" 2>&1
	grep -q WatchdogSecs "$dir/out"
	ok "systemd-analyze verify names a misspelt key"
else
	skip "exposure and verify" "systemd-analyze knows no --offline (before systemd 250)"
fi

allowed='CAP_DAC_READ_SEARCH CAP_FOWNER CAP_LEASE'
[ "$(sed -n 's/^CapabilityBoundingSet=//p' "$unit")" = "$allowed" ] &&
	[ "$(sed -n 's/^AmbientCapabilities=//p' "$unit")" = "$allowed" ]
ok "the unit has three capabilities and no other"
! grep -Eq -e '^(PrivateTmp|ProtectHome|RestrictSUIDSGID|DynamicUser|PrivateUsers)=' \
	-e '^ProtectSystem=strict|^ProcSubset=pid' "$unit"
ok "nothing is set that would hide /tmp, /home or /proc/pressure, or stop openat2"

allowed='CAP_SYS_PTRACE CAP_DAC_READ_SEARCH CAP_SYSLOG'
[ "$(sed -n 's/^CapabilityBoundingSet=//p' "$probe")" = "$allowed" ] &&
	[ "$(sed -n 's/^AmbientCapabilities=//p' "$probe")" = "$allowed" ] &&
	[ "$(grep '^DeviceAllow=' "$probe" | tr '\n' ' ')" = \
		'DeviceAllow=char-neuron rw DeviceAllow=/dev/kmsg r ' ] && grep -q '^PrivateNetwork=yes' "$probe"
ok "a probe has three capabilities, two kinds of devices and no network"
probes=$srcdir/systemd/neuron-collectd-probe.socket
grep -q '^SocketMode=0600' "$probes" && grep -q '^SocketUser=neuron-collectd' "$probes" &&
	grep -q '^Accept=yes' "$probes"
ok "only the agent may ask for a probe"
hook=$srcdir/systemd/neuron-collectd-hook.socket
grep -q '^SocketMode=0666' "$hook" &&
	grep -q '^ListenSequentialPacket=/run/neuron-collectd/hook.sock' "$hook" &&
	grep -q '^Service=neuron-collectd.service' "$hook"
ok "every job may speak to the hook socket"

# Whether that lets the threads be idle is shown by test_systemd.sh; here, that it is not undone by
# a line that comes later.
[ "$(grep '^SystemCallFilter=' "$unit" | tail -n 1)" = \
	'SystemCallFilter=sched_setscheduler ioprio_set' ] &&
	! grep -Eq '^CPUSchedulingPolicy=|^CPUWeight=idle' "$unit"
ok "the workers may make themselves idle, and only they are"
[ "$(sed -n 's/^LimitNICE=+//p' "$unit")" = "$(sed -n 's/^Nice=//p' "$unit")" ]
ok "they may become normal again, and no more than that"
stop=$(sed -n 's/^TimeoutStopSec=\([0-9]*\)s$/\1/p' "$unit")
[ "${stop:-0}" -ge 15 ] && grep -q '^Type=notify' "$unit" && grep -q '^NotifyAccess=main' "$unit"
ok "a stop has three times the 5 s that it takes, and may ask for more"

if [ "$(id -u)" -eq 0 ] && command -v systemd-sysusers >/dev/null; then
	rm -rf "$root"
	mkdir -p "$root/etc" "$root/var/lib" "$root/run"
	systemd-sysusers --root="$root" "$srcdir/systemd/sysusers.d/neuron-collectd.conf" >"$dir/out" \
		2>&1 &&
		grep -q '^neuron-collectd:.*/usr/sbin/nologin$' "$root/etc/passwd" &&
			grep -q '^neuron-collectd:' "$root/etc/group"
	ok "sysusers makes the user and its group, without a shell"
	grep -q '^neuron-collectd:x\?!\?\*\?:733:733:' "$root/etc/passwd"
	ok "it has one number on all nodes"
	mkdir -p "$root/taken/etc" && echo 'other:x:733:733::/:/bin/sh' >"$root/taken/etc/passwd" &&
		systemd-sysusers --root="$root/taken" \
			"$srcdir/systemd/sysusers.d/neuron-collectd.conf" >"$dir/out" 2>&1 &&
		grep -q '^neuron-collectd:' "$root/taken/etc/passwd" &&
		! grep -q '^neuron-collectd:[^:]*:733:' "$root/taken/etc/passwd"
	ok "where that is taken it has another one"
	mkdir -p "$root/tmp/neuron-core-dump" && chmod 1777 "$root/tmp" &&
		chown 65534:65534 "$root/tmp/neuron-core-dump" # a user who was first
	systemd-tmpfiles --root="$root" --create "$srcdir/systemd/tmpfiles.d/neuron-collectd.conf" \
		>"$dir/out" 2>&1 &&
		[ "$(stat -c %a "$root/var/lib/neuron-collectd/mailbox")" = 1733 ] &&
		[ "$(stat -c %a "$root/var/lib/neuron-collectd")" = 711 ] &&
			[ "$(stat -c %a "$root/run/neuron-collectd")" = 755 ]
	ok "tmpfiles makes the directories with their modes"
	[ "$(stat -c %a:%u:%g "$root/tmp/neuron-core-dump")" = 1777:0:0 ] &&
		[ "$(stat -c %a "$root/tmp/.neuron-collectd")" = 700 ]
	ok "the directory of dumps is root's and sticky, whoever made it first"

	# tmpfiles' cleaning: an old file beside goes, an old pin stays. (--clean checks all times of a
	# file; birth and change time cannot be set, hence an age of zero.)
	mkdir -p "$root/tmp/.neuron-collectd/i-0a1b2c3d" "$root/tmp/dumps/.neuron-collectd/i-0a1b2c3d" \
		"$root/tmp/old"
	echo pin >"$root/tmp/.neuron-collectd/i-0a1b2c3d/member"
	echo pin >"$root/tmp/dumps/.neuron-collectd/i-0a1b2c3d/member"
	echo junk >"$root/tmp/old/file"
	printf 'd /tmp 1777 root root 0\n' >"$dir/clean.conf"
	systemd-tmpfiles --root="$root" --clean "$dir/clean.conf" \
		"$srcdir/systemd/tmpfiles.d/neuron-collectd.conf" >"$dir/out" 2>&1
	[ ! -e "$root/tmp/old/file" ] && [ -e "$root/tmp/.neuron-collectd/i-0a1b2c3d/member" ] &&
		[ -e "$root/tmp/dumps/.neuron-collectd/i-0a1b2c3d/member" ]
	ok "tmpfiles' cleaning of /tmp leaves the pins"
else
	skip "sysusers and tmpfiles" "not root, or no systemd-sysusers"
fi
tap_done
