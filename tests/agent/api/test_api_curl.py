#!/usr/bin/env python3
"""The API over real sockets, asked with curl: what other programs see of it."""
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

SERVER = os.path.join(os.environ.get("builddir", "."), "tests/agent/api/api_server")
ID = "neuron-core-dump-20260527T052100-0000000000a"


class Api(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.mkdtemp(prefix="api-curl.")
        cls.socket = os.path.join(cls.dir, "api.sock")
        cls.server = subprocess.Popen([SERVER, cls.socket], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True)
        cls.port = int(cls.server.stdout.readline())

    @classmethod
    def tearDownClass(cls):
        cls.server.stdin.close()
        status = cls.server.wait(timeout=30)
        cls.server.stdout.close()
        shutil.rmtree(cls.dir)
        assert status == 0, f"api_server ended with {status}"

    def curl(self, path, *options, tcp=False):
        """Asks. Returns status, headers (lower case) and body."""
        where = [f"http://127.0.0.1:{self.port}{path}"] if tcp else ["--unix-socket", self.socket,
                                                                     f"http://localhost{path}"]
        done = subprocess.run(["curl", "-sS", "--max-time", "30", "--path-as-is", "-i", *options,
                               *where], capture_output=True, check=True)
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:])}
        return int(lines[0].split()[1]), headers, body

    def json(self, *args, **kwargs):
        status, headers, body = self.curl(*args, **kwargs)
        self.assertEqual(headers["content-type"], "application/json")
        self.assertEqual(int(headers["content-length"]), len(body))
        return status, json.loads(body)

    def test_status_has_the_keys_of_the_contract(self):
        status, v = self.json("/v1/status")
        self.assertEqual(status, 200)
        self.assertLessEqual({"agent", "config", "bundles", "bytes", "destinations", "shipping",
                              "sources", "ready"}, set(v))
        self.assertEqual(v["bundles"].pop("discovered"), sum(v["bundles"].values()))

    def test_list_is_filtered_by_an_encoded_query(self):
        status, v = self.json("/v1/bundles?state=shipping&source=core%2Ddumps&limit=5")
        self.assertEqual((status, [b["id"] for b in v["bundles"]], v["next"]),
                         (200, [ID + "1"], None))

    def test_pages_give_every_bundle_once(self):
        seen, after = [], ""
        while True:
            _, v = self.json(f"/v1/bundles?limit=1{after}")
            seen += [b["id"] for b in v["bundles"]]
            if v["next"] is None:
                break
            after = f"&after={v['next']}"
        self.assertEqual(seen, [ID + str(i) for i in (1, 2, 3, 4)])

    def test_one_bundle_has_its_explanation(self):
        status, v = self.json(f"/v1/bundles/{ID}1")
        self.assertEqual((status, v["id"], type(v["explain"])), (200, ID + "1", str))

    def test_faults_are_json_with_a_fitting_status(self):
        for path, want, code in (("/nothing", 404, "not_found"),
                                 ("/v1/bundles?limit=0", 400, "bad_request"),
                                 (f"/v1/bundles/{ID}9", 404, "not_found"),
                                 ("/v1/bundles/..%2f..%2fetc%2fpasswd", 404, "not_found"),
                                 ("/v1/bundles/../status", 404, "not_found"),
                                 ("/v1/status%00", 400, "bad_request")):
            with self.subTest(path):
                status, v = self.json(path)
                self.assertEqual((status, v["error"]["code"]), (want, code))
                self.assertTrue(v["error"]["message"])

    def test_a_wrong_method_is_told_the_right_one(self):
        status, headers, _ = self.curl("/v1/status", "-X", "DELETE")
        self.assertEqual((status, headers["allow"]), (405, "GET, HEAD"))
        status, headers, _ = self.curl("/v1/flush")
        self.assertEqual((status, headers["allow"]), (405, "POST"))

    def test_actions_are_posted(self):
        self.assertEqual(self.json(f"/v1/bundles/{ID}1/retry", "-X", "POST")[0], 200)
        self.assertEqual(self.json(f"/v1/bundles/{ID}2/cancel", "-X", "POST")[0], 409)
        status, v = self.json("/v1/flush", "-d", "")
        self.assertEqual((status, v["message"]), (200, "3 bundles are tried now"))

    def test_a_drain_is_posted_seen_and_taken_back(self):
        self.assertIsNone(self.json("/v1/status")[1]["drain"])
        status, v = self.json("/v1/drain", "-X", "POST")
        self.assertEqual((status, v["action"]), (200, "drain"))
        v = self.json("/v1/status")[1]
        self.assertEqual((v["agent"]["state"], v["drain"]["safe_to_terminate"]),
                         ("draining", False))
        self.assertLessEqual({"since", "reason", "deadline", "safe_to_terminate", "missing"},
                             set(v["drain"]))
        self.assertEqual(self.json("/v1/resume", "-X", "POST")[0], 200)
        v = self.json("/v1/status")[1]
        self.assertEqual((v["agent"]["state"], v["drain"]), ("running", None))

    def test_on_tcp_only_an_address_localhost_and_the_node_s_name_are_hosts(self):
        """DNS rebinding: a page of another name must not read what this port answers."""
        def status(host, tcp=True):
            return self.curl("/healthz", "-H", f"Host: {host}", tcp=tcp)[0]
        for host in (f"127.0.0.1:{self.port}", "[::1]:9733", "localhost:1", "LOCALHOST",
                     socket.gethostname(), f"{socket.gethostname()}:9733"):
            self.assertEqual(status(host), 200, host)
        for host in ("evil.example", "evil.example:9733", "127.0.0.1.evil.example",
                     f"{socket.gethostname()}.evil.example", "localhost.evil.example", "a b", "x@"):
            self.assertIn(status(host), (400, 421), host)
        self.assertEqual(status("evil.example", tcp=False), 200)  # no browser gets there

    def test_an_address_takes_few_of_the_tcp_connections(self):
        held = []
        try:
            for i in range(80):
                held.append(socket.create_connection(("127.0.0.1", self.port), timeout=30,
                                                     source_address=(f"127.0.0.{3 + i % 2}", 0)))
                held[-1].sendall(b"GET /healthz HTTP/1.1\r\nHo")
            self.assertEqual(self.curl("/healthz", "--interface", "127.0.0.2", tcp=True)[0], 200)
        finally:
            for s in held:
                s.close()

    def test_a_body_too_large_is_refused(self):
        large = os.path.join(self.dir, "large")
        with open(large, "wb") as f:
            f.truncate(10 * 1024 * 1024)
        self.assertEqual(self.json("/v1/flush", "--data-binary", f"@{large}")[0], 413)
        self.assertEqual(self.curl("/healthz")[0], 200)

    def test_head_has_the_size_and_no_body(self):
        status, headers, body = self.curl("/v1/status", "--head")
        self.assertEqual((status, body), (200, b""))
        self.assertGreater(int(headers["content-length"]), 100)

    def test_tcp_serves_get_only(self):
        self.assertEqual(self.curl("/metrics", tcp=True)[0], 200)
        self.assertEqual(self.curl("/v1/status", tcp=True)[0], 200)
        self.assertEqual(self.curl("/v1/flush", "-X", "POST", tcp=True)[0], 405)

    def test_metrics_say_their_type(self):
        status, headers, body = self.curl("/metrics")
        self.assertEqual((status, headers["content-type"]),
                         (200, "text/plain; version=0.0.4; charset=utf-8"))
        self.assertIn(b'\nneuron_collectd_bundles{state="delivered"} 1\n', body)

    def test_probes_answer_in_plain_text(self):
        self.assertEqual([self.curl(p)[2] for p in ("/healthz", "/readyz")], [b"ok\n", b"ready\n"])

    def test_many_requests_run_over_one_connection(self):
        urls = [f"http://localhost/v1/bundles/{ID}{i % 4 + 1}" for i in range(200)]
        done = subprocess.run(["curl", "-sS", "--max-time", "60", "--unix-socket", self.socket,
                               "-w", "%{num_connects} %{http_code}\n",
                               *[a for u in urls for a in ("-o", "/dev/null", u)]],
                               capture_output=True, check=True, text=True)
        answers = done.stdout.split("\n")[:-1]
        self.assertEqual(answers, ["1 200"] + ["0 200"] * 199)


class Tap(unittest.TestResult):
    def tell(self, word, test, note=""):
        self.n = getattr(self, "n", 0) + 1
        print(f"{word} {self.n} - {test.id().split('.')[-1]}{note}", flush=True)

    def addSuccess(self, test):
        self.tell("ok", test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        print("# " + self._exc_info_to_string(err, test).replace("\n", "\n# "))
        self.tell("not ok", test)

    addError = addFailure

    def addSubTest(self, test, subtest, err):
        if err:
            self.addFailure(subtest, err)


if __name__ == "__main__":
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(Api)
    if not shutil.which("curl"):
        print("1..0 # SKIP curl is not installed")
        sys.exit(0)
    result = Tap()
    suite.run(result)
    print(f"1..{result.n}")
    sys.exit(0 if result.wasSuccessful() else 1)
