"""An agent's API on a unix socket that gives the configured answers: for tests of its clients."""
import http.server
import json
import os
import shutil
import socketserver
import tempfile
import threading


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self):
        api = self.server.api
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        api.requests.append(f"{self.command} {self.path}")
        status, body = api.answer_to(self.command, self.path)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _answer  # pylint: disable=invalid-name

    def address_string(self):
        return "unix"

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def handle_error(self, *_):
        """Whoever asked may go away in the middle."""


class InTurn(list):
    """Answers to the same question, one after the other."""


class CannedApi:
    """Use as a context manager. `answers`: {"GET /path?query": answer}, where an answer is (status,
    value) or a value (status 200), a value is bytes, sent as they are, or something for json.dumps;
    InTurn() are given out one after the other, the last one again and again. A path without its
    query may stand for all queries. Anything else is answered with 404."""

    def __init__(self, answers):
        self.answers = {k: list(v) if isinstance(v, InTurn) else [v] for k, v in answers.items()}
        self.requests = []
        self.directory = tempfile.mkdtemp(prefix="neuron-canned.")
        self.path = os.path.join(self.directory, "api.sock")
        self._server = _Server(self.path, _Handler)
        self._server.api = self
        self._thread = threading.Thread(target=self._server.serve_forever,
                                        kwargs={"poll_interval": 0.02})

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        shutil.rmtree(self.directory)

    def answer_to(self, method, path):
        """@return (status, bytes)"""
        for key in (f"{method} {path}", f"{method} {path.split('?')[0]}"):
            if key in self.answers:
                some = self.answers[key]
                answer = some.pop(0) if len(some) > 1 else some[0]
                status, value = answer if isinstance(answer, tuple) else (200, answer)
                return status, value if isinstance(value, bytes) else json.dumps(value).encode()
        return 404, json.dumps({"error": {"code": "not_found",
                                          "message": f"no such path: '{path}'"}}).encode()


def from_golden(source_dir, name):
    """What the API's own tests have it say: (status, value) of tests/golden/api/NAME.txt."""
    with open(os.path.join(source_dir, "tests/golden/api", name + ".txt"), encoding="utf-8") as f:
        head, _, body = f.read().partition("\n")
    return int(head.split()[0]), json.loads(body)
