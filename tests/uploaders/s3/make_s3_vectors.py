#!/usr/bin/env python3
"""Writes s3_vectors.json: requests to S3 with hard keys and queries, as botocore signs them (an
implementation that is not ours). Needs botocore; what it writes is committed, so that testing needs
none. usage: make_s3_vectors.py > s3_vectors.json"""
import datetime
import json
import sys
from unittest import mock
from urllib.parse import quote

import botocore
import botocore.auth
import botocore.awsrequest
import botocore.credentials

HOST = "evidence.s3.eu-west-1.amazonaws.com"
TIME = datetime.datetime(2026, 5, 27, 5, 12, 33)
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
ACCESS, SECRET, TOKEN = ("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
                         "FwoGZXIvYXdzEXAMPLE//token+with=signs==")

KEYS = {
    "a plain key": "neuron/20260527-051233-d99e36ea74c263ca/i-0123456789abcdef0/x.tar.zst",
    "blanks": "a b/ c /  d",
    "plus, equals, percent": "a+b=c%d%20e%2Fg%",
    "star, tilde, unreserved": "*~-._",
    "all of printable ASCII": "".join(chr(c) for c in range(0x20, 0x7f)),
    "control characters": "a\tb\nc\x01\x7f",
    "unicode": "bündel/数据/🚀.tar.zst",
    "an empty segment": "a//b///c",
    "a slash first": "/a",
    "a slash last": "a/",
    "dots between slashes": "./a/./b/.",
    "two dots between slashes": "a/../b/../../c",
    "1,024 bytes": "%é " * 256,
    "no key": "",
}
QUERIES = {
    "uploads": [["uploads", ""]],
    "a part": [["partNumber", "17"], ["uploadId", "2~a+b/c=d_e.f-g%h i"]],
    "a page of objects": [["list-type", "2"], ["prefix", "neu ron/é+/"],
                          ["continuation-token", "1/abc+def=="], ["encoding-type", "url"],
                          ["delimiter", "/"], ["max-keys", "1000"]],
    "names that sort by their escapes": [["~", "1"], ["a", "2"], ["A", "3"], ["a-", "4"],
                                         ["a b", "5"], ["é", "6"], ["a", "1"], ["a", ""]],
}


def vector(name, key, queries, token):
    path = quote("/" + key, safe="/~")
    query = "&".join(quote(k, safe="~") + "=" + quote(v, safe="~") for k, v in queries)
    request = botocore.awsrequest.AWSRequest("PUT", "https://%s%s%s"
                                             % (HOST, path, "?" + query if query else ""), headers={
        "x-amz-content-sha256": EMPTY, "if-none-match": "*",
        "X-Amz-Meta-Neuron-Collectd-Plan": "b0" * 32,
        "x-amz-tagging": "cluster=prod%20a&rank=3"})
    auth = botocore.auth.S3SigV4Auth(botocore.credentials.Credentials(ACCESS, SECRET, token), "s3",
                                     "eu-west-1")
    with mock.patch("botocore.auth.get_current_datetime", return_value=TIME):
        auth.add_auth(request)
    return {"name": name, "key": key, "queries": queries, "token": token, "path": path,
            "canonical_query": auth.canonical_request(request).split("\n")[2],
            "signature": request.headers["Authorization"].split("Signature=")[1]}


vectors = [vector("key: " + n, key, [], None) for n, key in KEYS.items()]
vectors += [vector("query: " + n, "a b", queries, None) for n, queries in QUERIES.items()]
vectors += [vector("a session token", "a", [], TOKEN)]
json.dump({"origin": "botocore " + botocore.__version__, "host": HOST,
           "time": TIME.isoformat() + "Z", "region": "eu-west-1",
           "access_key": ACCESS, "secret_key": SECRET, "payload": EMPTY, "vectors": vectors},
           sys.stdout, indent=1)
print()
