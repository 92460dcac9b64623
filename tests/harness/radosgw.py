"""Ceph's radosgw, a production S3 server, as three processes (mon, osd, radosgw) of this test
alone; ready in about 1.5 s.

Plain HTTP, and with `certificate` HTTPS beside it; memstore forgets when it ends, bluestore
survives kill -9. Nothing outside a temporary directory is touched, no configuration of the machine
is read. What this server does otherwise than AWS is told in docs/S3.md.
"""
import json
import os
import shutil
import signal
import socket
import struct
import uuid

import s3tools
from agent import run
from servers import LOOPBACK, Home, free_port, has_ipv6, listen_address, wait_for_port
from tap import Skip

PROGRAMS = ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "ceph", "monmaptool")
ACCESS_KEY = "TESTACCESSKEY0000001"
SECRET_KEY = "canary/secret+of=the~first*user/0000001"

# One OSD without copies, small pools, no authentication inside the cluster: it stands for a store,
# not for Ceph. The short periods make quotas, deletions and lifecycle rules act within a test.
CONF = """[global]
fsid = {fsid}
mon_initial_members = a
mon_host = [v2:127.0.0.1:{mon_port}/0]
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
auth_allow_insecure_global_id_reclaim = true
ms_mon_client_mode = crc
{fast}
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
run_dir = {dir}
admin_socket = {dir}/$name.asok
pid_file = {dir}/$name.pid
log_file = {dir}/$name.log
mon_cluster_log_file = {dir}/cluster.log
crash_dir = {dir}
log_to_stderr = false
err_to_stderr = true
debug_none = 0/0
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_pool_default_pgp_num = 4
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 1000
mon_data_avail_warn = 1
mon_data_avail_crit = 0
mon_osd_full_ratio = 0.98
mon_osd_nearfull_ratio = 0.95
mon_osd_backfillfull_ratio = 0.96
osd_failsafe_full_ratio = 0.99
paxos_propose_interval = 0.05
paxos_min_wait = 0.01
[mon.a]
mon_data = {dir}/mon
[osd.0]
osd_data = {dir}/osd
osd_objectstore = {store}
osd_memory_target = 1073741824
osd_class_default_list = *
osd_class_load_list = *
osd_fast_shutdown = true
bluestore_block_size = {bytes}
bluestore_block_create = true
bluestore_fsck_on_mount = false
memstore_device_bytes = {bytes}
[client]
rgw_data = {dir}/rgw
rgw_frontends = {frontends}
rgw_thread_pool_size = 64
rgw_dns_name = {dns_name}
rgw_s3_auth_use_sts = {sts}
rgw_sts_key = sixteen-letters-
rgw_crypt_require_ssl = false
rgw_crypt_s3_kms_backend = testing
rgw_crypt_s3_kms_encryption_keys = testkey-1=YmluCmJvb3N0CmJvb3N0LWJ1aWxkCmNlcGguY29uZgo=
rgw_enable_usage_log = false
rgw_enable_ops_log = false
rgw_bucket_quota_ttl = 1
rgw_user_quota_bucket_sync_interval = 1
rgw_user_quota_sync_interval = 1
rgw_gc_obj_min_wait = 1
rgw_gc_processor_period = 10
rgw_gc_processor_max_time = 10
rgw_dynamic_resharding = false
rgw_override_bucket_index_max_shards = 1
[client.rgw]
{options}
"""


def need_radosgw():
    missing = [p for p in PROGRAMS if not shutil.which(p)]
    if missing:
        raise Skip(f"radosgw is not installed ({', '.join(missing)} missing; packages ceph-mon "
                   "ceph-osd radosgw ceph-common)")


class Radosgw:
    """@param store        memstore, or bluestore when it is to survive its own end
    @param bytes_          how much it can hold
    @param certificate     a PEM file with certificate and key: HTTPS is served on a port of its own
        as well
    @param ca_file         the CA that signed it, for those who ask us
    @param sts             AssumeRole and session tokens; a wrong secret is then answered
        AccessDenied instead of SignatureDoesNotMatch
    @param options         lines of ceph.conf for the gateway, as a dict
    @param address         where `endpoint` is; other than loopback: it listens everywhere"""

    region = "us-east-1"
    access_key = ACCESS_KEY
    secret_key = SECRET_KEY
    ca_file = None  # `endpoint` is the plain one

    def __init__(self, store="memstore", bytes_=6 << 30, certificate=None, ca_file=None, sts=False,
                 dns_name="", fast=False, options=None, address=LOOPBACK):
        need_radosgw()
        self.home = Home("radosgw")
        self.store = store
        self.port = free_port()
        self.tls_port = free_port() if certificate else None
        self.ipv6 = has_ipv6()
        frontends = f"beast endpoint={listen_address(address)}:{self.port}"
        if self.ipv6:
            frontends += f" endpoint=[::1]:{self.port}"
        if certificate:
            frontends += f" ssl_endpoint=127.0.0.1:{self.tls_port} ssl_certificate={certificate}"
        self.endpoint = f"http://{address}:{self.port}"
        self.tls_ca_file = ca_file
        self.mon_port = free_port()
        self.fsid = str(uuid.uuid4())
        for name in ("mon", "osd", "rgw"):
            os.mkdir(self.home.path(name))
        self.conf = self.home.write("ceph.conf", CONF.format(
            dir=self.home.dir, fsid=self.fsid, mon_port=self.mon_port, store=store, bytes=bytes_,
            frontends=frontends, dns_name=dns_name, sts="true" if sts else "false",
            fast="ms_crc_data = false\nbluestore_csum_type = none" if fast else "",
            options="\n".join(f"{k} = {v}" for k, v in (options or {}).items())))
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("CEPH_")}
        self.environment |= {"CEPH_CONF": self.conf, "CEPH_ARGS": "--no-mon-config"}
        try:
            self._make()
            self.start_gateway()
        except BaseException:
            self.close()
            raise

    # --- other ways to the same server ---

    @property
    def tls(self):
        return s3tools.Endpoint(f"https://127.0.0.1:{self.tls_port}", self.access_key,
                                self.secret_key, self.region, self.tls_ca_file)

    @property
    def over_ipv6(self):
        if not self.ipv6:
            raise Skip("no IPv6 on loopback")
        return s3tools.Endpoint(f"http://[::1]:{self.port}", self.access_key, self.secret_key,
                                self.region)

    def as_user(self, access_key, secret_key):
        return s3tools.Endpoint(self.endpoint, access_key, secret_key, self.region)

    # --- life ---

    def _tool(self, *command, timeout=60):
        result = run(*command, timeout=timeout, env=self.environment, cwd=self.home.dir)
        assert result.returncode == 0, (f"{' '.join(command)}: exit {result.returncode}: "
                                        f"{result.stderr[-2000:]}{self.home.words('osd')}")
        return result.stdout

    def _make(self):
        monmap = self.home.path("monmap")
        self._tool("monmaptool", "--create", "--clobber", "--fsid", self.fsid, "--addv", "a",
                   f"[v2:127.0.0.1:{self.mon_port}/0]", monmap)
        self._tool("ceph-mon", "-c", self.conf, "-i", "a", "--mkfs", "--monmap", monmap)
        self._start_mon()
        osd = str(uuid.uuid4())
        number = self._tool("ceph", "-c", self.conf, "--connect-timeout", "20", "osd", "new",
                            osd).strip()
        assert number == "0", number
        self._tool("ceph-osd", "-c", self.conf, "-i", "0", "--osd-uuid", osd, "--mkfs")
        self._start_osd()
        self.make_user("test", self.access_key, self.secret_key,
                       caps="users=*;buckets=*;metadata=*;usage=*;zone=*;roles=*;user-policy=*")

    def _start_mon(self):
        self.home.spawn("mon", "ceph-mon", "-c", self.conf, "-i", "a", "-f",
                        environment=self.environment)

    def _start_osd(self):
        self.home.spawn("osd", "ceph-osd", "-c", self.conf, "-i", "0", "-f",
                        environment=self.environment)

    def start_gateway(self, **environment):
        """@param environment  on top of the usual one: s3tools.fake_time() for what is to be old"""
        self.home.spawn("rgw", "radosgw", "-c", self.conf, "-n", "client.rgw", "-f",
                        environment=self.environment | environment)
        wait_for_port(self.home, "rgw", self.port)

    def stop_gateway(self, number=signal.SIGKILL):
        """Connections are refused from here on; what is stored stays, also with memstore."""
        self.home.end("rgw", number)

    def kill(self):
        """kill -9 of all of it; start_again() needs bluestore."""
        for name in ("rgw", "osd", "mon"):
            self.home.end(name, signal.SIGKILL)

    def start_again(self):
        assert self.store == "bluestore", "memstore has forgotten everything"
        self._start_mon()
        self._start_osd()
        self.start_gateway()

    def hang(self):
        """Connections are accepted by the kernel, nobody answers."""
        self.home.send("rgw", signal.SIGSTOP)

    def unhang(self):
        self.home.send("rgw", signal.SIGCONT)

    def close(self):
        self.home.close()

    def cpu_seconds(self):
        """Of all three processes so far."""
        ticks = 0
        for process in self.home.processes.values():
            try:
                with open(f"/proc/{process.pid}/stat", encoding="ascii", errors="replace") as f:
                    fields = f.read().rsplit(")", 1)[1].split()
                ticks += int(fields[11]) + int(fields[12])
            except OSError:
                pass
        return ticks / os.sysconf("SC_CLK_TCK")

    # --- administration ---

    def admin(self, *arguments):
        return self._tool("radosgw-admin", "-c", self.conf, *arguments)

    def make_user(self, uid, access_key, secret_key, caps=None):
        """@return an Endpoint with that user's keys"""
        self.admin("user", "create", f"--uid={uid}", f"--display-name={uid}",
                   f"--access-key={access_key}", f"--secret-key={secret_key}",
                   *([f"--caps={caps}"] if caps else []))
        return self.as_user(access_key, secret_key)

    def add_key(self, uid, access_key, secret_key):
        self.admin("key", "create", f"--uid={uid}", "--key-type=s3", f"--access-key={access_key}",
                   f"--secret-key={secret_key}")
        return self.as_user(access_key, secret_key)

    def remove_key(self, uid, access_key):
        self.admin("key", "rm", f"--uid={uid}", "--key-type=s3", f"--access-key={access_key}")

    def set_quota(self, uid, max_bytes):
        """@param max_bytes  of all the user's buckets; None = no quota. Statistics lag by a second
        or two: an object too many may pass."""
        if max_bytes is not None:
            self.admin("quota", "set", "--quota-scope=user", f"--uid={uid}",
                       f"--max-size={max_bytes}")
        self.admin("quota", "enable" if max_bytes is not None else "disable", "--quota-scope=user",
                   f"--uid={uid}")

    def set_option(self, name, value):
        """Of the running gateway; rgw_max_concurrent_requests for example: what is above it gets
        503 SlowDown."""
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(20)
            s.connect(self.home.path("client.rgw.asok"))
            s.sendall(json.dumps({"prefix": "config set", "var": name,
                                  "val": [str(value)]}).encode() + b"\0")
            with s.makefile("rb") as f:
                answer = json.loads(f.read(struct.unpack(">I", f.read(4))[0]))
        assert "success" in answer, answer

    def make_role(self, name, actions, bucket="*"):
        """A role that the first user may assume and that may do `actions`. @return its ARN"""
        trust = {"Version": "2012-10-17",
                 "Statement": [{"Effect": "Allow",
                                "Principal": {"AWS": ["arn:aws:iam:::user/test"]},
                                                         "Action": ["sts:AssumeRole"]}]}
        policy = {"Version": "2012-10-17",
                  "Statement": [{"Effect": "Allow", "Action": actions, "Resource": [
                      f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"]}]}
        self.admin("role", "create", f"--role-name={name}", "--path=/",
                   f"--assume-role-policy-doc={json.dumps(trust)}")
        self.admin("role-policy", "put", f"--role-name={name}", "--policy-name=p",
                   f"--policy-doc={json.dumps(policy)}")
        return f"arn:aws:iam:::role/{name}"


_shared = {}


def shared(**options):
    """One server for all tests of a file, by its options; it ends with the process."""
    key = json.dumps(options, sort_keys=True)
    if key not in _shared:
        _shared[key] = Radosgw(**options)
    server = _shared[key]
    assert all(server.home.is_alive(name) for name in (
        "mon", "osd", "rgw")), "the shared server has ended: " + server.home.words("rgw")
    return server

