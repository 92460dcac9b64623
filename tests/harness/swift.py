"""OpenStack Swift with its s3api: a second, unrelated S3 server. It is strict where radosgw is lax
(region, order and numbers of parts) and has no conditional PUT (501). Five processes of this test
alone; ready in about 6 s.

Its files need user xattrs, so a temporary directory without them means that the tests are skipped.
"""
import os
import shutil

import s3tools
from agent import run, wait_for
from servers import LOOPBACK, Home, can_connect, free_port, listen_address
from tap import Skip

PROGRAMS = ("swift-proxy-server", "swift-account-server", "swift-container-server",
            "swift-object-server", "swift-ring-builder", "memcached")
STORES = ("account", "container", "object")
PIPELINE = ("catch_errors", "gatekeeper", "healthcheck", "cache", "listing_formats", "bulk",
            "s3api", "tempauth", "copy", "slo", "dlo", "proxy-server")

SWIFT_CONF = """[swift-hash]
swift_hash_path_prefix = of
swift_hash_path_suffix = tests
[storage-policy:0]
name = only
default = yes
"""
STORE_CONF = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
user = {user}
swift_dir = {dir}
devices = {dir}/devices
mount_check = false
disable_fallocate = true
fallocate_reserve = 0
workers = 0
log_level = WARNING
[pipeline:main]
pipeline = {name}-server
[app:{name}-server]
use = egg:swift#{name}
recon_cache_path = {dir}/cache
"""
PROXY_CONF = """[DEFAULT]
bind_ip = {listen}
bind_port = {port}
user = {user}
swift_dir = {dir}
workers = 0
log_level = WARNING
[pipeline:main]
pipeline = {pipeline}
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
allow_account_management = true
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{cache_port}
[filter:s3api]
use = egg:swift#s3api
location = {region}
max_upload_part_num = 10000
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = {secret} .admin .reseller_admin
[filter:slo]
use = egg:swift#slo
max_manifest_segments = 10000
max_manifest_size = 8388608
"""
PLAIN_FILTERS = ("catch_errors", "gatekeeper", "healthcheck", "listing_formats", "bulk", "copy",
                 "dlo")


def need_swift():
    missing = [p for p in PROGRAMS if not shutil.which(p)]
    if missing:
        raise Skip(f"swift is not installed ({', '.join(missing)} missing; packages swift-proxy "
                   "swift-account swift-container swift-object memcached)")


class Swift:
    access_key = "test:tester"
    secret_key = "canary-secret-of-swift"
    ca_file = None

    def __init__(self, region="us-east-1", address=LOOPBACK):
        need_swift()
        self.region, self.address = region, address
        self.home = Home("swift")
        try:
            os.setxattr(self.home.dir, "user.neuron", b"1")
        except OSError as error:
            self.home.close()
            raise Skip(f"no user xattrs in the temporary directory: {error.strerror}") from error
        self.port = free_port(5)
        self.endpoint = f"http://{address}:{self.port}"
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _ring(self, *arguments):
        result = run("swift-ring-builder", *arguments, cwd=self.home.dir)
        assert result.returncode == 0, result.stdout + result.stderr

    def _start(self):
        home, user = self.home, run("id", "-un").stdout.strip()
        for name in ("devices/disk", "cache"):
            os.makedirs(home.path(name))
        home.write("swift.conf", SWIFT_CONF)
        for i, name in enumerate(STORES, 1):
            self._ring(f"{name}.builder", "create", "4", "1", "1")
            self._ring(f"{name}.builder", "add", f"r1z1-127.0.0.1:{self.port + i}/disk", "1")
            self._ring(f"{name}.builder", "rebalance")
            home.write(f"{name}.conf", STORE_CONF.format(name=name, port=self.port + i, user=user,
                                                         dir=home.dir))
        filters = "".join(f"[filter:{name}]\nuse = egg:swift#{name}\n" for name in PLAIN_FILTERS)
        home.write("proxy.conf", filters + PROXY_CONF.format(
            listen=listen_address(self.address), port=self.port, cache_port=self.port + 4,
            user=user, dir=home.dir, region=self.region, secret=self.secret_key,
            pipeline=" ".join(PIPELINE)))
        home.spawn("memcached", "memcached", "-u", user, "-l", "127.0.0.1", "-p",
                   str(self.port + 4), "-U", "0", "-m", "16")
        for name in (*STORES, "proxy"):
            home.spawn(name, f"swift-{name}-server", home.path(f"{name}.conf"))
        for i, name in enumerate(("proxy", *STORES, "memcached")):
            home.wait_until(name, f"swift's {name} listens",
                            lambda i=i: can_connect("127.0.0.1", self.port + i))
        wait_for("swift says that it is well",
                 lambda: run("curl", "-sf", self.endpoint + "/healthcheck").stdout == "OK")

    def with_region(self, region):
        return s3tools.Endpoint(self.endpoint, self.access_key, self.secret_key, region)

    def close(self):
        self.home.close()


_shared = {}


def shared(address=LOOPBACK):
    if address not in _shared:
        _shared[address] = Swift(address=address)
    return _shared[address]
