"""What goes over the loopback to a port, with the kernel's own times: a witness that shares nothing
with who sends and who receives, and that is not late when this machine is busy.

    with WireTap(proxy.port) as tap: …
    tap.total()                # bytes of TCP payload: TLS, headers and bodies of all connections;
    what TCP sends again counts once
    tap.most_in_a_second()     # of all windows of one second
"""
import ctypes
import socket
import struct
import threading

from tap import Skip

SO_ATTACH_FILTER, SO_RCVBUFFORCE, SO_TIMESTAMPNS, SOL_PACKET, PACKET_STATISTICS = 26, 33, 35, 263, 6
ETH_P_IP = 0x0800      # bound to it, a socket sees what arrives, each packet once
HEAD_BYTES = 128
SECOND = 10 ** 9


def _filter(port):
    """Classic BPF on an IPv4 packet: TCP to this port, of it the headers."""
    program = [(0x30, 0, 0, 9), (0x15, 0, 4, 6), (0xb1, 0, 0, 0), (0x48, 0, 0, 2),
               (0x15, 0, 1, port), (0x06, 0, 0, HEAD_BYTES), (0x06, 0, 0, 0)]
    return b"".join(struct.pack("HBBI", *line) for line in program)


class WireTap:
    def __init__(self, port):
        self.events = []      # (time in ns, bytes), in order
        self._ends = {}       # client's port: where its stream is
        self._closing = threading.Event()
        code = ctypes.create_string_buffer(_filter(port))      # the kernel copies it
        try:
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
        except PermissionError as error:
            raise Skip("packets can only be watched with CAP_NET_RAW") from error
        self._socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER,
                                struct.pack("HL", (len(code) - 1) // 8, ctypes.addressof(code)))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._socket.settimeout(0.05)
        self._socket.bind(("lo", ETH_P_IP))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join()
        _, drops = struct.unpack("II", self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
        self._socket.close()
        assert drops == 0, f"{drops} packets were not seen"

    def _run(self):
        while True:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(HEAD_BYTES, 64)
            except TimeoutError:
                if self._closing.is_set():
                    return
                continue
            sec, nsec = next(struct.unpack("qq", d[:16]) for level, kind, d in ancillary
                             if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS)
            self._note(sec * SECOND + nsec, data)

    def _note(self, when, data):
        tcp = data[(data[0] & 15) * 4:]
        n = struct.unpack_from("!H", data, 2)[0] - (data[0] & 15) * 4 - (tcp[12] >> 4) * 4
        client, _, seq = struct.unpack_from("!HHI", tcp)
        if tcp[13] & 2:      # SYN: a stream begins
            self._ends[client] = (seq + 1) & 0xffffffff
            return
        new = (seq + n - self._ends.get(client, seq)) & 0xffffffff
        if n == 0 or new == 0 or new >> 31:
            return      # nothing, or sent again
        self._ends[client] = (seq + n) & 0xffffffff
        self.events.append((when, min(new, n)))

    # --- for the test ---

    def total(self):
        return sum(n for _, n in self.events)

    def seconds(self):
        """From the first byte to the last."""
        return (self.events[-1][0] - self.events[0][0]) / SECOND if self.events else 0.0

    def windows(self):
        """(time in ns, bytes) of the second that begins with each packet."""
        found, end, total = [], 0, 0
        for when, n in self.events:
            while end < len(self.events) and self.events[end][0] < when + SECOND:
                total += self.events[end][1]
                end += 1
            found.append((when, total))
            total -= n
        return found

    def most_in_a_second(self):
        return max((n for _, n in self.windows()), default=0)
