#!/usr/bin/env python3
"""Writes the seed corpora of fuzz_neff, fuzz_protobuf, fuzz_elf, fuzz_manifest, fuzz_bundle,
fuzz_notice, fuzz_note, fuzz_core, fuzz_python, fuzz_s3_xml, fuzz_sysfs and fuzz_wire: sound files
and the ways in which they break.
make_corpus.py writes below its own directory; what it writes is committed, so that replaying needs
no Python."""
import hashlib
import json
import os
import re
import struct
import sys
import tarfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "harness"))
import incidents  # pylint: disable=wrong-import-position


def write(target, name, data):
    directory = os.path.join(HERE, "corpus", target)
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, name), "wb") as f:
        f.write(data)


# ---- NEFF ----

def neff(data=b"\x1f\x8b" + b"n" * 500, pkg_version=1, header_size=1024, data_size=None,
         digest=b""):
    data_size = len(data) if data_size is None else data_size
    head = struct.pack("<QQQQQ", pkg_version, header_size, data_size, 2, 0)
    head += b"2.0.0".ljust(128, b"\0") + struct.pack("<I", 1) + digest.ljust(32, b"\0") + bytes(
        range(16)) + b"file.neff".ljust(256, b"\0")
    return head.ljust(1024, b"\0") + data


def neffs():
    data = b"\x1f\x8b" + b"n" * 500
    ustar = b"a" * 257 + b"ustar" + b"\0" * 250
    write("neff", "gzip", neff())
    write("neff", "ustar", neff(ustar))
    write("neff", "sha256", neff(digest=hashlib.sha256(data).digest()))
    write("neff", "md5", neff(pkg_version=2, digest=hashlib.md5(data).digest()))
    write("neff", "sha256-wrong", neff(digest=b"\x55" * 32))
    write("neff", "md5-wrong", neff(digest=b"\x55" * 16))
    write("neff", "header-size", neff(header_size=1000))
    write("neff", "pkg-version", neff(pkg_version=3))
    write("neff", "data-size-0", neff(data_size=0))
    write("neff", "data-size-more", neff(data_size=503))
    write("neff", "data-size-less", neff(data_size=501))
    write("neff", "data-size-huge", neff(data_size=2**64 - 1))
    write("neff", "no-magic", neff(b"x" * 300))
    write("neff", "zeros", bytes(3000))
    write("neff", "zeros-behind", neff(b"\x1f\x8b" + bytes(2000), digest=b"\x01"))
    write("neff", "cut-in-header", neff()[:700])
    write("neff", "header-alone", neff()[:1024])
    write("neff", "one-byte-of-data", neff(b"\x1f"))
    write("neff", "empty", b"")


# ---- protobuf ----

def varint(value):
    out = b""
    while value > 0x7f:
        out += bytes([value & 0x7f | 0x80])
        value >>= 7
    return out + bytes([value])


def record(number, wire, payload=b""):
    return varint(number << 3 | wire) + (varint(len(payload)) if wire == 2 else b"") + payload


def protobufs():
    whole = record(1, 0, varint(150)) + record(2, 1, b"12345678") + record(
        3, 2, b"payload" * 9) + record(4, 5, b"1234")
    write("protobuf", "every-wire-type", whole)
    write("protobuf", "many-records", record(1, 2, b"event") * 200)
    write("protobuf", "nested", record(1, 2, record(2, 2, record(3, 0, varint(7)))))
    write("protobuf", "largest-number", record(2**29 - 1, 0, varint(2**64 - 1)))
    write("protobuf", "number-too-large", varint(2**29 << 3) + b"\0")
    write("protobuf", "number-0", b"\x00\x01")
    write("protobuf", "group", b"\x0b\x0c")
    write("protobuf", "wire-type-7", b"\x0f")
    write("protobuf", "varint-of-65-bits", b"\x08" + b"\xff" * 9 + b"\x02")
    write("protobuf", "varint-without-end", b"\x08" + b"\x80" * 20)
    write("protobuf", "padded-varint", b"\x08\x80\x80\x00")
    write("protobuf", "length-too-long", b"\x0a\x7fabc")
    write("protobuf", "length-huge", b"\x0a" + varint(2**64 - 1) + b"abc")
    write("protobuf", "length-0", record(1, 2) * 3)
    write("protobuf", "cut-in-fixed64", whole[:7])
    write("protobuf", "cut-in-payload", whole[:-10])
    write("protobuf", "cut-in-tag", whole + b"\x80")
    write("protobuf", "payload-of-zeros", record(5, 2, bytes(5000)) + record(1, 0, b"\0"))
    write("protobuf", "version-130", b"\x82\x01" + varint(4) + b"abcd")
    write("protobuf", "text", b"this is no protobuf at all\n")
    write("protobuf", "empty", b"")


# ---- ELF ----

class Elf:
    def __init__(self, bits=64, order="<"):
        self.bits, self.order = bits, order
        self.ehdr, self.phdr, self.shdr = (64, 56, 64) if bits == 64 else (52, 32, 40)

    def header(self, phnum, kind=4, phoff=None, shoff=0, shnum=0, phentsize=None):
        ident = b"\x7fELF" + bytes([2 if self.bits == 64 else 1, 1 if self.order == "<" else 2,
                                    1]) + bytes(9)
        return ident + struct.pack(
            self.order + ("HHIQQQIHHHHHH" if self.bits == 64 else "HHIIIIIHHHHHH"), kind, 62, 1, 0,
            self.ehdr if phoff is None else phoff, shoff, 0, self.ehdr,
            self.phdr if phentsize is None else phentsize, phnum, self.shdr, shnum, 0)

    def segment(self, offset, size):
        if self.bits == 64:
            return struct.pack(self.order + "IIQQQQQQ", 1, 4, offset, 0x1000, 0, size, size + 4096,
                               1)
        return struct.pack(self.order + "IIIIIIII", 1, offset, 0x1000, 0, size, size + 4096, 4, 1)

    def section0(self, info):
        if self.bits == 64:
            return struct.pack(self.order + "IIQQQQIIQQ", 0, 0, 0, 0, 0, 0, 0, info, 0, 0)
        return struct.pack(self.order + "IIIIIIIIII", 0, 0, 0, 0, 0, 0, 0, info, 0, 0)

    def core(self, n=2, each=100, **fields):
        data = self.ehdr + n * self.phdr
        return self.header(n, **fields) + b"".join(self.segment(data + i * each, each)
                                                   for i in range(n)) + b"d" * n * each


def elves():
    e = Elf()
    for bits in (64, 32):
        for order, name in (("<", "little"), (">", "big")):
            write("elf", "core%d-%s" % (bits, name), Elf(bits, order).core())
            write("elf", "core%d-%s-cut" % (bits, name), Elf(bits, order).core()[:-1])
    write("elf", "no-core", e.core(kind=2))
    write("elf", "no-segments", e.header(0))
    write("elf", "segment-overflows", e.header(1) + e.segment(2**64 - 8, 100))
    write("elf", "segment-far", e.header(1) + e.segment(2**40, 100))
    write("elf", "segment-empty", e.header(1) + e.segment(2**40, 0))
    write("elf", "table-far", e.header(3, phoff=2**50))
    write("elf", "table-overflows", e.header(3, phoff=2**64 - 1))
    write("elf", "table-in-header", e.header(3, phoff=8))
    write("elf", "entry-size", e.header(3, phentsize=1))
    write("elf", "sections-far", e.core(shoff=2**33, shnum=5))
    write("elf", "many-without-section", e.header(0xffff) + e.segment(4096, 4096))
    write("elf", "many-section-first", e.header(0xffff, phoff=128, shoff=64,
                                                shnum=1) + e.section0(65540) + e.segment(1, 1) * 3)
    write("elf", "many-miscounted", e.header(0xffff, phoff=128, shoff=64,
                                             shnum=1) + e.section0(3) + e.segment(1, 1) * 3)
    write("elf", "many-table-over-section", e.header(0xffff, phoff=64, shoff=64,
                                                     shnum=1) + e.section0(70000) + bytes(500))
    write("elf", "class-9", b"\x7fELF\x09\x01" + bytes(60))
    write("elf", "order-0", b"\x7fELF\x02\x00" + bytes(60))
    write("elf", "cut-in-ident", b"\x7fELF\x02")
    write("elf", "cut-in-header", e.core()[:50])
    write("elf", "zstd", b"\x28\xb5\x2f\xfd" + bytes(60))
    write("elf", "gzip", b"\x1f\x8b" + bytes(60))
    write("elf", "text", b"this is a text that somebody has called core\n" * 3)
    write("elf", "zeros", bytes(300))
    write("elf", "empty", b"")


# ---- manifests ----

def manifest():
    return {
        "schema": "neuron-collectd/manifest/1",
        "bundle": {"id": "neuron-core-dump-20260527T051233-0123456789ab",
                   "kind": "neuron-core-dump", "object": "x.tar.zst",
                   "bytes": 300, "uncompressed_bytes": 20480, "plan": "b0" * 32,
                   "parts": [{"bytes": 200, "sha256": "a1" * 32},
                             {"bytes": 100, "sha256": "a2" * 32}],
                   "complete": True, "reasons": [], "supplement_of": None},
        "node": {"instance_id": "i-0123456789abcdef0", "hostname": "trn-17",
                 "labels": {"cluster": "prod-a"}},
        "source": {"name": "core-dumps", "path": "/tmp/x", "uid": 1000, "user": "alice"},
        "incident": {"cluster_id": "d99e36ea74c263ca", "date_time": "20260527-051233",
                     "derived": False, "agreed": "alone", "job": None},
        "failure": None,
        "members": [
            {"path": "a", "bytes": 10, "mtime": "2026-05-27T05:21:35.123456789Z", "mode": "0644",
             "sha256": "10" * 32, "kind": "other",
             "verdict": "opaque", "detail": "", "frame": 0, "offset": 512,
             "header": 512},
            {"path": "b\\xff", "bytes": 5, "mtime": "2026-05-27T05:21:35.123456789Z",
             "mode": "0600", "sha256": None,
             "sha256_sparse": "11" * 32, "kind": "neff", "verdict": "truncated", "detail": "x",
             "frame": 0, "offset": 1536, "header": 512}],
        "frames": {"count": 1, "format": "zstd-seekable"},
        "agent": {"version": "0.1.0"}, "created": "2026-05-27T05:21:40.000001Z"}


def manifests():
    def spoilt(name, where, value, gone=False):
        m = manifest()
        *path, last = where
        at = m
        for key in path:
            at = at[key]
        if gone:
            del at[last]
        else:
            at[last] = value
        write("manifest", name, json.dumps(m).encode())

    write("manifest", "sound", json.dumps(manifest(), indent=1).encode())
    spoilt("no-members", ["members"], [])
    spoilt("schema", ["schema"], "neuron-collectd/manifest/2")
    spoilt("no-bundle", ["bundle"], None, gone=True)
    spoilt("bundle-list", ["bundle"], [])
    spoilt("bytes-text", ["bundle", "bytes"], "300")
    spoilt("bytes-negative", ["bundle", "bytes"], -300)
    spoilt("bytes-largest", ["bundle", "parts", 0, "bytes"], 2**63 - 1)
    spoilt("object-up", ["bundle", "object"], "../x")
    spoilt("plan-short", ["bundle", "plan"], "b0")
    spoilt("no-incident", ["incident"], None)
    spoilt("path-up", ["members", 0, "path"], "../a")
    spoilt("path-absolute", ["members", 0, "path"], "/a")
    spoilt("path-escape-bad", ["members", 0, "path"], "a\\x0")
    spoilt("path-twice", ["members", 0, "path"], "b\\xff")
    spoilt("digest-gone", ["members", 1, "sha256_sparse"], None, gone=True)
    spoilt("offset-beyond", ["members", 0, "offset"], 20480)
    spoilt("header", ["members", 1, "header"], None, gone=True)
    spoilt("header-beyond", ["members", 1, "header"], 2048)
    spoilt("member-huge", ["members", 0, "bytes"], 2**62)
    spoilt("unknown-field", ["weather"], {"rain": [1.5, True, None]})
    spoilt("escape-sequence", ["schema"], "\x1b[2J")
    write("manifest", "cut", json.dumps(manifest()).encode()[:-20])
    write("manifest", "deep", b"[" * 3000)
    write("manifest", "twice", b'{"schema": "neuron-collectd/manifest/1", "schema": "x"}')
    write("manifest", "not-utf8", b'{"schema": "\xff"}')
    write("manifest", "empty", b"")


# ---- bundles ----

def frame(data):
    """A zstd frame of one raw block: what a fuzzer can change without breaking it."""
    return struct.pack("<IBI", 0xFD2FB528, 0xA0,
                       len(data)) + struct.pack("<I", 1 | len(data) << 3)[:3] + data


def rle_frame(n):
    """n zeros in a few bytes, n below 128 KiB."""
    return struct.pack("<IBI", 0xFD2FB528, 0xA0,
                       n) + struct.pack("<I", 1 | 1 << 1 | n << 3)[:3] + b"\0"


def seek_table(sizes, flags=0, n=None):
    body = b"".join(struct.pack("<II", c, d) + (b"\0\0\0\0" if flags & 0x80 else b"") for c,
                    d in sizes)
    body += struct.pack("<IBI", len(sizes) if n is None else n, flags, 0x8F92EAB1)
    return struct.pack("<II", 0x184D2A5E, len(body)) + body


def tar(members, **fields):
    out = b""
    for name, content in members:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        info.pax_headers = fields.get("pax", {})
        for key in ("type", "linkname"):
            setattr(info, key, fields.get(key, getattr(info, key)))
        out += info.tobuf(tarfile.PAX_FORMAT) + content.ljust(-(-len(content) // 512) * 512, b"\0")
    return out + bytes(1024)


def bundles():
    a, b = ("a", b"a" * 10), ("b", b"b")
    whole = tar([a, b])
    first, second = frame(whole[:1024]), frame(whole[1024:])
    sizes = [(len(first), 1024), (len(second), len(whole) - 1024)]
    write("bundle", "sound", first + second + seek_table(sizes))
    write("bundle", "checksums", first + second + seek_table(sizes, 0x80))
    write("bundle", "no-table", first + second)
    write("bundle", "table-alone", seek_table([]))
    write("bundle", "table-too-long", first + second + seek_table(sizes, n=2**32 - 1))
    write("bundle", "table-wrong", first + second + seek_table([sizes[1], sizes[0]]))
    write("bundle", "frame-damaged", b"\0" + first[1:] + second + seek_table(sizes))
    write("bundle", "frame-of-zeros",
          first + rle_frame(100000) + seek_table([sizes[0], (13, 100000)]))
    write("bundle", "frames-empty", seek_table([(0, 0)] * 20))
    write("bundle", "window-huge", struct.pack("<IBB", 0xFD2FB528, 0,
                                               0xff) + b"\1\0\0" + seek_table([(9, 0)]))
    for name, members in (("swapped", [b, a]), ("twice", [a, a, b]),
                          ("added", [a, b, ("c", b"c")]), ("gone", [a]), ("none", [])):
        data = tar(members)
        write("bundle", "members-" + name,
              frame(data) + seek_table([(len(frame(data)), len(data))]))
    for name, fields in (("symlink", {"type": tarfile.SYMTYPE, "linkname": "b"}),
                         ("hard-link", {"type": tarfile.LNKTYPE, "linkname": "b"}),
                         ("gnu-long-name", {"type": tarfile.GNUTYPE_LONGNAME}),
                         ("pax-path", {"pax": {"path": "\u00fc"}}),
                         ("pax-binary", {"pax": {"hdrcharset": "BINARY", "path": "\udcff"}}),
                         ("sparse", {"pax": {"GNU.sparse.major": "1", "GNU.sparse.minor": "0",
                                             "GNU.sparse.name": "a",
                                             "GNU.sparse.realsize": "10"}}),
                         ("sparse-old", {"pax": {"GNU.sparse.map": "0,5,8,2", "GNU.sparse.size":
                                                 "10", "GNU.sparse.numblocks": "2"}})):
        content = b"2\n0\n5\n8\n2\n".ljust(
            512, b"\0") + b"aaaaaaa" if name == "sparse" else b"aaaaaaa"
        try:
            data = tar([("a", content)], **fields)
        except UnicodeEncodeError:
            data = tar([("a", content)], pax={"hdrcharset": "BINARY",
                                              "path": "x"}).replace(b"path=x", b"path=\xff")
        write("bundle", "entry-" + name, frame(data) + seek_table([(len(frame(data)), len(data))]))
    behind = whole + tar([("hidden", b"x")])
    write("bundle", "behind-the-end",
          frame(behind) + seek_table([(len(frame(behind)), len(behind))]))
    write("bundle", "text", b"no bundle at all, whatever its name says")


# ---- answers of S3 ----

def element(name, *inside, **more):
    text = "".join(inside) + "".join("<%s>%s</%s>" % (k, v, k) for k, v in more.items())
    return "<%s>%s</%s>" % (name, text, name)


def s3_answers():
    declaration = '<?xml version="1.0" encoding="UTF-8"?>\n'
    ns = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
    part = element("Part", PartNumber="1", LastModified="2026-05-27T05:12:33.000Z",
                   ETag='&quot;aa&quot;', Size="8388608")
    upload = element("Upload", element("Initiator", ID="x", DisplayName="y"), Key="a/b%20c%2Bd",
                     UploadId="2~w/+=", StorageClass="STANDARD",
                     Initiated="2026-05-27T05:12:33.000Z")
    item = element("Contents", element("Owner", ID="o"), Key="n/a+b%2Bc",
                   LastModified="2026-05-27T05:12:33.000Z", ETag='"e"', Size="17")
    prefix = element("CommonPrefixes", Prefix="n/x%20y/")
    credentials = element("Credentials", AccessKeyId="ASIAEXAMPLE", SecretAccessKey="s/e+c=",
                          SessionToken="FwoGZXIv//==", Expiration="2026-05-27T06:12:33Z")

    def answer(name, text):
        write("s3_xml", name, text.encode())

    for code, more in (("AccessDenied", {"Message": "User: u is not authorized to perform: "
                                         "kms:Decrypt on resource: r with an explicit deny"}),
                       ("AuthorizationHeaderMalformed", {"Region": "eu-central-1"}),
                       ("NoSuchKey", {"Message": "", "BucketName": "b"}),
                       ("PermanentRedirect", {"Endpoint": "b.s3.eu-central-1.amazonaws.com",
                                              "Bucket": "b"}), ("NotImplemented", {}),
                       ("RequestTimeTooSkewed", {"ServerTime": "2026-05-27T05:12:33Z"}),
                       ("KMS.DisabledException", {"RequestId": "r"}),
                       ("InternalError", {}), ("SomethingNew", {"HostId": "h"})):
        answer("error-" + code, declaration + element("Error", Code=code, **more))
    answer("error-sts", element("ErrorResponse", element(
        "Error", Type="Sender", Code="ExpiredToken", Message="m"), RequestId="r"))
    answer("error-controls", element("Error", Code="&#x9b;31m", Message="a&#10;b&#x7f;\u0085"))
    answer("error-long", element("Error", Code="c" * 70, Message="\u00e9" * 400,
                                 CanonicalRequestBytes="47 " * 6000))
    answer("error-prefixed", '<s3:Error xmlns:s3="x"><s3:Code>C</s3:Code></s3:Error>')
    answer("error-cdata", "<Error><Code>a<!-- no -->b<![CDATA[<c>]]>&amp;</Code></Error>")
    answer("create", declaration + element("InitiateMultipartUploadResult" , Bucket="b", Key="k",
                                           UploadId="2~VXBs/b+g=").replace(">", ns + ">", 1))
    answer("complete", " \n \r\n" + declaration + " \n"
           + element("CompleteMultipartUploadResult", ETag="&quot;aa-9&quot;"))
    answer("complete-no-etag", element("CompleteMultipartUploadResult", Location="l"))
    answer("parts", element("ListPartsResult", part, part, NextPartNumberMarker="1",
                            IsTruncated="true"))
    answer("parts-circle", element("ListPartsResult", part, IsTruncated="true"))
    answer("parts-no-etag", element("ListPartsResult", element("Part", PartNumber="1")))
    answer("parts-number-huge", element("ListPartsResult",
                                        part.replace(">1<", ">99999999999999999999<")))
    answer("uploads", element("ListMultipartUploadsResult", upload, upload, EncodingType="url",
                              IsTruncated="true", NextKeyMarker="a%2Fb", NextUploadIdMarker="u"))
    answer("uploads-nul", element("ListMultipartUploadsResult", upload.replace("%20", "%00"),
                                  EncodingType="url"))
    answer("objects", declaration + element("ListBucketResult", item, item, prefix, prefix,
                                            EncodingType="url", IsTruncated="true",
                                            NextContinuationToken="1/a+b=="))
    answer("objects-escape-cut", element("ListBucketResult", item.replace("%2Bc", "%2"),
                                         EncodingType="url"))
    answer("objects-nested", element("ListBucketResult", element("Contents", item, Key="k")))
    answer("objects-key-long", element("ListBucketResult", item.replace("n/", "n" * 1025)))
    answer("objects-many", element("ListBucketResult", (element("Contents", Key="k")) * 40))
    for name in ("AssumeRole", "AssumeRoleWithWebIdentity"):
        answer("sts-" + name, element(name + "Response", element(name + "Result", credentials)))
    answer("sts-no-token",
           element("R", element("RResult", credentials.replace("SessionToken", "Token"))))
    answer("doctype", "<!DOCTYPE Error><Error/>")
    answer("entity", '<!DOCTYPE Error [<!ENTITY a "b"><!ENTITY c '
                     '"&a;&a;">]><Error><Code>&c;</Code></Error>')
    answer("controls", element("ListMultipartUploadsResult",
                               upload.replace("%20", "&#x01;&#31;\x02&#x9;")))
    answer("controls-cut", "<Error><Code>&#x1")
    answer("deep", "<Error>" * 40)
    answer("name-long", "<Error><%s/></Error>" % ("n" * 600))
    answer("cut", element("Error", Code="InternalError")[:-5])
    answer("html", "<html><body>502 Bad Gateway</body></html>")
    answer("json", '{"code": "AccessDenied"}')
    answer("blanks", " \r\n\t")
    answer("utf16", '<?xml version="1.0" encoding="UTF-16"?><Error/>')
    write("s3_xml", "not-utf8", b"<Error><Code>\xff\xc3</Code></Error>")
    write("s3_xml", "empty", b"")


# ---- notices of EC2: a byte that chooses the document, then the document ----

def notices():
    spot, maintenance, rebalance = b"\0", b"\1", b"\2"
    event = {"NotBefore": "21 Jan 2019 09:00:43 GMT", "Code": "system-reboot",
             "Description": "scheduled reboot",
             "EventId": "instance-event-0d59937288b749b32", "NotAfter": "21 Jan 2019 09:17:23 GMT",
             "State": "active"}

    def answer(name, kind, value):
        write("notice", name, kind + (value if isinstance(value, bytes)
                                      else json.dumps(value).encode()))

    for action in ("stop", "terminate", "hibernate"):
        answer("spot-" + action, spot, {"action": action, "time": "2017-09-18T08:22:00Z"})
    answer("spot-no-time", spot, {"action": "terminate"})
    answer("spot-time-far", spot, {"action": "terminate",
                                   "time": "9999-12-31T23:59:60.999999999+14:00"})
    answer("spot-action-long", spot, {"action": "a" * 32})
    answer("spot-action-control", spot, {"action": "stop\n\x1b[2J"})
    answer("spot-action-nul", spot, {"action": "stop\0now"})
    answer("spot-twice", spot, b'{"action": "stop", "action": "terminate"}')
    answer("maintenance", maintenance, [event])
    answer("maintenance-none", maintenance, [])
    answer("maintenance-over", maintenance, [{**event, "State": "completed"},
                                             {**event, "State": "canceled"}])
    answer("maintenance-several", maintenance,
           [{**event, "NotBefore": f"{day} Feb 2026 00:00:00 GMT"} for day in (9, 3, 28, 30)])
    answer("maintenance-many", maintenance, [event] * 257)
    answer("maintenance-kinds", maintenance, [7, None, "x", [], {}, {"State": "active"},
                                              {**event, "Code": 7}, {**event, "NotBefore": []}])
    answer("rebalance", rebalance, {"noticeTime": "2020-11-05T08:22:00Z"})
    answer("rebalance-no-time", rebalance, {"noticeTime": ""})
    for kind, name in ((spot, "spot"), (maintenance, "maintenance"), (rebalance, "rebalance")):
        answer(name + "-empty", kind, b"")
        answer(name + "-html", kind, b"<html><body>404 - Not Found</body></html>")
        answer(name + "-deep", kind, b"[" * 4000)
        answer(name + "-not-utf8", kind, b'{"action": "\xff\xc3"}')
        answer(name + "-cut", kind, json.dumps([event]).encode()[:-7])


# ---- notes of the hook; the same inputs go through redaction ----

def notes():
    head = {"schema": "neuron-collectd/hook-note/1", "id": "0123456789abcdef" * 2,
            "written_usec": 1779859925123456}
    whole = {**head, "arguments": {
        "neff_name": "file.neff", "neff_uuid": "00" * 16,
        "date_time": "20260527-051233", "pid": "17", "tid": "18",
        "log_id": "1", "instance_id": "i-0123456789abcdef0",
        "cluster_id": "d99e36ea74c263ca",
        "error_location": "nrt_execute", "error_code": "1200",
        "local_output_dir": "/tmp/neuron-core-dump/dt-20260527-051233-cid-d99e36ea74c263ca",
        "s3_output_prefix": "s3://b/k"},
             "error_number": 1200, "error_name": "NRT_EXEC_HW_ERR_COLLECTIVES",
             "job": {"source": "torchrun", "key": "torchrun:master=10.0.0.1:41000", "rank": 3,
                     "world_size": 64, "local_rank": 3,
                     "restart_count": 0, "root_comm_id": "10.0.0.1:62182"},
             "hook": {"pid": 100, "ppid": 17, "pid_namespace": 4026531836,
                      "mount_namespace": 4026531841},
             "files": {"record": "i-0-neuron-dump-pid-17-tid-18-lid-1.json",
                       "snapshot": "i-0-neuron-dump-pid-17-tid-18-lid-1-snapshot.json"},
             "unknown": [{"flag": "--new", "value": "7"}, {"flag": "--alone"}],
             "environment": {"RANK": "3", "NEURON_RT_LOG_LEVEL": "WARN"}}

    def note(name, value):
        write("note", name, value if isinstance(value, bytes) else json.dumps(value).encode())

    note("whole", whole)
    note("least", head)
    note("cut", {**whole, "cut": True})
    note("truncated", json.dumps(whole).encode()[:-40])
    note("paths", {**head, "arguments": {"local_output_dir": "/a\\x5cb\\xff/\u00e4"}})
    note("path-not-spelled", {**head, "arguments": {"local_output_dir": "/a\\b"}})
    note("twice", b'{"schema":"neuron-collectd/hook-note/1","id":"' + b"0" * 32 + b'","id":"'
         + b"1" * 32 + b'"}')
    note("deep", b"[" * 5000)
    note("nul", {**head, "arguments": {"pid": "1\u00002"}})
    note("not-utf8", json.dumps(head).encode()[:-1] + b',"arguments":{"pid":"\xff"}}')
    note("types", {**head, "arguments": [], "job": 7, "environment": "x", "unknown": {},
                   "files": None, "hook": True})
    note("numbers", {**head, "written_usec": 2**63 - 1, "hook": {"pid": 2**62},
                     "job": {"rank": 0, "world_size": 2**40}})
    note("numbers-far", {**head, "written_usec": 2**70})
    note("numbers-negative", {**head, "job": {"rank": -1}})
    note("names", {**head, "files": {"record": "../../etc/passwd", "snapshot": ".hidden"}})
    note("many-flags", {**head, "unknown": [{"flag": f"--f{i}", "value": "x"} for i in range(64)]})
    note("too-many-flags", {**head, "unknown": [{"flag": f"--f{i}"} for i in range(65)]})
    note("many-variables", {**head, "environment": {f"NEURON_{i}": "x" for i in range(512)}})
    note("long-value", {**head, "arguments": {"neff_name": "x" * 16384}})
    note("longer-value", {**head, "arguments": {"neff_name": "x" * 16385}})
    note("controls", {**head, "arguments": {"neff_name": "".join(map(chr, range(1, 32)))},
                      "job": {"key": "\x1b[2J"}})
    secrets = {"plain": "--token x --password 'a b' PASSWORD=y {\"apiKey\": \"z\"}",
               "url": "https://me:pa/ss@h/?X-Amz-Signature=a&b=c",
               "aws": "AKIAIOSFODNN7EXAMPLE wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
               "known": "hf_abcdefghijklmnopqrst ghp_abcdefghijklmnopqrst",
               "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
               "pem": "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----",
               "header": "curl -H \"Authorization: Bearer abcdefghijk\" -u me:secret",
               "escaped": '{\\"token\\": \\"x\\"}', "cmdline": "a\0--token\0b\0-u\0c:d"}
    for name, text in secrets.items():
        note("secret-" + name, text.encode())
        note("secret-note-" + name, {**head, "arguments": {"neff_name": text.replace("\0", " ")},
                                     "environment": {"NEURON_X": text.replace("\0", " ")}})


# ---- sysfs ----

def sysfs(name, *pairs):
    write("sysfs", name, b"\0".join(part if isinstance(part, bytes) else part.encode()
                                    for pair in pairs for part in pair))


def sysfs_trees():
    sysfs("device", ("core_count", "8"), ("connected_devices", "12, 3\n"),
          ("info/serial_number", "19fcda00f5ff6e00\n"), ("info/architecture/arch_type", "NDv3\n"),
          ("neuron_core0/info/architecture/arch_type", "NCv3\n"),
          ("stats/hardware/mem_ecc_uncorrected", "0\n"),
          ("stats/hardware/health_status/unhealthy_components", "hbm,sram\n"),
          ("neuron_core0/stats/status/oob_error/total", "1\n"),
          ("neuron_core0/stats/status/oob_error/present", "0\n"))
    sysfs("reset", ("reset", "1"), ("control/reset", "1"), ("reset/total", "1"))
    sysfs("binary", ("a", bytes(range(1, 256))), ("b", b"\xff\xfe\x80"),
          ("c", "\u2028\U0001f600\x7f\x1b[2J"))
    sysfs("names", (b"\xff\xfe", "1"), ('quote"', "1"), ("back\\slash", "1"), ("new\nline", "1"),
          (b"dir\xff/\x01", "1"), (" ", "1"))
    sysfs("long", ("page", "x" * 4096), ("more", "y" * 4097), ("controls", "\x01" * 4096),
          ("no-utf8", b"\xff" * 4096))
    sysfs("deep", ("/".join("abcdefghijkl"), "1"), ("a/b/c/d/e/f/g/h/i", "8"),
          ("a/b/c/d/e/f/g/h/i2/j", "9"))
    sysfs("secret", ("parameters", "token=abcdef api_key=AKIAIOSFODNN7EXAMPLE"),
          ("health/x", "https://me:secret@host/"))
    sysfs("measures", *[(f"ecc/e{i}", str(i)) for i in range(64)])
    sysfs("empty", ("a", ""), ("b", "\n"), ("c", "\n\n"))
    sysfs("much", *[(f"ecc{i}/{'n' * 150}", b"\xff" * 4000) for i in range(20)])
    sysfs("collision", ("a", "1"), ("a/b", "2"), ("c/d", "3"), ("c", "4"))


# ---- collectors: the kernel's log, the runtime's log, texts of processes ----

def kmsgs():
    error = (b"3,812,5000000,-;neuron: NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR "
             b"instance-id=i-0123456789abcdef0 hostname=h nd-id=3 nc-id=1 "
             b"serial-num=19fcda00f5ff6eb9 action=TERMINATE_INSTANCE new=field\n "
             b"SUBSYSTEM=neuron\n DEVICE=c510:3\n")
    write("kmsg", "hw-error", error)
    write("kmsg", "several", b"6,1,2,-;eth0: up\n" + error
          + b"6,2,3,c,caller=T1;nd0: \\x5ba\\x0ab\\xzz\\x\n")
    write("kmsg", "cut", error[:60])
    write("kmsg", "no-newline", error.rstrip())
    write("kmsg", "no-record", b" SUBSYSTEM=x\n;;;\n1,2\n,,,;\n")
    write("kmsg", "numbers", b"99999999999999999999,1,1,-;x\n1,99999999999999999999,"
          b"1,-;x\n4294967295,1,18446744073709551615,-;neuron\n")
    write("kmsg", "nul", b"1,1,1,-;NEURON_HW_ERR=\0 a=\0\xff \x7f=\x01\n")
    write("kmsg", "escaped", b"1,1,1,-;NEURON_HW_ERR=A\\x20b=c\\x3dd\\x00\n")
    write("kmsg", "many-fields", b"1,1,1,-;NEURON_HW_ERR=X "
          + b" ".join(b"k%d=v" % i for i in range(100)))
    write("kmsg", "long-value", b"1,1,1,-;NEURON_HW_ERR=" + b"x" * 5000 + b" " + b"k" * 500 + b"="
          + b"v" * 5000)
    write("kmsg", "empty-values", b"1,1,1,-;NEURON_HW_ERR= = a= =b")
    write("kmsg", "devices", b"1,1,1,-;[ND 1][NC 2]\n1,2,1,-;nd\n1,3,1,-;nd1x\n1,4,1,-;[nd\n")


def nrt_logs():
    prefix = b"2025-Sep-19 18:57:20.782962  4444:4445  ERROR  NRT:nrt_infodump  "
    opening = b"------------->8------------[ cut here ]------------>8-------------\n"
    closing = b"-------------8<-----------[ cut to here ]-----------8<------------\n"
    lines = [b"NRT version: 2.29.40.0 (abc)", b"Embedded FW version: 1",
             b"CCOM version: 2 (compat 75)", b"Instance ID: i-0", b"Cluster ID: 0", b"",
             b"Failure: NRT_EXEC_OOB in nrt_execute()", b"LNC: 2", b"unknown", b"Environment:",
             b"  NEURON_RT_NUM_CORES=4", b"\tA=b", b"UltraServer: 1"]
    write("nrt_log", "block", opening + b"\n".join(lines) + b"\n" + closing)
    write("nrt_log", "block-with-prefix", prefix + opening
          + b"".join(prefix + line + b"\n" for line in lines) + prefix + closing)
    write("nrt_log", "block-cut", opening + b"\n".join(lines))
    write("nrt_log", "block-in-block", opening + b"a: b\n" + opening + b"c: d\n" + closing
          + closing)
    write("nrt_log", "delimiters-alone", closing + opening + closing + opening)
    write("nrt_log", "one-line", (opening + b"a: b " + closing).replace(b"\n", b""))
    write("nrt_log", "error", b"2025-Sep-19 18:57:20.782962  4444:4445  ERROR  TDRV:exec  [ND "
                              b"3][NC 1] stuck\n")
    write("nrt_log", "syslog",
          b"Sep 19 18:57:20 h p[1]: 2025-Sep-19 18:57:20  1:2 WARN x nd3:nc1\n")
    write("nrt_log", "numbers", b"2025-Sep-19 18:57:20 99999999999999999999:1 ERROR x\n2025-Sep-19 "
                                b"18:57:20 1:1 ERROR nd99999 nc1 nd65535:nc65536\n")
    write("nrt_log", "ends", b"2025-Sep-19 18:57:20 1:2\n2025-Sep-19 18:57:20 1:2 E\n2025-Sep-19 "
                             b"18:57:20 1:2 E M:\n2025-Sep-19 18:57:20 1:2 E :f nd")
    write("nrt_log", "bytes", prefix + bytes(range(256)) + b"\n" + opening
          + bytes(range(256)) + b":\0=\n" + closing)


def processes():
    def text(kind, name, data):
        write("procfs", name, bytes([kind]) + data)

    text(0, "stat", b"42 (a) S (b) R) Z 7 42 42 0 -1 2097216 0 0 0 0 1 2 3 4 20 0 9 0 123456789 0 "
                    b"0 0\n")
    text(0, "stat-cut", b"42 (train) S 1 2 3")
    text(0, "stat-long-name", b"1 (" + b"x" * 300 + b") S " + b"1 " * 30)
    text(0, "stat-numbers",
         b"1 (a) S 99999999999999999999 1 1 1 -1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1\n")
    text(0, "stat-no-name", b"1 ) S 1")
    text(1, "map", b"7f10a000-7f10b000 r-xp 00001000 fd:02 1234567    /opt/my libs/libnrt.so.1 "
                   b"(deleted)")
    text(1, "map-anonymous", b"0-1000 rw-p 00000000 00:00 0 ")
    text(1, "map-deleted", b"0-1000 rw-p 00000000 00:00 0 (deleted)")
    text(1, "map-numbers", b"fffffffffffffffff-1 r-xp 0 0:0 0")
    hex64 = b"0123456789abcdef" * 4
    text(2, "cgroup",
         b"0::/kubepods.slice/kubepods-burstable-pod12345678_1234_1234_1234_123456789abc.slice/"
         b"cri-containerd-" + hex64 + b".scope\n")
    text(2, "cgroup-v1", b"4:memory:/kubepods/besteffort/pod12345678-1234-1234-1234-123456789abc/"
         + hex64 + b"\n1:cpu:/docker/" + hex64)
    text(2, "cgroup-slurm", b"0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_3\n")
    text(2, "cgroup-near", b"/pod/kubepods-pod/-pod/.scope/.slice/" + hex64[:63] + b"/x" + hex64
         + b"/-" + hex64 + b"/job_/step_")
    text(3, "status", b"Name:\ttrain\nNSpid:\t100\t7 \nNSpid:\nNSpid")
    text(3, "environ", b"A=b\0\0C=d\0E")
    text(3, "empty", b"")
    text(4, "dpkg", b"Package: aws-neuronx-dkms\nStatus: install ok installed\nVersion: "
                    b"2.25.4.0\nDescription: x\n y\n\nPackage: b\n \npackage:c")
    text(4, "dpkg-long", b"Package: a\nVersion: " + b"9" * 3000 + b"\n" + b"x" * 1024 + b"\n"
         + b" " * 1024 + b"\n\n")
    text(4, "dpkg-bytes", b"Package:\0\nPackage: \xff\0x\n\n")
    text(5, "pip", b"Torch__Neuronx.X-2.8.dist-info")
    text(5, "pip-egg", b"a-1.0-py3.10.egg-info")
    text(5, "pip-long", b"a" * 300 + b"-1.dist-info")
    text(5, "pip-near", b"-.dist-info")
    note = struct.pack("<III", 4, 20, 3) + b"GNU\0" + bytes(range(20))
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64,
                                                                 0, 0, 64, 56, 1, 0, 0, 0)
    text(6, "elf", head + struct.pack("<IIQQQQQQ", 4, 4, 120, 0, 0, len(note), len(note), 4) + note)
    text(6, "elf-note-cut", head + struct.pack("<IIQQQQQQ", 4, 4, 120, 0, 0, len(note), len(note),
                                               4) + note[:-4])
    text(6, "elf-note-huge", head + struct.pack("<IIQQQQQQ", 4, 4, 120, 0, 0, 2**64 - 1, 0,
                                                4) + struct.pack("<III", 2**32 - 1, 2**32 - 1, 3))
    text(6, "elf-offset", head + struct.pack("<IIQQQQQQ", 4, 4, 2**63, 0, 0, 100, 0, 4))
    text(6, "elf-32", b"\x7fELF\x01\x01\x01".ljust(16, b"\0")
         + struct.pack("<HHIIIIIHHHHHH", 3, 3, 1, 0, 52, 0, 0, 52, 32, 1, 0, 0, 0)
         + struct.pack("<IIIIIIII", 4, 84, 0, 0, len(note), len(note), 4, 4) + note)
    text(6, "elf-none", b"\x7fELF")


def failures():
    """What agents write below .incidents, and names there (tests/harness/incidents.py)."""
    claims = [incidents.claim(0), incidents.claim(3, state="ended", bundle=None, error_code=None,
                                                  bundle_state="none", error_location=None)]
    bare = incidents.claim(None, world_size=None, cluster_id=None, date_time=None, started=None)
    bundles = [incidents.bundle(claims[0], "/v\\xff", "i-0a"),
               incidents.bundle(claims[0], "", "", "snapshot", state="settling", object=None)]
    for name, data in (("decision", incidents.decision()),
                       ("decision-alone", incidents.decision(job=None, world_size=None,
                                                             agreed="alone", derived=True)),
                       ("decision-path", incidents.decision(cluster_id="../../x")),
                       ("record", incidents.record("i-0a", claims, bundles=bundles)),
                       ("record-bare", incidents.record("host-1.x", [bare])),
                       ("record-empty", incidents.record("i-0a", [])),
                       ("record-twice", incidents.record("i-0a", [bare, dict(bare, revision=2)])),
                       ("record-dots", incidents.record("..", claims)),
                       ("name-decision", incidents.decision_name().encode()),
                       ("name-record", incidents.record_name("i-0a").encode()),
                       ("name-dots", incidents.record_name("..").encode())):
        write("record", name, data)
# ---- messages of the bus: what is behind their head, fuzz_wire.c signs it ----

def wire_text(text):
    return bytes([len(text)]) + text


def wire_claim(**changes):
    fields = {"boot_id": wire_text(b"b" * 32), "pid": struct.pack(">I", 39738),
              "start_ticks": struct.pack(">Q", 123456), "revision": struct.pack(">I", 3),
              "instance_id": wire_text(b"i-0a1b2c3d4e5f60718"), "rank": struct.pack(">q", 3),
              "world_size": struct.pack(">q", 64), "cluster_id": wire_text(b"d99e36ea74c263ca"),
              "date_time": wire_text(b"20260527-051233"), "state": b"\2", "bundle_state": b"\2",
              "bundle": wire_text(b"neuron-core-dump-20260527T051233-0c21fa967905"),
              "has_error": b"\1", "error_code": struct.pack(">q", 1200),
              "location": wire_text(b"nrt_execute"), "started": struct.pack(">q", 60000),
              "event": struct.pack(">q", 1500)}
    fields.update(changes)
    return b"".join(fields.values())


def wire_decision(agreed=2, date_time=b"20260527-051233", opened=2000):
    return (struct.pack(">BI", agreed, 1) + wire_text(b"d99e36ea74c263ca") + wire_text(date_time)
            + b"\0" + wire_text(b"i-0a1b2c3d4e5f60718") + struct.pack(">qqq", 64, 5000000, opened))


def wire_body(kind=0, sender=b"i-0a1b2c3d4e5f60718", key=b"0123456789abcdef", claims=(),
              decision=b"", heard=b""):
    return (wire_text(sender) + bytes([kind]) + wire_text(key) + bytes([len(claims)])
            + b"".join(claims) + (b"\1" + decision if decision else b"\0")
            + struct.pack(">H", len(heard) // 16) + heard)


def wires():
    claims = wire_body(claims=[wire_claim(), wire_claim(pid=struct.pack(">I", 2))])
    news = wire_body(1, decision=wire_decision(), heard=bytes(range(64)))
    write("wire", "claims", claims)
    write("wire", "news", news)
    write("wire", "heartbeat", wire_text(b"i-1") + b"\2")
    write("wire", "empty", b"")
    for name, body in (("claims", claims), ("news", news)):
        write("wire", name + "-cut", body[:-1])
        write("wire", name + "-longer", body + b"\0")
        write("wire", name + "-half", body[:len(body) // 2])
    write("wire", "no-error", wire_body(claims=[wire_claim(has_error=b"\0", error_code=b"")]))
    write("wire", "unknown", wire_body(claims=[wire_claim(
        rank=struct.pack(">q", -1), world_size=struct.pack(">q", -1), cluster_id=b"\0",
        date_time=b"\0", bundle=b"\0", location=b"\0", started=struct.pack(">q", -2**63))]))
    for name, field in (("rank", {"rank": struct.pack(">q", -2)}), ("state", {"state": b"\3"}),
                        ("text", {"boot_id": b"\x21" + b"b" * 33}),
                        ("letter", {"location": wire_text(b"a\nb")}),
                        ("flag", {"has_error": b"\2"}),
                        ("age", {"event": struct.pack(">q", 2**62)}),
                        ("age-before", {"event": struct.pack(">q", -2**62)})):
        write("wire", "claim-" + name, wire_body(claims=[wire_claim(**field)]))
    write("wire", "key-short", wire_body(key=b"0123"))
    write("wire", "key-capital", wire_body(key=b"0123456789ABCDEF"))
    write("wire", "sender-none", wire_body(sender=b""))
    write("wire", "kind", wire_body(3))
    write("wire", "many-claims", wire_body(claims=[wire_claim()] * 20))
    write("wire", "too-many-claims", wire_body(claims=[wire_claim()] * 21))
    write("wire", "many-heard", wire_body(1, heard=bytes(512 * 16)))
    write("wire", "too-many-heard", wire_body(1, heard=bytes(513 * 16)))
    write("wire", "agreed-not", wire_body(1, decision=wire_decision(0)))
    write("wire", "agreed-more", wire_body(1, decision=wire_decision(4)))
    write("wire", "no-date-time", wire_body(1, decision=wire_decision(date_time=b"")))
    write("wire", "opened-unknown", wire_body(1, decision=wire_decision(opened=-2**63)))


# ---- cores of processes ----

CODE, STACK = 0x400000, 0x7ffe00000000
BUILD_ID = bytes(range(20))


def core_note(kind, data, name=b"CORE\0"):
    return struct.pack("<III", len(name), len(data), kind) + name.ljust(8, b"\0") + data.ljust(
        (len(data) + 3) // 4 * 4, b"\0")


def core_thread(tid, pc=CODE + 0x1000, sp=STACK + 0x800, signal=11):
    registers = [0] * 27
    registers[16], registers[19] = pc, sp
    head = struct.pack("<III", signal, 0, 0) + struct.pack("<H", signal).ljust(20, b"\0")
    return core_note(1, head + struct.pack("<IIII", tid, 1, 1, 1) + bytes(64)
                     + struct.pack("<27Q", *registers) + bytes(8))


def core_files(files, count=None, unit=4096):
    count = len(files) if count is None else count
    return core_note(0x46494c45, struct.pack("<QQ", count, unit) + b"".join(
        struct.pack("<QQQ", *f[:3]) for f in files) + b"".join(f[3] + b"\0" for f in files))


def core_page():
    """The first page of a program: its headers and its build id."""
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0x1000, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 0x2000, 0x2000, 4096)
    note = struct.pack("<III", 4, 20, 3) + b"GNU\0" + BUILD_ID
    load += struct.pack("<IIQQQQQQ", 4, 4, 0x200, 0x200, 0x200, len(note), len(note), 4)
    return (head + load).ljust(0x200, b"\0") + note.ljust(0xe00, b"\0")


FILES = [(CODE, CODE + 0x1000, 0, b"/usr/bin/program"),
         (CODE + 0x1000, CODE + 0x2000, 1, b"/usr/bin/program"),
         (0x500000, 0x501000, 0, b"/usr/lib/gone.so (deleted)")]


def elf_core(notes=None, machine=62, n_headers=None, kind=4):
    if notes is None:
        siginfo = struct.pack("<iiiiQ", 11, 0, 1, 0, 0x10).ljust(128, b"\0")
        auxv = b"".join(struct.pack("<QQ", *a) for a in ((9, CODE + 0x1000), (6, 4096),
                                                         (33, 0x700000), (0, 0)))
        notes = (core_thread(100) + core_note(3, bytes(40) + b"program".ljust(96, b"\0"))
                 + core_note(0x53494749, siginfo) + core_note(6, auxv) + core_files(FILES)
                 + core_note(2, bytes(512)) + core_thread(101, pc=0x500010)
                 + core_thread(102, sp=STACK + 0xffc) + core_thread(103, pc=0))
    segments = [(CODE, 5, core_page()), (CODE + 0x1000, 5, b""), (0x500000, 5, b""),
                (0x700000, 5, core_page()), (STACK, 6, bytes(0x1000))]
    offset = 64 + 56 * (len(segments) + 1)
    headers = struct.pack("<IIQQQQQQ", 4, 0, offset, 0, 0, len(notes), 0, 4)
    at = (offset + len(notes) + 4095) // 4096 * 4096
    body = b""
    for address, flags, data in segments:
        headers += struct.pack("<IIQQQQQQ", 1, flags, at + len(body), address, 0, len(data), 4096,
                               4096)
        body += data
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", kind, machine, 1, 0, 64, 0, 0, 64, 56,
        len(segments) + 1 if n_headers is None else n_headers, 64, 0, 0)
    return (head + headers + notes).ljust(at, b"\0") + body


def zstd_frame(data):
    """Of blocks that are not compressed, with a window of 2 MiB."""
    blocks = [data[i:i + 65536] for i in range(0, len(data), 65536)]
    return b"\x28\xb5\x2f\xfd\x00\x58" + b"".join(
        (len(b) << 3 | (b is blocks[-1])).to_bytes(3, "little") + b for b in blocks)


def cores():
    whole = elf_core()
    many = elf_core(notes=b"".join(core_thread(n) for n in range(300)))
    write("core", "empty", b"")
    write("core", "compressed", zstd_frame(whole))
    write("core", "compressed-many-threads", zstd_frame(many))
    write("core", "compressed-cut", zstd_frame(many)[:-3000])
    write("core", "compressed-twice", zstd_frame(many[:70000]) + zstd_frame(many[70000:]))
    write("core", "compressed-nothing", zstd_frame(b"")[:6] + b"\x01\0\0")
    write("core", "whole", whole)
    write("core", "arm64", elf_core(machine=183))
    write("core", "other-machine", elf_core(machine=20))
    write("core", "no-core", elf_core(kind=2))
    for n in (10, 64, 300, 600, 1500, len(whole) // 2, len(whole) - 100):
        write("core", f"cut-at-{n}", whole[:n])
    write("core", "headers-more", elf_core(n_headers=5000))
    write("core", "headers-extended", elf_core(n_headers=0xffff))
    write("core", "no-notes", elf_core(notes=b""))
    write("core", "note-huge", elf_core(notes=struct.pack("<III", 5, 0xffffffff, 1) + bytes(100)))
    write("core", "note-name-huge",
          elf_core(notes=struct.pack("<III", 0xffffffff, 8, 1) + bytes(100)))
    write("core", "thread-short", elf_core(notes=core_note(1, bytes(100))))
    write("core", "many-threads", many)
    write("core", "siginfo-short", elf_core(notes=core_thread(1) + core_note(0x53494749, bytes(8))))
    write("core", "files-count", elf_core(notes=core_thread(1) + core_files(FILES, 2**60)))
    write("core", "files-unit", elf_core(notes=core_thread(1) + core_files(FILES, unit=2**62)))
    write("core", "files-unnamed", elf_core(notes=core_thread(1) + core_note(
        0x46494c45, struct.pack("<QQQQQ", 1, 4096, CODE, CODE + 4096, 0))))
    write("core", "files-reversed", elf_core(notes=core_thread(1) + core_files(
        [(e, s, o, p) for s, e, o, p in FILES] + FILES[::-1])))
    write("core", "not-canonical", elf_core(notes=core_thread(1, pc=2**63, sp=2**64 - 8)))


# ---- the memory of a Python interpreter ----

PYTHON_MEMORY, PYTHON_CODE_TYPE, PYTHON_TEXT_TYPE = 0x10000000, 0x10000900, 0x10000a00


def python_offsets(version):
    """A row of python_offsets.def."""
    path = os.path.join(HERE, "../../collectors/crash/python_offsets.def")
    with open(path, encoding="ascii") as f:
        row = f.read().split(f"{{ .version = 0x{version:04x},", 1)[1].split("}", 1)[0]
    return {k: int(v) for k, v in re.findall(r"\.(\w+) = (\d+)", row)}


def python_memory(**change):
    """Of 3.11: two threads, one in f(), called by itself, with lines of each kind.
    @param change  what to put at some address instead"""
    o = python_offsets(0x030b)
    memory = bytearray(0x8000)
    base = PYTHON_MEMORY

    def put(at, value, size=8):
        memory[at:at + size] = value.to_bytes(size, "little")

    def text(at, characters, width=1):
        is_ascii = all(ord(c) < 128 for c in characters)
        put(at + o["object_type"], PYTHON_TEXT_TYPE)
        put(at + o["text_length"], len(characters))
        state = width * o["kind_unit"] | (o["ascii_bit"] if is_ascii else 0)
        put(at + o["text_state"], state, 4)
        data = b"".join(ord(c).to_bytes(width, "little") for c in characters)
        begin = at + o["text_data"] + (0 if is_ascii else o["non_ascii"])
        memory[begin:begin + len(data)] = data

    put(0x800, 0x030b02f0, 4)
    put(o["interpreters"], base + 0x1000)
    put(0x1000 + o["threads"], base + 0x2000)
    for at, following, frame in ((0x2000, 0x2400, 0x3000), (0x2400, 0, 0x3100)):
        put(at + o["thread_next"], base + following if following else 0)
        put(at + o["thread_interpreter"], base + 0x1000)
        put(at + o["thread_tid"], 100 + at)
        put(at + o["c_frame"], base + at + 0x200)
        put(at + 0x200 + o["current_frame"], base + frame)
    for at, previous, unit in ((0x3000, 0x3100, 9), (0x3100, 0, 2)):
        put(at + o["frame_code"], base + 0x4000)
        put(at + o["frame_previous"], base + previous if previous else 0)
        put(at + o["frame_instruction"], base + 0x4000 + o["code_instructions"] + 2 * unit)
    put(0x4000 + o["object_type"], PYTHON_CODE_TYPE)
    put(0x4000 + o["code_file"], base + 0x5000)
    put(0x4000 + o["code_name"], base + 0x5100)
    put(0x4000 + o["code_lines"], base + 0x5200)
    put(0x4000 + o["code_first_line"], 7, 4)
    text(0x5000, "/tmp/a.py")
    text(0x5100, "\u4f8b\u0444", 2)
    lines = bytes([0x81, 0x12, 0xd2, 1, 2, 0xe9, 6, 0xf2, 0x44, 2, 1, 1, 0xf8])
    put(0x5200 + o["bytes_size"], len(lines))
    memory[0x5200 + o["bytes_data"]:0x5200 + o["bytes_data"] + len(lines)] = lines
    for where, value in change.items():
        put(int(where[1:], 16), value)
    return bytes(memory)


def pythons():
    o = python_offsets(0x030b)
    write("python", "whole", python_memory())
    write("python", "cut", python_memory()[:0x4800])
    write("python", "empty", b"")
    write("python", "no-version", python_memory(a800=0))
    write("python", "version-3.13", python_memory(a800=0x030d00f0))
    write("python", "own-table", b"xdebugpy" + python_memory(a800=0x030d00f0)[8:])
    for name, at, value in (
            ("interpreters-endless", 0x1000 + o["interpreter_next"], PYTHON_MEMORY + 0x1000),
            ("threads-endless", 0x2400 + o["thread_next"], PYTHON_MEMORY + 0x2000),
            ("frames-endless", 0x3100 + o["frame_previous"], PYTHON_MEMORY + 0x3000),
            ("other-interpreter", 0x2000 + o["thread_interpreter"], 0),
            ("no-code", 0x4000 + o["object_type"], PYTHON_TEXT_TYPE),
            ("no-text", 0x5000 + o["object_type"], PYTHON_CODE_TYPE),
            ("text-long", 0x5000 + o["text_length"], 2**63 - 1),
            ("lines-long", 0x5200 + o["bytes_size"], 2**63 - 1),
            ("lines-many", 0x5200 + o["bytes_size"], 60000),
            ("instruction-before", 0x3000 + o["frame_instruction"], 0),
            ("instruction-far", 0x3000 + o["frame_instruction"], 2**64 - 1)):
        write("python", name, python_memory(**{f"a{at:x}": value}))


neffs()
protobufs()
elves()
cores()
pythons()
manifests()
bundles()
notices()
notes()
s3_answers()
sysfs_trees()
kmsgs()
nrt_logs()
processes()
failures()
wires()
