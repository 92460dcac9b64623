"""Collects for the oracle what lies at the destinations and in the state, by rclone and cp; reads
nothing of it."""
import json
import os
import shutil
import subprocess


class Bucket:
    """A bucket of its own, read past the proxy."""

    def __init__(self, server, name):
        self.name = name
        foreign = ("AWS_", "RCLONE_")
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)
                            and not k.lower().endswith("_proxy")} | {
            "RCLONE_CONFIG": "/dev/null", "RCLONE_CONFIG_T_TYPE": "s3",
            "RCLONE_CONFIG_T_PROVIDER": "Other", "RCLONE_CONFIG_T_ENV_AUTH": "false",
            "RCLONE_CONFIG_T_ENDPOINT": server.endpoint, "RCLONE_CONFIG_T_REGION": server.region,
            "LC_ALL": "C.UTF-8",
            "RCLONE_CONFIG_T_ACCESS_KEY_ID": server.access_key,
            "RCLONE_CONFIG_T_SECRET_ACCESS_KEY": server.secret_key}
        self._rclone("mkdir", f"t:{name}")

    def _rclone(self, *arguments):
        result = subprocess.run(["rclone", *arguments], env=self.environment,
                                stdin=subprocess.DEVNULL, capture_output=True, check=False,
                                text=True)
        if result.returncode != 0:
            raise AssertionError(f"rclone {' '.join(arguments)}: exit {result.returncode}: "
                                 f"{result.stderr}")
        return result.stdout

    def fetch(self, target):
        self._rclone("copy", "--transfers", "2", "--s3-no-check-bucket", "--checkers", "2",
                     f"t:{self.name}", target)

    def uploads(self):
        """Multipart uploads underway: [[key, id]]"""
        listed = json.loads(self._rclone("backend", "list-multipart-uploads", f"t:{self.name}"))
        return [[u["Key"], u["UploadId"]] for uploads in listed.values() for u in uploads or []]

    def empty(self):
        self._rclone("purge", f"t:{self.name}")


def gather(directory, record, bucket, volume, database, pins, samples):
    os.makedirs(os.path.join(directory, "at", "bucket"))
    bucket.fetch(os.path.join(directory, "at", "bucket"))
    # libfuse's own way to unlink a file that somebody has open; gone with the mount.
    shutil.copytree(volume, os.path.join(directory, "at", "volume"), symlinks=True,
                    ignore=shutil.ignore_patterns(".fuse_hidden*"))
    shutil.copy(samples, os.path.join(directory, "samples.jsonl"))
    for suffix in ("", "-wal", "-shm"):
        if os.path.exists(database + suffix):
            shutil.copy(database + suffix, os.path.join(directory, "state.db" + suffix))
    for name, value in (("record", record), ("uploads", {"bucket": bucket.uploads()}),
                        ("pins", pins)):
        with open(os.path.join(directory, name + ".json"), "w", encoding="utf-8") as f:
            json.dump(value, f)
