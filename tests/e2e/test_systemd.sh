#!/bin/bash
# The built daemon, installed and run by real systemd as its own user in its own sandbox
# (tests/harness/box). TAP.
set -u
srcdir=$(realpath "${srcdir:-.}")
builddir=$(realpath "${builddir:-.}")
box=$srcdir/tests/harness/box
make_dump=$srcdir/tests/harness/make_dump.py
name=neuron-$$
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
for program in mmdebstrap systemd-nspawn nsenter unshare curl python3; do
	command -v "$program" >/dev/null || all_skipped "$program is not installed"
done
[ -x "$builddir/neuron-collectd" ] || all_skipped "neuron-collectd is not built"
! grep -q __asan_init "$builddir/neuron-collectd" ||
	all_skipped "a sanitizer and MemoryDenyWriteExecute= do not go together"

dir=$(mktemp -d)
make_base || {
	tail -n 40 "$dir/out" | sed 's/^/# /'
	unreachable=$(grep -Em1 'failure resolving|(Could not|Unable to) connect|timed out' "$dir/out")
	rm -rf "$dir"
	[ -z "$unreachable" ] || all_skipped "the mirror cannot be reached"
	exit 99
}
export BOX_DIR=$dir/boxes
clean() {
	"$box" kill $name >/dev/null 2>&1
	"$box" remove $name >/dev/null 2>&1
	rm -rf "$dir"
}
trap clean EXIT

inside() { "$box" run $name "$@"; }
# which comes there a moment later
in_journal() {
	inside journalctl --no-pager -u neuron-collectd | grep -q "$1"
}
property() { inside systemctl show --value -p "$1" neuron-collectd.service; }
on_failure() {
	inside journalctl --no-pager -o short-precise -n 40 -u 'neuron-collectd*' 2>&1 | sed 's/^/# /'
}

# What a package would install, with the paths this build was configured for.
upper=$BOX_DIR/$name/upper
mkdir -p "$upper"
env -u MAKEFLAGS -u MAKELEVEL make -s -C "$builddir" install DESTDIR="$upper" >"$dir/out" 2>&1
ok "make install DESTDIR= works"
sysconfdir=$(make_variable sysconfdir)
bindir=$(make_variable bindir)
config=$upper$sysconfdir/neuron-collectd/neuron-collectd.yaml
mkdir -p "${config%/*}" "$upper/etc/systemd/system/neuron-collectd.service.d" \
	"$upper/etc/sysusers.d"
echo 'g agents 4242' >"$upper/etc/sysusers.d/agents.conf"
cat >"$config" <<YAML
version: 1
node:
  instance_id: i-0a1b2c3d4e5f60718
sources:
  - name: core-dumps
    kind: neuron-core-dump
    path: /tmp/neuron-core-dump/dt-%d-cid-%c
    settle: 500ms
destinations:
  - name: archive
    type: volume
    path: /srv/archive/%d-%c
    group: "4242"
    mode: "3770"
    min_free: 0
YAML
# The test cannot wait 30 s for a watchdog. The group is docs/OPERATIONS.md's for many nodes.
printf '[Service]\nWatchdogSec=2s\nRestartSec=100ms\nSupplementaryGroups=agents\n' \
	>"$upper/etc/systemd/system/neuron-collectd.service.d/test.conf"

"$box" start $name "$base" >"$dir/out" 2>&1 || {
	sed 's/^/# /' "$dir/out"
	skip_rest "the rest" "systemd does not come up in a box here"
}
root=$("$box" root $name) && [ -d "$root" ] || exit 99 # never this machine's own
sock=$root/run/neuron-collectd/api.sock
api() { curl -sS --fail --max-time 10 --unix-socket "$sock" "http://localhost$1"; }
collect() { inside "$bindir/neuron-collect" "$@"; }

{ inside systemd-sysusers && inside systemd-tmpfiles --create &&
	inside systemctl daemon-reload; } >"$dir/out" 2>&1
ok "sysusers and tmpfiles of the package are carried out"
inside install -d -o neuron-collectd -g neuron-collectd -m 0750 /srv/archive
inside systemctl enable --now neuron-collectd.service >"$dir/out" 2>&1
ok "the service starts and says READY=1"
[ "$(property ActiveState)" = active ]
ok "the service is active"
[ "$(inside systemctl is-active neuron-collectd-hook.socket)" = active ] &&
	[ "$(inside stat -c '%a %U' /run/neuron-collectd/hook.sock)" = "666 neuron-collectd" ] &&
	[ "$(inside stat -c '%a %U' /var/lib/neuron-collectd/mailbox)" = "1733 neuron-collectd" ] &&
	api /v1/status |
		python3 -c 'import json, sys; sys.exit(json.load(sys.stdin)["hook"]["trouble"] is not None)'
ok "every job may speak to the hook socket that systemd hands over, and leave a note"
pid=$(property MainPID)
inside cat "/proc/$pid/status" >"$dir/out"
# CAP_DAC_READ_SEARCH is bit 2, CAP_FOWNER 3, CAP_LEASE 28.
grep -q '^CapEff:.*000000001000000c$' "$dir/out" &&
	grep -q '^CapBnd:.*000000001000000c$' "$dir/out" && grep -q '^NoNewPrivs:.*1$' "$dir/out" &&
	! grep -qE '^Uid:[[:space:]]+0' "$dir/out"
ok "it runs as its own user with three capabilities and no way to more"
[ "$(inside stat -c '%a %U %G' /run/neuron-collectd/api.sock)" = \
	"660 neuron-collectd neuron-collectd" ] && api /healthz >/dev/null
ok "the API answers on its socket, for its group"

unit=$(python3 "$make_dump" dump "$root/tmp/neuron-core-dump" --size 4MiB --owner 1000 --mode 600)
discovers() { api /v1/status | grep -q '"discovered": *[1-9]'; }
until_true 10 discovers
ok "a dump of another user, mode 0600, is seen"
collect wait --all --timeout 30s >"$dir/out" 2>&1
ok "it is delivered"
mkdir "$dir/x" &&
	tar --zstd -C "$dir/x" -xf "$root"/srv/archive/*/i-0a1b2c3d4e5f60718/neuron-core-dump-*.tar.zst &&
	diff -r "$unit" "$dir/x" >"$dir/out"
ok "what arrived is what the job wrote, bit for bit"
[ "$(inside stat -c '%a %U %g' /srv/archive/20260527-051233-d99e36ea74c263ca)" = \
	"3770 neuron-collectd 4242" ]
ok "the volume's directories belong to the agent and to the group that shares them"
! inside find /tmp -path '*/.neuron-collectd/*' -type f | grep -q .
ok "no pin is left"

# By their names, which their pools gave them: those that look are needed at once, those that read,
# compress and write can wait.
priorities() { # for each thread: its name, scheduling policy, class of I/O
	pid=$(property MainPID)
	inside sh -c "cd /proc/$pid/task && for t in *; do
		echo \"\$(cat \$t/comm) \$(chrt -p \$t | sed -n 's/.*policy: //p')\" \
			\"\$(ionice -p \$t | sed 's/:.*//')\"
	done"
}
priorities >"$dir/out" 2>&1
grep -qx 'nc-ship SCHED_IDLE idle' "$dir/out" && grep -qx 'nc-zstd SCHED_IDLE idle' "$dir/out"
ok "the threads that do the work are idle ones, in the unit's sandbox"
[ "$(grep -vc '^nc-\(ship\|zstd\) ' "$dir/out")" -ge 1 ] &&
	! grep -v '^nc-\(ship\|zstd\) ' "$dir/out" | grep -v ' SCHED_OTHER best-effort$'
ok "the main thread and those that look are not"

# While it settles, the links that hold the evidence are there, and only the agent can look at them.
inside sed -i 's/settle: .*/settle: 20m/' "$sysconfdir/neuron-collectd/neuron-collectd.yaml"
inside systemctl reload neuron-collectd.service >"$dir/out" 2>&1
ok "systemctl reload with a good file succeeds"
unit=$(python3 "$make_dump" dump "$root/tmp/neuron-core-dump" --size 1MiB --owner 1000 --mode 600 \
	--cluster-id 00000000000000bb --pid 77)
held() { inside find /tmp/.neuron-collectd -type f -links 2 | grep -q nd0-nc3; }
until_true 10 held
ok "another user's files are held by hard links while they settle"
[ "$(inside stat -c '%a %U' /tmp/.neuron-collectd/i-0a1b2c3d4e5f60718)" = "700 neuron-collectd" ]
ok "the links are out of everybody's reach"
rm -rf "$unit"
collect flush >"$dir/out" 2>&1 && collect wait --all --timeout 30s >>"$dir/out" 2>&1 &&
	[ "$(inside find /srv/archive -name '*.manifest.json' | wc -l)" -eq 2 ]
ok "rm -rf by its owner does not lose it"

before=$(property MainPID)
inside sh -c "echo 'no_such_key: 1' >>$sysconfdir/neuron-collectd/neuron-collectd.yaml"
! inside systemctl reload neuron-collectd.service >"$dir/out" 2>&1
ok "systemctl reload with a faulty file fails"
has_error() { api /v1/status | grep -q "\"last_error\": *\"[^\"]*$1"; }
until_true 10 has_error no_such_key
ok "the status names the fault"
inside mv "$sysconfdir/neuron-collectd/neuron-collectd.yaml" /tmp/aside
! inside systemctl reload neuron-collectd.service >"$dir/out" 2>&1 &&
	until_true 10 has_error 'No such file'
ok "systemctl reload without the file fails, and the status says why"
inside mv /tmp/aside "$sysconfdir/neuron-collectd/neuron-collectd.yaml"
until_true 10 in_journal no_such_key && [ "$(property MainPID)" = "$before" ] &&
	[ "$(property ActiveState)" = active ] && api /healthz >/dev/null
ok "the journal says why, and the agent goes on"
inside sed -i -e '/no_such_key/d' -e 's/settle: .*/settle: 500ms/' \
	"$sysconfdir/neuron-collectd/neuron-collectd.yaml"
inside systemctl reload neuron-collectd.service >"$dir/out" 2>&1
is_corrected() { ! has_error ''; }
until_true 10 is_corrected
ok "the corrected file is in force, and the status has no fault"

changed_pid() {
	[ "$(property MainPID)" != "$before" ] && [ "$(property MainPID)" != 0 ] &&
		[ "$(property ActiveState)" = active ]
}
before=$(property MainPID)
inside kill -STOP "$before"
until_true 20 changed_pid
ok "an agent that hangs is killed by the watchdog and started again"
before=$(property MainPID)
inside kill -KILL "$before"
until_true 20 changed_pid && [ "$(property NRestarts)" -ge 2 ]
ok "kill -9 starts it again"
until_true 10 api /healthz && collect list --state delivered >"$dir/out" 2>&1 &&
	[ "$(grep -c neuron-core-dump- "$dir/out")" -eq 2 ]
ok "it remembers what it delivered, and nothing is delivered twice"

# The moment of a failure: a job of another user runs the hook, the agent asks systemd for a probe,
# and that one may look at the job.
[ "$(inside systemctl is-active neuron-collectd-probe.socket)" = active ] &&
	[ "$(inside stat -c '%a %U' /run/neuron-collectd/probe.sock)" = "600 neuron-collectd" ]
ok "the agent alone may ask for a probe"
watching() {
	inside systemctl list-units --plain --no-legend --state=running 'neuron-collectd-probe@*' |
		grep -q neuron-collectd-probe@
}
until_true 10 watching
probe=$(inside systemctl list-units --plain --no-legend --state=running 'neuron-collectd-probe@*' |
	awk 'END { print $1 }')
probe_pid=$(inside systemctl show --value -p MainPID "$probe")
inside cat "/proc/$probe_pid/status" >"$dir/out" 2>&1
# CAP_DAC_READ_SEARCH is bit 2, CAP_SYS_PTRACE 19, CAP_SYSLOG 34.
grep -q '^CapEff:.*0000000400080004$' "$dir/out" &&
	grep -q '^CapBnd:.*0000000400080004$' "$dir/out" && grep -q '^NoNewPrivs:.*1$' "$dir/out" &&
	! grep -qE '^Uid:[[:space:]]+0' "$dir/out" && ! inside pgrep -P "$(property MainPID)" >>"$dir/out"
ok "systemd starts the probe that watches, with its own three capabilities; the agent starts none"
hook=$(make_variable libexecdir)/neuron-collectd/neuron-dump
dump=/tmp/neuron-core-dump/dt-20260527-051500-cid-00000000000000cc
inside chmod 1777 /tmp/neuron-core-dump
# A box has no kernel log of its own; this one's can be read with CAP_SYSLOG alone, and nobody may
# write to it.
inside mknod -m 0400 /dev/kmsg c 1 11 2>/dev/null
kmsg=no
inside timeout 5 dd if=/dev/kmsg of=/dev/null bs=8192 count=1 iflag=nonblock 2>/dev/null && kmsg=yes
cat >"$root/tmp/job" <<JOB
mkdir -p $dump && echo a log >$dump/i-0a1b2c3d4e5f60718-nrt-pid-\$\$.log && echo \$\$ >/tmp/job.pid
$hook --pid \$\$ --tid \$\$ --date-time 20260527-051500 --cluster-id 00000000000000cc \\
	--error-code 1200 --error-location nrt_execute --local-output-dir $dump
echo \$? >/tmp/job.hook
sleep 10 # it is looked at while it lives
JOB
inside setpriv --reuid 1000 --regid 1000 --clear-groups env -i PATH=/usr/bin:/bin RANK=3 \
	WORLD_SIZE=8 LOCAL_RANK=3 TORCHELASTIC_RUN_ID=run-7 \
	HF_TOKEN=hf_PLANTEDPLANTEDPLANTED sh /tmp/job >"$dir/out" 2>&1
[ "$(inside cat /tmp/job.hook)" = 0 ] && until_true 10 in_journal "a hook of uid 1000 reported"
ok "a note of an unprivileged user's hook is accepted"
arrived() {
	inside find /srv/archive/20260527-051500-00000000000000cc -name '*.manifest.json' | grep -q .
}
until_true 60 arrived
# The snapshot is a bundle of its own: when the process has ended, 30 s after its start at the
# earliest.
snapshot_arrived() {
	inside find /srv/archive/20260527-051500-00000000000000cc -name 'snapshot-*.manifest.json' |
		grep -q .
}
until_true 120 snapshot_arrived
collect wait --all --timeout 60s >"$dir/out" 2>&1
mkdir "$dir/failure"
for bundle in "$root"/srv/archive/20260527-051500-00000000000000cc/*/*.tar.zst; do
	tar --zstd -C "$dir/failure" -xf "$bundle"
done >"$dir/out" 2>&1
python3 - "$dir/failure/snapshot.json" "$(cat "$root/tmp/job.pid")" $kmsg \
	>"$dir/out" 2>&1 <<'PYTHON'
import json, sys
text = open(sys.argv[1], encoding="utf-8").read()
d = json.loads(text)
sections = {s["name"]: s for s in d["sections"]}
print({n: (s["state"], s["detail"]) for n, s in sections.items()})
assert {"neuron_sysfs", "neuron_device", "kmsg", "process", "jobs", "packages", "process_packages",
        "runtime_log", "commands"} == set(sections)
assert [p["pid"] for p in d["processes"]] == [int(sys.argv[2])], d["processes"]
for name in ("neuron_sysfs", "process", "jobs", "packages", "process_packages", "runtime_log"):
    assert sections[name]["state"] == "complete", (name, sections[name])
kmsg = sections["kmsg"]
assert kmsg["state"] == "complete" or sys.argv[3] == "no" and kmsg["detail"], kmsg
records = {r["about"]: r for r in sections["process"]["records"] if "about" in r}
print(records)
assert records["status"]["uid"] == 1000, records["status"]
assert records["environment"]["variables"]["RANK"] == "3", records["environment"]
assert records["place"]["exe"].endswith("sh"), records["place"]
assert records["maps"]["lines"] > 3, records["maps"]
assert "PLANTED" not in text
PYTHON
ok "the snapshot is in its bundle, and tells of the other user's process what may be told"

# The same in a container: a mount namespace with a /tmp of its own, which goes with the job.
cat >"$root/opt/job-in-container" <<JOB
mkdir -p ${dump%-*}-00000000000000dd && cd ${dump%-*}-00000000000000dd &&
	head -c 300000 /dev/urandom >i-0a1b2c3d4e5f60718-nd0-nc0-pid-\$\$-tid-1-lid-1
chmod 600 ./*
sha256sum ./* >/var/tmp/job.sums
$hook --pid \$\$ --tid \$\$ --date-time 20260527-051500 --cluster-id 00000000000000dd \\
	--error-code 1200 --error-location nrt_execute --local-output-dir \$PWD
echo \$? >/var/tmp/job.hook
JOB
inside unshare --mount sh -c 'mount -t tmpfs none /tmp && mkdir -m 1777 /tmp/neuron-core-dump &&
	exec setpriv --reuid 1000 --regid 1000 --clear-groups env -i PATH=/usr/bin:/bin RANK=4 \
		sh /opt/job-in-container' >"$dir/out" 2>&1
[ "$(inside cat /var/tmp/job.hook)" = 0 ] && ! inside test -e "${dump%-*}-00000000000000dd"
ok "a hook in a container is heard, and this machine does not see its dump"
unseen() {
	api /v1/status |
		python3 -c 'import json, sys; sys.exit(json.load(sys.stdin)["hook"]["unseen"] < 1)'
}
until_true 60 unseen
ok "it is counted as one that the agent cannot see"
! inside systemctl --failed --plain --no-legend | grep -q neuron-collectd &&
	! inside journalctl --no-pager -u 'neuron-collectd*' |
		grep -E 'SECCOMP|SIGSYS|status=31/' >"$dir/out"
ok "no unit has failed, and no probe was killed for a system call"

inside systemctl stop neuron-collectd.service >"$dir/out" 2>&1 &&
	[ "$(property Result)" = success ] && [ "$(property ActiveState)" = inactive ]
ok "systemctl stop ends it in good order"
for _ in $(seq 40); do
	collect status
done >"$dir/out" 2>&1
[ "$(property ActiveState)" = inactive ]
ok "status, asked 40 times, does not start it again"
inside systemctl start neuron-collectd.service >"$dir/out" 2>&1 && until_true 10 api /healthz
ok "it starts when the operator says so"
inside systemctl stop neuron-collectd.service >"$dir/out" 2>&1
inside mv "$sysconfdir/neuron-collectd/neuron-collectd.yaml" /tmp/aside
inside systemctl start neuron-collectd.service >"$dir/out" 2>&1
[ "$(property ActiveState)" = inactive ] && [ "$(property ConditionResult)" = no ]
ok "without a configuration the service stays inactive"
inside mv /tmp/aside "$sysconfdir/neuron-collectd/neuron-collectd.yaml"
inside sh -c "echo 'no_such_key: 1' >>$sysconfdir/neuron-collectd/neuron-collectd.yaml"
inside systemctl restart neuron-collectd.service >"$dir/out" 2>&1
has_failed() { [ "$(property ActiveState)" = failed ]; }
until_true 10 has_failed && [ "$(property ExecMainStatus)" = 2 ]
ok "a start with a faulty file fails with 2 and is not tried again"
n_starts() {
	inside journalctl --no-pager -u neuron-collectd.service | grep -c 'no_such_key'
}
before=$(n_starts)
note() { # asks the socket for the agent, which cannot start
	inside setpriv --reuid 1000 --regid 1000 --clear-groups env -i PATH=/usr/bin:/bin \
		NEURON_COLLECTD_DEADLINE=2s "$hook" --pid 4711 --tid 4711 --date-time 20260527-051501 \
		--cluster-id 00000000000000ee --error-code 1200 --error-location nrt_execute \
		--local-output-dir /var/tmp
}
gave_up() {
	[ "$(inside systemctl show --value -p Result neuron-collectd-hook.socket)" = trigger-limit-hit ]
}
note >"$dir/out" 2>&1 && until_true 30 gave_up && [ $(($(n_starts) - before)) -le 10 ]
ok "a hook does not make systemd start it again and again"
note >"$dir/out" 2>&1 && inside find /var/lib/neuron-collectd/mailbox -type f | grep -q .
ok "its note waits in the mailbox"
inside sed -i '/no_such_key/d' "$sysconfdir/neuron-collectd/neuron-collectd.yaml"
inside systemctl start neuron-collectd.service >"$dir/out" 2>&1 && until_true 10 api /healthz &&
	[ "$(inside systemctl is-active neuron-collectd-hook.socket)" = active ] &&
	until_true 10 in_journal 'by mailbox): refused'
ok "with the corrected file, a start brings both back, and the note is read"
! inside journalctl --no-pager -k -b 2>/dev/null | grep -q 'neuron-collectd.*SECCOMP'
ok "nothing ran into the system call filter"
tap_done
