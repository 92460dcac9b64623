#!/usr/bin/env python3
"""Where secrets are once a fetch is over: in memory that is left out of core files. Elsewhere there
is no copy of them on their own; what may be left is a whole reply or request in memory that
libcurl, expat or a pipe's reader had for it and gave back.
"""
import re
import time

from places import Driver, Imds, Keys, Server, Sts, cleanup, main, make_home, notes, test, write

SOON = time.time() + 3600
ARN = "arn:aws:iam::123456789012:role/Uploader"
OFF = {"AWS_EC2_METADATA_DISABLED": "true"}


def mappings(pid):
    """@return (start, end, whether it would be in a core file, name) of what can be read"""
    with open(f"/proc/{pid}/smaps", encoding="utf-8") as f:
        text = f.read()
    for block in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", text)[1:]:
        head = block.split("\n", 1)[0].split(None, 5)
        start, end = (int(x, 16) for x in head[0].split("-"))
        flags = re.search(r"(?m)^VmFlags:(.*)$", block).group(1).split()
        name = head[5] if len(head) > 5 else ""
        if head[1].startswith("r") and name not in ("[vvar]", "[vsyscall]"):
            yield start, end, "dd" not in flags, name


# What stands before a secret in a reply, a request or a header line.
IN_TRANSIT = re.compile(rb'(?:": ?"|<[A-Za-z]+>|oken: |tion: |IdentityToken=|\r\n\r\n)\Z')
# bytes of a secret that are not looked for: malloc writes over the first 16 of what is given back
HEAD = 16
SHADOW = 1 << 28  # mappings above are a sanitizer's


def find(pid, secret, head=HEAD):
    """@return (copies that a core file would have, those of them on their own, copies elsewhere)"""
    dumped = alone = hidden = 0
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for start, end, is_dumped, name in mappings(pid):
            try:
                memory.seek(start)
                data = memory.read(end - start) if end - start < SHADOW else b""
            except OSError:
                continue
            for hit in re.finditer(re.escape(secret[head:].encode()), data):
                if not is_dumped:
                    hidden += 1
                    continue
                at = hit.end() - len(secret)
                before = data[max(0, at - 24):max(0, at)]
                dumped += 1
                alone += not IN_TRANSIT.search(before)
                notes.append(f"{secret[:24]}… in {name or 'anonymous memory'} after {before!r}")
    return dumped, alone, hidden


def check(driver, keys, *gone):
    """@param gone  secrets that are not needed any more"""
    driver.holds(keys)
    for secret in keys.secrets():
        _, alone, hidden = find(driver.process.pid, secret)
        assert hidden > 0, "it is held somewhere"
        assert alone == 0, f"{secret[:20]}… is {alone} times where a core file would have it"
    for secret in gone:
        _, alone, hidden = find(driver.process.pid, secret, 0)
        assert alone == hidden == 0, (f"{secret[:20]}… is still there, {alone} times where a core "
                                      "file would have it")


@test
def the_search_finds_what_is_there():
    keys = Keys("env")
    d = Driver(keys.environment())
    d.holds(keys)
    dumped, alone, hidden = find(d.process.pid, keys.secret_key)
    assert (dumped == alone > 0
            and hidden > 0), "the environment block is the process's own, and in every core file"


@test
def keys_of_a_file_are_only_in_hidden_memory():
    keys, other = Keys("file"), Keys("other")
    d = Driver(OFF, make_home(credentials=f"[default]\n{keys.file()}\n[other]\n{other.file()}"))
    check(d, keys, *other.secrets())
    assert all(find(d.process.pid, secret)[0] == 0 for secret in keys.secrets() + other.secrets())


@test
def keys_of_a_process_are_only_in_hidden_memory():
    home, keys = make_home(), Keys("process")
    write(home + "/answer", keys.process_json())
    write(home + "/.aws/config", f"[default]\ncredential_process = cat {home}/answer\n")
    check(Driver(OFF, home), keys)


@test
def keys_of_a_container_are_only_in_hidden_memory_and_its_token_is_gone():
    home, keys = make_home(), Keys("ecs")
    token = "pod-token-" + "x" * 40
    server = Server(lambda r: (200, keys.service_json(SOON)))
    check(Driver({"AWS_CONTAINER_CREDENTIALS_FULL_URI": server.url,
                  "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": write(home + "/t", token)}), keys,
                  token)


@test
def keys_of_the_instance_are_only_in_hidden_memory_and_the_token_is_gone():
    keys = Keys("imds")
    imds = Imds(keys, SOON)
    check(Driver({"AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url}), keys, "imds-token-0==")


@test
def keys_of_a_role_are_only_in_hidden_memory_and_those_that_asked_are_gone():
    base, keys = Keys("base"), Keys("role")
    sts = Sts({ARN: keys}, [base])
    home = make_home(config=f"[default]\nrole_arn = {ARN}\nsource_profile = base\n",
                     credentials=f"[base]\n{base.file()}")
    check(Driver({**OFF, "AWS_ENDPOINT_URL_STS": sts.url}, home), keys, *base.secrets())


@test
def keys_of_a_web_identity_are_only_in_hidden_memory_and_its_token_is_gone():
    home, keys = make_home(), Keys("web")
    sts = Sts({ARN: keys})
    sts.web_token = "eyJhbGciOiJSUzI1NiJ9." + "x" * 900
    check(Driver({**OFF, "AWS_ENDPOINT_URL_STS": sts.url, "AWS_ROLE_ARN": ARN,
                  "AWS_WEB_IDENTITY_TOKEN_FILE": write(home + "/t", sts.web_token)}),
          keys, sts.web_token)


if __name__ == "__main__":
    raise SystemExit(main(cleanup))
