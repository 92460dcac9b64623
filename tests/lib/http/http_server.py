#!/usr/bin/env python3
"""A server that does what the path tells it to, right or wrong, for the tests of lib/http/http.

    http_server.py [CERTIFICATE_DIRECTORY]

prints one line: the ports of 127.0.0.1, ::1 (0 = there is no IPv6), a proxy that refuses, one with
a small receive buffer, and, with a directory, of TLS by good.pem, expired.pem, other.pem; then
serves until its standard input ends. Each connection has a number, as have the requests on it;
/echo tells them.
"""
import os
import socket
import ssl
import struct
import sys
import threading
import urllib.parse
import zlib

counter_lock = threading.Lock()
n_connections = 0
release = threading.Event()      # what /hold waits for, set by /release


class Gone(Exception):
    """The client has closed, or the connection is done with."""


class Connection:
    def __init__(self, sock):
        global n_connections  # pylint: disable=global-statement
        with counter_lock:
            n_connections += 1
            self.number = n_connections
        self.sock = sock
        self.buffer = b""
        self.n_requests = 0
        self.head = self.method = self.path = ""
        self.query = {}
        self.length = 0

    def receive(self):
        data = self.sock.recv(1 << 20)
        if not data:
            raise Gone
        return data

    def read_head(self):
        while b"\r\n\r\n" not in self.buffer:
            self.buffer += self.receive()
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        self.head = head.decode("latin-1")
        self.method, target, _ = self.head.split("\r\n")[0].split(" ")
        self.path, _, query = target.partition("?")
        self.query = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        self.length = 0
        for line in self.head.split("\r\n")[1:]:
            if line.lower().startswith("content-length:"):
                self.length = int(line.split(":")[1])
        self.n_requests += 1

    def read_body(self, pace=0):
        """@return (length, CRC-32)"""
        left, crc = self.length, 0
        while left > 0:
            if not self.buffer:
                if pace:
                    threading.Event().wait(pace)
                    self.buffer = self.sock.recv(32768)
                    if not self.buffer:
                        raise Gone
                else:
                    self.buffer = self.receive()
            piece, self.buffer = self.buffer[:left], self.buffer[left:]
            crc = zlib.crc32(piece, crc)
            left -= len(piece)
        return self.length, crc

    def send(self, data):
        self.sock.sendall(data if isinstance(data, bytes) else data.encode("latin-1"))

    def answer(self, status="200 OK", body=b"", headers=()):
        body = body if isinstance(body, bytes) else body.encode("latin-1")
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
        self.send("\r\n".join(lines).encode("latin-1") + (b"" if self.method == "HEAD" else body))

    def reset(self):
        """Closes so that the peer gets a reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise Gone

    def wait_for_end(self):
        """Until the client goes away, whatever it may still send."""
        while True:
            self.receive()

    def serve(self):
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            self.read_head()
            name = "do_" + self.path.strip("/").replace("-", "_")
            getattr(self, name if hasattr(self, name) else "do_echo")()

    # --- right

    def do_echo(self):
        length, crc = self.read_body()
        text = (f"connection={self.number} request={self.n_requests} length={length} "
                f"crc={crc:08x}\n{self.head}\n")
        self.answer(body=text, headers=["X-Method: " + self.method, "ETag: \"one\"",
                                        "etag:   \"two\"  ", "X-Empty:"])

    def do_status(self):
        self.read_body()
        self.answer(status=self.query["s"] + " Whatever", body="the reason",
                    headers=["Location: /echo"])

    def do_big(self):
        n = int(self.query["n"])
        self.read_body()
        self.answer(body=bytes(i & 0xff for i in range(256)) * (n // 256) + b"x" * (n % 256))

    def do_chunked(self):
        self.read_body()
        self.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Late\r\nX-Early: "
                  "yes\r\n\r\n")
        for _ in range(int(self.query["n"])):
            self.send("1000\r\n" + "c" * 4096 + "\r\n")
        self.send("0\r\nX-Late: trailer\r\nX-Early: no\r\n\r\n")

    def do_until_close(self):
        self.read_body()
        self.send("HTTP/1.0 200 OK\r\n\r\nall there is")
        raise Gone

    def do_object(self):
        self.read_body()
        self.send("HTTP/1.1 200 OK\r\nContent-Length: 5368709120\r\nX-What: object\r\n\r\n")

    def do_interim(self):
        self.read_body()
        self.send("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nX-Hint: yes\r\n\r\n")
        self.answer(body="final")

    def do_no_content(self):
        self.read_body()
        self.send("HTTP/1.1 204 No Content\r\n\r\n")

    def do_slow_reader(self):
        length, crc = self.read_body(pace=float(self.query.get("pace", "0.001")))
        self.answer(body=f"length={length} crc={crc:08x}")

    def do_dribble(self):
        """n bytes, a moment between them."""
        self.read_body()
        self.send(f"HTTP/1.1 200 OK\r\nContent-Length: {self.query['n']}\r\n\r\n")
        for _ in range(int(self.query["n"])):
            threading.Event().wait(float(self.query["every"]))
            self.send("d")

    # --- closing

    def do_close_after(self):
        """Answers as if the connection were kept, and closes it."""
        self.read_body()
        self.answer(body=f"connection={self.number}")
        raise Gone

    def do_reset_second(self):
        """Closes at the second request on a connection, before or in its body, without a word."""
        if self.n_requests > 1:
            if self.query.get("at") == "body" and not self.buffer:
                self.buffer = self.receive()
            self.reset()
        self.do_echo()

    def do_early(self):
        """Answers before the body is read, and closes."""
        headers = ["Connection: close"] if "say" in self.query else []
        self.answer(status=self.query.get("s", "403") + " Early", body="<Error>no</Error>",
                    headers=headers)
        raise Gone

    def do_early_deaf(self):
        """Answers before the body is read, and neither reads nor closes."""
        self.answer(status="403 Early", body="<Error>no</Error>",
                    headers=["Connection: close"] if "say" in self.query else [])
        release.wait()
        raise Gone

    def do_early_lingering(self):
        """Answers before the body is read, and reads on."""
        self.answer(status="403 Early", body="<Error>no</Error>", headers=["Connection: close"])
        self.wait_for_end()

    # --- wrong

    def do_nothing(self):
        self.read_body()
        raise Gone

    def do_hold(self):
        """No answer until /release, and then none either."""
        self.read_body()
        release.wait()
        raise Gone

    def do_release(self):
        release.set()
        self.answer()

    def do_deaf(self):
        """Does not read the body, and says nothing."""
        release.wait()
        raise Gone

    def do_half(self):
        self.read_body()
        self.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + "h" * 50)
        if "hold" in self.query:
            release.wait()
        raise Gone

    def do_chunked_half(self):
        self.read_body()
        self.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1000\r\nccc")
        raise Gone

    def do_half_head(self):
        self.read_body()
        self.send("HTTP/1.1 200 OK\r\nContent-Le")
        raise Gone

    def do_rubbish(self):
        self.read_body()
        self.send("220 mail.example ESMTP\r\n")
        raise Gone

    def do_endless_headers(self):
        self.read_body()
        self.send("HTTP/1.1 200 OK\r\n")
        for i in range(1000):
            self.send(f"X-Header-{i}: {'v' * 200}\r\n")
        self.send("Content-Length: 0\r\n\r\n")

    def do_endless_body(self):
        self.read_body()
        self.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            self.send("10000\r\n" + "e" * 65536 + "\r\n")

class Proxy(Connection):
    """Refuses each tunnel with 403 and all else with 407."""

    def serve(self):
        self.read_head()
        self.answer(status="403 Forbidden" if self.method == "CONNECT"
                    else "407 Proxy Authentication Required", body="proxy says no")
        raise Gone


def serve_connection(sock, context, kind):
    try:
        if context:
            sock = context.wrap_socket(sock, server_side=True)
        kind(sock).serve()
    except (Gone, OSError, ValueError):
        pass
    finally:
        sock.close()


def accept_all(listener, context, kind):
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=serve_connection, args=(sock, context, kind), daemon=True).start()


def listen(family, host, context=None, kind=Connection, buffer_bytes=0):
    try:
        listener = socket.socket(family, socket.SOCK_STREAM)
        if buffer_bytes:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        listener.bind((host, 0))
    except OSError:
        return 0
    listener.listen(256)
    threading.Thread(target=accept_all, args=(listener, context, kind), daemon=True).start()
    return listener.getsockname()[1]


def tls(path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


def main():
    ports = [listen(socket.AF_INET, "127.0.0.1"), listen(socket.AF_INET6, "::1"),
             listen(socket.AF_INET, "127.0.0.1", kind=Proxy),
             listen(socket.AF_INET, "127.0.0.1", buffer_bytes=16384)]
    for name in ("good", "expired", "other") if len(sys.argv) > 1 else ():
        ports.append(listen(socket.AF_INET, "127.0.0.1",
                            tls(os.path.join(sys.argv[1], name + ".pem"))))
    print(*ports, flush=True)
    sys.stdin.buffer.read()


main()
