#!/bin/bash
# A core that systemd-coredump has kept, delivered by the built daemon under real systemd
# (tests/harness/box): with its report, its process and its job. systemd-coredump is run by hand, as
# the kernel would: kernel.core_pattern is the whole machine's, and its package, which writes it, is
# only unpacked. TAP.
set -u
srcdir=$(realpath "${srcdir:-.}")
builddir=$(realpath "${builddir:-.}")
box=$srcdir/tests/harness/box
name=cores-$$
# shellcheck source=tests/harness/tap.sh
. "$srcdir/tests/harness/tap.sh" || exit 99
# shellcheck source=tests/harness/units.sh
. "$srcdir/tests/harness/units.sh" || exit 99

all_skipped() {
	echo "1..0 # SKIP $1"
	exit 0
}
[ "${NC_E2E:-}" != off ] || all_skipped "NC_E2E=off"
[ "$(id -u)" -eq 0 ] || all_skipped "needs root"
for program in mmdebstrap systemd-nspawn nsenter unshare python3 zstd apt-get dpkg-deb; do
	command -v "$program" >/dev/null || all_skipped "$program is not installed"
done
[ -x "$builddir/tests/collectors/crash/crasher" ] || all_skipped "crasher is not built"
! grep -q __asan_init "$builddir/neuron-collectd" ||
	all_skipped "a sanitizer and MemoryDenyWriteExecute= do not go together"

dir=$(mktemp -d)
export BOX_DIR=$dir/boxes
clean() {
	"$box" kill $name >/dev/null 2>&1
	"$box" remove $name >/dev/null 2>&1
	rm -rf "$dir"
}
trap clean EXIT
pattern=$(cat /proc/sys/kernel/core_pattern)
chmod 755 "$dir"
(cd "$dir" && apt-get download systemd-coredump) >"$dir/out" 2>&1 ||
	all_skipped "the package systemd-coredump cannot be had"
make_base || all_skipped "no base for a box can be made"
inside() { "$box" run $name "$@"; }
on_failure() { inside journalctl --no-pager -n 60 2>&1 | sed 's/^/# /'; }

upper=$BOX_DIR/$name/upper
mkdir -p "$upper/usr/lib/systemd/system/sockets.target.wants" "$upper/etc/systemd" "$dir/unpacked"
env -u MAKEFLAGS -u MAKELEVEL make -s -C "$builddir" install DESTDIR="$upper" >"$dir/out" 2>&1
ok "make install DESTDIR= works"
# Without its sysctl.d: what a box writes to kernel.core_pattern, it writes for all.
dpkg-deb -x "$dir"/systemd-coredump_*.deb "$dir/unpacked"
cp "$dir"/unpacked/*/systemd/systemd-coredump "$upper/usr/lib/systemd/" 2>/dev/null ||
	cp "$dir"/unpacked/usr/lib/systemd/systemd-coredump "$upper/usr/lib/systemd/"
find "$dir/unpacked" -name 'systemd-coredump*.s*' -path '*/system/systemd-*' \
	-exec cp {} "$upper/usr/lib/systemd/system/" \;
printf '[Coredump]\nStorage=external\nCompress=yes\n' >"$upper/etc/systemd/coredump.conf"
sysconfdir=$(make_variable sysconfdir)
config=$upper$sysconfdir/neuron-collectd/neuron-collectd.yaml
mkdir -p "${config%/*}"
cat >"$config" <<YAML
version: 1
node: {instance_id: i-0a1b2c3d4e5f60718}
sources:
  - {name: cores, kind: process-core, path: /var/lib/systemd/coredump, settle: 5s}
destinations:
  - {name: archive, type: volume, path: /srv/archive/%d-%c, min_free: 0}
YAML
python3 -c 'import shutil, sys
sys.path[:0] = sys.argv[1:3]
import cores
with cores.core_of(cores.CRASHER, "null", "2") as core:
    shutil.copy(core, sys.argv[3])' "$srcdir/tests/harness" "$srcdir/tests/collectors/crash" \
	"$upper/core" >"$dir/out" 2>&1
ok "a core is made"
# What the job has, and the node has not.
program=$builddir/tests/collectors/crash/crasher
mkdir -p "$upper/image${program%/*}" && cp "$program" "$upper/image$program"
"$box" start $name "$base" >"$dir/out" 2>&1
ok "the box boots"
[ "$(cat /proc/sys/kernel/core_pattern)" = "$pattern" ]
ok "the machine's kernel.core_pattern is as it was"
inside systemd-sysusers >/dev/null 2>&1
inside systemd-tmpfiles --create >/dev/null 2>&1
inside sh -c 'mkdir -p /var/lib/systemd/coredump /srv/archive
chown neuron-collectd: /srv/archive
systemctl start systemd-coredump.socket' >"$dir/out" 2>&1
ok "systemd-coredump.socket listens"
inside systemctl start neuron-collectd.service >"$dir/out" 2>&1
ok "the agent starts"
[ "$(inside stat -c '%a %U' /var/lib/systemd/.neuron-collectd)" = '700 neuron-collectd' ]
ok "the directory for links is beside the cores, and the agent's"

# shellcheck disable=SC2016  # is expanded in the box
inside sh -c 'systemd-run --unit=job --setenv=RANK=3 --setenv=LOCAL_RANK=3 --setenv=WORLD_SIZE=64 \
	--setenv=TORCHELASTIC_RUN_ID=run-7 --setenv=MY_SECRET=hidden --uid=nobody \
	-p AmbientCapabilities=CAP_SYS_CHROOT perl -e "chroot q(/image) or die; sleep 600"
pid=$(systemctl show --property=MainPID --value job)
while [ "$(readlink /proc/$pid/root)" = / ]; do sleep 0.1; done
/usr/lib/systemd/systemd-coredump $pid 0 0 11 $(date +%s) 18446744073709551615 host </core' \
	>"$dir/out" 2>&1
ok "systemd-coredump takes the core"
# await_manifest NAME: the path of the manifest, or nothing
await_manifest() {
	for _ in $(seq 300); do
		found=$(find "$("$box" root $name)/srv/archive" -name "$1-*.manifest.json" 2>/dev/null |
			head -n 1)
		[ -z "$found" ] || break
		sleep 0.2
	done
	echo "$found"
}
manifest=$(await_manifest process-core)
[ -n "$manifest" ]
ok "it is delivered"
report=$(await_manifest crash-report)
[ -n "$report" ]
ok "so is its report"
mkdir "$dir/report" && zstd -qdc "${report%.manifest.json}.tar.zst" | tar -xC "$dir/report"
cp "$manifest" "$dir/manifest.json" 2>/dev/null
mkdir "$dir/bundle" && zstd -qdc "${manifest%.manifest.json}.tar.zst" | tar -xC "$dir/bundle"
judge() { # NAME, Python with m: the manifest, r: the report, t: crash.md, d: where it was unpacked
	python3 -c "import glob, json, os, subprocess
d = '$dir/bundle'
m = json.load(open('$dir/manifest.json'))
r = json.load(open('$dir/report/crash.json'))
t = open('$dir/report/crash.md').read()
$2" >"$dir/out" 2>&1
	ok "$1"
	[ ! -s "$dir/out" ] || sed 's/^/# /' "$dir/out"
}
judge "the core is a member as it was compressed" "
kinds = [x['kind'] for x in m['members']]
assert kinds == ['elf-core'], kinds
core, = glob.glob(d + '/core.perl.0.*.zst')
plain = subprocess.run(['zstd', '-dc', core], capture_output=True, check=True).stdout
assert plain == open('$upper/core', 'rb').read()"
judge "the report names the job of the journal's entry" "
assert r['job']['source'] == 'torchrun' and r['job']['rank'] == 3, r
assert r['job']['environment']['RANK'] == '3', r"
judge "it is of the compressed core, or says that this cannot be read" "
assert 'signal' in r or 'zstd' in r['not_made'], r"
judge "a process of the job that still runs has its program, as the probe can see" "
found = {x['path']: (x['file'], x['found_in']) for x in r['modules']}
assert found['$program'][0] == 'verified', found
assert found['$program'][1].startswith('process '), found"
judge "nothing beyond the allow-list is in it" "
assert 'hidden' not in json.dumps(r) + t and 'MY_SECRET' not in json.dumps(r) + t"
inside sh -c 'cp /core /var/lib/systemd/coredump/.core.plain
mv /var/lib/systemd/coredump/.core.plain /var/lib/systemd/coredump/core.plain' >"$dir/out" 2>&1
find_plain() {
	grep -l '"core.plain"' "$("$box" root $name)"/srv/archive/*/*/*.manifest.json
}
until_true 60 find_plain
ok "a core that is not compressed is delivered"
manifest=$(find_plain)
rm -rf "$dir/bundle" && mkdir "$dir/bundle"
cp "$manifest" "$dir/manifest.json"
zstd -qdc "${manifest%.manifest.json}.tar.zst" | tar -xC "$dir/bundle"
find_report() {
	grep -l "$(basename "${manifest%.manifest.json}")" \
		"$("$box" root $name)"/srv/archive/*/*/crash-report-*.manifest.json
}
until_true 60 find_report
report=$(find_report)
rm -rf "$dir/report" && mkdir "$dir/report"
zstd -qdc "${report%.manifest.json}.tar.zst" | tar -xC "$dir/report"
judge "its report is made inside of the unit's sandbox, and the reader is confined" "
assert r.get('not_made') is None and r['signal']['name'] == 'SIGSEGV', r
assert r['confinement'] is None, r['confinement']
assert r['threads']['count'] == 3, r['threads']"
[ "$(cat /proc/sys/kernel/core_pattern)" = "$pattern" ]
ok "the machine's kernel.core_pattern is still as it was"
tap_done
