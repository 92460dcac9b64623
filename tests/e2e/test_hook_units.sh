#!/bin/bash
# The units that put the hook back: judged by systemd's own tools, then run by real systemd in a box (tests/harness/box), where a package's
# upgrade replaces the hook. Needs no daemon. TAP.
set -u
srcdir=$(realpath "${srcdir:-.}")
builddir=$(realpath "${builddir:-.}")
box=$srcdir/tests/harness/box
name=hook-$$
# shellcheck source=tests/harness/tap.sh
. "$srcdir/tests/harness/tap.sh" || exit 99
# shellcheck source=tests/harness/units.sh
. "$srcdir/tests/harness/units.sh" || exit 99
dir=$(mktemp -d "${TMPDIR:-/tmp}/neuron-collectd-hook-units.XXXXXX") || exit 99
export BOX_DIR=$dir/boxes
booted=
clean() {
	if [ -n "$booted" ]; then
		"$box" kill $name >/dev/null 2>&1
		"$box" remove $name >/dev/null 2>&1
	fi
	rm -rf "$dir"
}
trap clean EXIT

on_failure() {
	[ -z "$booted" ] || inside journalctl --no-pager -o short-precise -n 30 -u 'neuron-collectd-hook-keep.*' 2>&1 | sed 's/^/# /'
}
no_box() { # REASON
	skip_rest "a box with real systemd" "$1"
}

# ---- on paper ----
root=$dir/root
unit=$dir/neuron-collectd-hook-keep.service
path_unit=$srcdir/systemd/neuron-collectd-hook-keep.path
mkdir -p "$root/usr/bin" "$root/lib/systemd" "$root/etc/systemd/system"
sed -e 's|@bindir[@]|/usr/bin|g' "$srcdir/systemd/neuron-collectd-hook-keep.service.in" >"$unit"
! grep -q '@[a-z]*@' "$unit" "$builddir/systemd/neuron-collectd-hook-keep.service" >"$dir/out" 2>&1
ok "no placeholder is left in the unit"
[ "$(sed -n 's/^PathChanged=//p' "$path_unit")" = /opt/aws/neuron/bin/neuron-dump ] && [ "$(sed -n 's/^ReadWritePaths=-//p' "$unit")" = /opt/aws/neuron/bin ]
ok "what is watched is what the runtime calls, and nothing else can be written"
if can_analyze; then
	judge_exposure "$unit" 22 "the unit"
	printf '#!/bin/sh\n' >"$root/usr/bin/neuron-collect"
	chmod 755 "$root/usr/bin/neuron-collect"
	cp -r /lib/systemd/system "$root/lib/systemd/"
	cp "$unit" "$path_unit" "$root/etc/systemd/system/"
	verify_is_silent "$root" neuron-collectd-hook-keep.service neuron-collectd-hook-keep.path
else
	skip "exposure and verify" "systemd-analyze knows no --offline (before systemd 250)"
fi

# ---- for real ----
[ "${NC_E2E:-}" != off ] || no_box "NC_E2E=off"
[ "$(id -u)" -eq 0 ] || no_box "needs root"
for program in mmdebstrap systemd-nspawn nsenter unshare; do
	command -v "$program" >/dev/null || no_box "$program is not installed"
done
[ -x "$builddir/neuron-collect" ] || no_box "neuron-collect is not built"
! grep -q __asan_init "$builddir/neuron-collect" || no_box "a sanitizer and MemoryDenyWriteExecute= do not go together"
make_base || no_box "mmdebstrap could not make a root (no network?)"

bindir=$(make_variable bindir)
ours=$(make_variable libexecdir)/neuron-collectd/neuron-dump
upper=$BOX_DIR/$name/upper
place=/opt/aws/neuron/bin
mkdir -p "$upper$bindir" "$upper${ours%/*}" "$upper$place" "$upper/etc/systemd/system"
cp "$builddir/neuron-collect" "$upper$bindir/"
cp "$builddir/systemd/neuron-collectd-hook-keep.service" "$path_unit" "$upper/etc/systemd/system/"
if [ -x "$builddir/neuron-dump" ]; then
	cp "$builddir/neuron-dump" "$upper$ours"
else
	printf '\177ELF neuron-collectd neuron-dump 9.8.7\0' >"$upper$ours"
	chmod 755 "$upper$ours"
fi
vendor() { # VERSION: as a package manager does it
	echo "vendor's $1" >"$root$place/neuron-dump.dpkg-new"
	chmod 755 "$root$place/neuron-dump.dpkg-new"
	mv "$root$place/neuron-dump.dpkg-new" "$root$place/neuron-dump"
}
inside() { "$box" run $name "$@"; }
"$box" start $name "$base" >"$dir/out" 2>&1 || {
	sed 's/^/# /' "$dir/out"
	no_box "systemd does not come up in a box here"
}
booted=yes
root=$("$box" root $name) && [ -d "$root" ] || exit 99 # never this machine's own
is_ours() { cmp "$root$ours" "$root$place/neuron-dump" && [ "$(stat -c %a "$root$place/neuron-dump")" = 755 ]; }
vendor_kept() { grep -q "$1" "$root$place/neuron-dump.vendor"; }
at_rest() { [ "$(inside systemctl show --value -p ActiveState neuron-collectd-hook-keep.service)" = inactive ]; }

vendor 1.0
inside systemctl enable --now neuron-collectd-hook-keep.path >"$dir/out" 2>&1 && [ "$(inside systemctl is-active neuron-collectd-hook-keep.path)" = active ]
ok "the path unit can be enabled and started"
inside systemctl start neuron-collectd-hook-keep.service >"$dir/out" 2>&1 && grep -q "vendor's 1.0" "$root$place/neuron-dump"
ok "where the hook was not installed the vendor's is left alone"
inside "$bindir/neuron-collect" hook install --chain >"$dir/out" 2>&1 && is_ours && vendor_kept 1.0
ok "the hook is installed"
until_true 20 at_rest
vendor 2.0
until_true 10 is_ours && vendor_kept 2.0
ok "a package's upgrade is undone, and the newer vendor's file is kept"
until_true 20 at_rest
for version in 3.0 3.1 3.2 3.3 3.4 3.5 3.6 3.7; do vendor $version; done
until_true 10 is_ours && vendor_kept 3.7 && [ "$(inside systemctl is-active neuron-collectd-hook-keep.path)" = active ]
ok "many upgrades in a row do not wear it out"
until_true 20 at_rest
rm "$root$place/neuron-dump"
until_true 10 is_ours
ok "a hook that was removed with its package is put back"
until_true 20 at_rest
last_start() { inside systemctl show --value -p ExecMainStartTimestampMonotonic neuron-collectd-hook-keep.service; }
started=$(last_start)
for _ in 1 2 3 4 5; do
	sleep 0.1
	inside cat $place/neuron-dump >/dev/null
done
is_ours && [ "${started:-0}" -gt 0 ] && [ "$(last_start)" = "$started" ]
ok "it does not set itself off for ever, and to run the hook does not set it off"
inside systemctl stop neuron-collectd-hook-keep.path
vendor 4.0
inside systemctl start neuron-collectd-hook-keep.service >"$dir/out" 2>&1 && is_ours && vendor_kept 4.0
ok "what was changed while nobody watched is put right at the next boot"
[ "$(inside systemctl is-enabled neuron-collectd-hook-keep.service)" = enabled ]
ok "for that, the service is enabled with the path unit"
inside systemctl start neuron-collectd-hook-keep.path
inside chown -R 4711:4711 $place
vendor 5.0
until_true 10 is_ours && vendor_kept 5.0
ok "a directory of another user's is no obstacle"
inside "$bindir/neuron-collect" hook remove >"$dir/out" 2>&1
until_true 20 at_rest
grep -q "vendor's 5.0" "$root$place/neuron-dump" && [ "$(inside ls -A $place)" = neuron-dump ]
ok "what is removed stays removed, though the unit watches"
! inside journalctl --no-pager -k -b 2>/dev/null | grep -q 'neuron-collect.*SECCOMP'
ok "nothing ran into the system call filter"
tap_done
