#!/usr/bin/env python3
"""neuron-collect crash names the threads and frames that gdb and eu-stack name, from cores made for
real: complete, cut, and filtered ones, with and without the program's files."""
import contextlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from cores import (CLI, CRASHER, PATIENCE, REPORT_WITH, SOURCE_DIR, chains, core_of, eu_stack,
                   gdb_chains, gdb_lines, need, report, report_with, run)
from tap import figures, main, test

THREADS = 200


def bare(name):
    """A function's name without what tells its aliases apart."""
    name = (name or "??").lstrip("_").removesuffix("_impl")
    for prefix in ("GI_", "libc_"):
        name = name.removeprefix(prefix).lstrip("_")
    return name


def frames(document):
    return [f["function"] for f in document["threads"]["groups"][0]["frames"]]


@test
def all_threads_have_the_frames_that_gdb_names_in_the_same_order():
    with core_of(CRASHER, "null", str(THREADS)) as core:
        document = report(core)
        ours, theirs = chains(document), gdb_chains(CRASHER, core)
    assert len(ours) == THREADS + 1 == document["threads"]["count"]
    assert ours.keys() == theirs.keys()
    for tid, chain in theirs.items():
        assert [pc for pc, _ in ours[tid]] == [pc for pc, _ in chain], (tid, ours[tid], chain)
        for (_, name), (_, wanted) in zip(ours[tid], chain):
            assert bare(name) == bare(wanted), (tid, name, wanted)
    assert frames(document)[:3] == ["read_through", "crash", "main"], frames(document)
    assert document["threads"]["chains_by_end"] == {"complete": THREADS + 1}


@test
def a_core_that_gdb_made_lacks_code_and_has_its_frames():
    with core_of(CRASHER, "null", "20", by_gdb=True) as core:
        document = report(core)
        theirs = gdb_chains(CRASHER, core)
    ours = {tid: [pc for pc, _ in chain] for tid, chain in chains(document).items()}
    assert ours == {tid: [pc for pc, _ in chain] for tid, chain in theirs.items()}
    assert document["threads"]["chains_by_end"] == {"complete": 21}
    assert document["fault"]["address_is"]["by"] == "instruction", document["fault"]


@test
def eu_stack_finds_the_same_addresses():
    with core_of(CRASHER, "null", "60") as core:
        ours, theirs = chains(report(core)), eu_stack(core)
    assert {tid: [pc for pc, _ in chain] for tid, chain in ours.items()} == theirs


@test
def equal_chains_are_one_group():
    with core_of(CRASHER, "null", "90") as core:
        groups = report(core)["threads"]["groups"]
    assert len(groups[0]["threads"]) == 1
    assert [len(g["threads"]) for g in groups[1:]] == [3] * 30


@test
def a_cut_core_keeps_the_chains_whose_stacks_are_in_it():
    with core_of(CRASHER, "null", str(THREADS)) as core:
        whole, n_bytes = chains(report(core)), os.stat(core).st_size
        for percent in (90, 50, 10, 1):  # the same is left by a limit (ulimit -c)
            os.truncate(core, n_bytes * percent // 100)
            document = report(core)
            cut, theirs = chains(document), eu_stack(core)
            assert document["core"]["bytes_missing"] > 0
            check_part(whole, cut, document)
            n, n_theirs = (sum(map(len, c.values())) for c in (cut, theirs))
            assert n >= n_theirs, (n, n_theirs)
            figures.append(f"{percent} % of a core: {n} frames of "
                           f"{sum(map(len, whole.values()))}, eu-stack {n_theirs}")


def check_part(whole, part, document):
    """Each thread is there with its pc, as far as the notes go; no frame is there that the whole
    core does not have; and a chain ends early only where the stack is missing."""
    if document["core"]["notes_are_cut"]:
        assert part.keys() < whole.keys()
    else:
        assert part.keys() == whole.keys()
    for tid, chain in part.items():
        assert chain == whole[tid][:len(chain)], (tid, chain, whole[tid])
        assert len(chain) >= 1
    for group in document["threads"]["groups"]:
        complete = [len(group["frames"]) == len(whole[tid]) for tid in group["threads"]]
        assert all(complete) or group["end"] == "no-stack", group["end"]


def same_chains(document):
    """Chains of functions, which do not depend on where things were mapped."""
    return sorted([str(f["function"]) for f in g["frames"]] for g in document["threads"]["groups"]
                  for _ in g["threads"])


@test
def filters_and_limits_of_the_kernel_take_only_what_they_take():
    with core_of(CRASHER, "null", "60") as core:
        whole = same_chains(report(core))
    for core_filter in (0x23, 0x33, 0x7f):
        with core_of(CRASHER, "null", "60", core_filter=core_filter) as core:
            document = report(core)
            assert same_chains(document) == whole, hex(core_filter)
            states = {m["file"] for m in document["modules"] if m["path"] != "[vdso]"}
            wanted = "not verified" if core_filter == 0x23 else "verified"
            assert states == {wanted}, (hex(core_filter), states)
    with core_of(CRASHER, "null", "60", core_filter=0) as core:
        document = report(core)
        assert document["threads"]["count"] == 61
        for group in document["threads"]["groups"]:
            assert len(group["frames"]) == 1 and group["end"] == "no-stack", group
            assert group["frames"][0]["function"] in ("read_through", "pause"), group
    with core_of(CRASHER, "null", "60", limit=1 << 20) as core:
        assert report(core)["threads"]["count"] == 61


@test
def without_its_program_a_chain_ends_there_and_the_build_id_is_named():
    with core_of(CRASHER, "null", "30") as core:
        directory = os.path.dirname(core)
        program = os.path.join(directory, "program")
        shutil.copy(CRASHER, program)
        with core_of(program, "null", "30") as other:
            whole = report(other)
            os.unlink(program)
            document = report(other)
            crashed = document["threads"]["groups"][0]
            assert crashed["end"] == "no-file" and len(crashed["frames"]) == 1, crashed
            # the threads wait in the C library, which is here; their callers are not
            for group in document["threads"]["groups"][1:]:
                assert [f["function"] for f in group["frames"]] == ["pause", None], group
                assert group["end"] == "no-file"
            missing = [m for m in document["modules"] if m["file"] == "missing"]
            assert [m["path"] for m in missing] == [program]
            note = run("eu-readelf", "-n", CRASHER).stdout
            assert missing[0]["build_id"] in note
            assert same_chains(report(other, "--exe", CRASHER)) == same_chains(whole)
            root = os.path.join(directory, "root")
            os.makedirs(root + directory)
            shutil.copy(CRASHER, root + program)
            assert same_chains(report(other, "--root", root)) == same_chains(whole)


@test
def a_program_larger_than_the_memory_of_its_reader_is_read():
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        program = os.path.join(directory, "program")
        shutil.copy(CRASHER, program)
        os.truncate(program, 3 << 30)
        with core_of(program, "null", "10") as core:
            document = report(core)
    assert document["threads"]["chains_by_end"] == {"complete": 11}, document["threads"]
    assert frames(document)[0] == "read_through"


@test
def another_file_at_the_same_path_is_not_used():
    with core_of(CRASHER, "null") as directory_of:
        program = os.path.join(os.path.dirname(directory_of), "program")
        shutil.copy(CRASHER, program)
        with core_of(program, "null") as core:
            shutil.copy(CLI, program)
            document = report(core)
    module = [m for m in document["modules"] if m["path"] == program][0]
    assert module["file"] == "mismatch" and module["found_in"] is None, module
    assert document["threads"]["groups"][0]["end"] == "no-file"


@test
def what_is_no_core_is_refused_with_a_sentence():
    for path, words in ((CLI, "not an ELF core"), ("/etc/hostname", "not an ELF core"),
                        ("/nonexistent", "cannot open")):
        result = run(CLI, "crash", path)
        assert result.returncode == 1 and words in result.stderr, result


# how: the rule, the frame where it happened
PLANTED = {
    "null": ("null-pointer", "read_through"),
    "non-canonical": ("non-canonical", "read_through"),
    "non-canonical-frame": ("non-canonical", "read_by_frame"),
    "call-wild": ("non-canonical", "call_wild"),
    "text-pointer": ("non-canonical", "read_through"),
    "use-after-free": ("use-after-free", "read_through"),
    "recursion": ("recursion", "recurse"),
    "stack": ("stack-exhausted", "use_much_stack"),
    "exit": ("exit-time", "at_exit"),
    "exit-other": ("exit-time", "use_in_thread"),
    "double-free": ("heap-damaged", "double_free"),
    "assertion": ("abort-with-message", "check_assertion"),
    "assertion-words": ("abort-with-message", "check_words"),
    "smashed": ("stack-damaged", "overrun"),
    "smashed-return": ("stack-damaged", "overrun_unguarded"),
    "bus": ("mapped-file-cut", "read_cut_file"),
    "call-null": ("null-call", "call_null"),
    "divide": ("arithmetic", "divide"),
    "illegal": ("trap", "run_trap"),
    "illegal-bytes": ("illegal-instruction", "run_illegal"),
    "lock": ("many-in-one-lock", "crash"),
    "lock-sent": ("many-in-one-lock", "wait_for_signal_of_child"),
    "sent": ("sent", "wait_for_signal_of_child"),
    "handler": ("null-pointer", "read_through"),
    "handler-blocked": ("null-pointer", "read_through"),
    "handler-bus": ("mapped-file-cut", "read_cut_file"),
    "handler-info": ("null-pointer", "read_through"),
    "handler-recursion": ("recursion", "recurse"),
}
# those of which nothing can be said
OTHERS = {
    "abort": "abort",
    "bad-stack": "use_bad_stack",
    "breakpoint": "run_breakpoint",
    "dlclose": "on_unload",
    "handler-in-other": "on_other_signal_crash",
    "handler-wild": "write_through",
    "idle-pool": "abort",
    "killed": "kill",
    "misaligned": "read_misaligned",
    "other-handler-abort": "on_other_signal",
    "own-lock": "crash",
    "quit": "raise",
    "quit-threads": "raise",
    "read-only": "write_through",
    "run-data": "run_data",
    "sent-by-thread": "spin",
    "wild": "write_through",
    "wild-lock": "write_through",
    "wild-threads": "write_through",
}
RAISED_AGAIN = {how for how in list(PLANTED) + list(OTHERS) if how.startswith("handler")}
LIBRARY = """
__attribute__((noinline)) static int read_it(volatile int *p) { return *p; }
__attribute__((destructor)) static void on_unload(void) { read_it((int *)0x7000dead0000); }
"""


@contextlib.contextmanager
def core_of_planted(how):
    threads = ["40"] if how.endswith("-threads") else []
    # freed memory is filled with 0x5a
    environment = {"MALLOC_PERTURB_": "90"} if how == "use-after-free" else {}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        if how == "dlclose":
            need("cc")
            library = environment["CRASHER_LIBRARY"] = os.path.join(directory, "library.so")
            source = os.path.join(directory, "library.c")
            with open(source, "w", encoding="ascii") as f:
                f.write(LIBRARY)
            result = run("cc", "-O1", "-g", "-shared", "-fPIC", "-o", library, source)
            assert result.returncode == 0, result.stderr
        with core_of(CRASHER, how.removesuffix("-threads"), *threads,
                     environment=environment) as core:
            yield core


def planted(how):
    """@return (document, text)"""
    with core_of_planted(how) as core:
        return report(core), run(CLI, "crash", core).stdout


@test
def planted_crashes_have_their_verdict_and_others_have_none():
    signatures, faults = {}, []
    for how in list(PLANTED) + list(OTHERS):
        rule, function = PLANTED.get(how) or (None, OTHERS[how])
        document, text = planted(how)
        found = [v["rule"] for v in document["verdicts"]]
        wanted = [rule] if rule else []
        if how == "lock-sent":
            wanted.append("sent")
        signature = document["signature"]["text"]
        again = document["signal"]["raised_again_by_handler"]
        for is_right, what in ((found == wanted, found),
                               (f":{function} " in signature + " ", signature),
                               (all(v["evidence"] for v in document["verdicts"]), "no evidence"),
                               ((f"**{rule}**" if rule else "Unknown") in text, "text"),
                               (again == (how in RAISED_AGAIN), f"raised again: {again}"),
                               ((document["context"] == "exit-time cleanup") ==
                                how.startswith("exit"), document["context"])):
            if not is_right:
                faults.append((how, what, document["signal"]["text"]))
        signatures[how] = document["signature"]["id"]
    assert not faults, "\n".join(map(str, faults))
    for how, same in (("wild", "wild-threads"), ("null", "handler"), ("null", "handler-blocked")):
        assert signatures[how] == signatures[same], (how, same)
    assert signatures["null"] != signatures["wild"], "another function"
    figures.append(f"{len(PLANTED)} planted crashes of {len({r for r, _ in PLANTED.values()})} "
                   f"rules, {len(OTHERS)} of none")


@test
def a_message_is_quoted_and_one_that_only_has_the_words_is_no_damage():
    for how, words in (("double-free", "double free"),
                       ("assertion-words", "free(): malloc() found it corrupt"),
                       ("lock", " (crasher+0x"), ("lock", "), which thread "),
                       ("sent", "SIGSEGV: sent by process ")):
        document, text = planted(how)
        assert words in document["verdicts"][0]["evidence"], document["verdicts"]
        assert words in text.split("### Evidence")[1].split("###")[0], text


@test
def a_message_is_bounded_and_without_secrets():
    document, text = planted("assertion-long")
    message = document["fault"]["abort_message"]
    assert "xxxx" in message and "[redacted]" in message and len(message) < 1100, message
    assert document["verdicts"][0]["rule"] == "abort-with-message"
    for said in (text, json.dumps(document)):
        assert "hunter22" not in said and "x" * 1024 not in said


@test
def the_kernel_says_which_process_met_broken_memory():
    with core_of(CRASHER, "bus") as core:
        for line, rule in (
                ("Memory failure: 0x1f: Sending SIGBUS to crasher:4711 due to hardware memory "
                 "corruption", "machine-check"),
                ("Memory failure: 0x1f: Sending SIGBUS to crasher:47112 due to hardware memory "
                 "corruption", "mapped-file-cut"),
                ("mce: [Hardware Error]: Machine check events logged", "mapped-file-cut"),
                ("tmpfs: Unknown parameter 'Memory failure: SIGBUS to crasher:4711 due to hardware "
                 "memory corruption", "mapped-file-cut")):
            document, text = report_with(core, {
                "pid": 4711, "kernel": [{"time": None, "kind": "mce", "text": line}]})
            assert [v["rule"] for v in document["verdicts"]] == [rule], document["verdicts"]
            assert line in text
            if rule == "machine-check":
                assert line in document["verdicts"][0]["evidence"]
    with core_of(CRASHER, "null") as core:  # no SIGBUS
        document, _ = report_with(core, {"pid": 4711, "kernel": [
            {"kind": "mce", "text": "Sending SIGBUS to crasher:4711 due to hardware memory "
                                    "corruption"}]})
    assert document["verdicts"][0]["rule"] == "null-pointer", document["verdicts"]


def replace_in(path, old, new):
    with open(path, "r+b") as f:
        data = f.read()
        assert len(old) == len(new) and old in data, old
        f.seek(0)
        f.write(data.replace(old, new))


@test
def what_a_driver_mapped_is_no_file_that_was_cut():
    for path, rules in ((b"/dev/neuron00", []), (b"/dev/shm/cras", ["mapped-file-cut"])):
        with core_of(CRASHER, "bus") as core:
            replace_in(core, b"/tmp/crasher-", path)
            document = report(core)
        assert [v["rule"] for v in document["verdicts"]] == rules, (path, document["verdicts"])


@test
def who_sent_a_signal_from_outside_of_the_container_has_no_number():
    with core_of(CRASHER, "sent") as core:
        with open(core, "r+b") as f:
            data = f.read()
            at = data.index(b"IGISCORE\0\0\0\0") + 12  # siginfo
            assert struct.unpack_from("<ii", data, at + 4) == (0, 0), "SI_USER"
            f.seek(at + 16)
            f.write(bytes(4))  # as the kernel has it of a process that the namespace does not
        verdict = report(core)["verdicts"][0]
    assert verdict["rule"] == "sent" and "outside of its container" in verdict["evidence"], verdict
    assert "process 0" not in verdict["evidence"], verdict


@test
def a_chain_whose_return_address_is_lost_is_not_called_complete():
    document, text = planted("no-return")
    crashed = document["threads"]["groups"][0]
    assert [f["function"] for f in crashed["frames"]] == ["write_through", "lose_return_address"]
    assert crashed["end"] == "no-return-address" and "its return address is 0" in text


@test
def a_symbol_without_size_does_not_name_what_is_far_behind_it():
    document, _ = planted("unsized")
    assert frames(document)[0] is None, frames(document)


@test
def a_limit_of_the_reader_is_not_told_as_a_fault_of_the_core():
    document, text = planted("wide-stacks")
    ends = document["threads"]["chains_by_end"]
    assert ends.keys() == {"complete", "read-limit"}, ends
    assert document["threads"]["groups"][0]["end"] == "complete", "the crashed one is read first"
    assert document["verdicts"][0]["rule"] == "null-pointer"
    assert "the core does not contain" not in text and "(64 MiB) was reached" in text


@test
def the_crashed_thread_has_the_lines_and_inlined_functions_that_gdb_names():
    for how in ("inlined", "double-free"):
        with core_of(CRASHER, how, "3") as core:
            document, wanted = report(core), gdb_lines(CRASHER, core)
        ours = []
        for frame in document["threads"]["groups"][0]["frames"]:
            lines = frame["lines"] or [{"function": frame["function"], "file": "", "line": 0}]
            ours += [(bare(x["function"]), os.path.basename(x["file"]), x["line"]) for x in lines]
        assert ours == [(bare(name), file, line) for name, file, line in wanted], (ours, wanted)
        inlined = [x["function"] for f in document["threads"]["groups"][0]["frames"]
                   for x in f["lines"] if x["is_inlined"]]
        if how == "inlined":
            assert inlined == ["read_inlined", "inline_it"], inlined


@test
def who_dies_of_debug_information_has_left_the_report_without_lines():
    with core_of(CRASHER, "inlined", "3") as core:
        whole, _ = report_with(core, {})
        document, text = report_with(core, {},
                                     program=REPORT_WITH.replace("_with", "_without_lines"))
    assert "crasher.c" in json.dumps(whole) and "crasher.c" not in text
    for frame in whole["threads"]["groups"][0]["frames"]:
        del frame["lines"]
    for key in ("signal", "fault", "verdicts", "threads"):
        assert document[key] == whole[key], (document[key], whole[key])
    assert "### Recommended next steps" in text


@test
def the_same_crash_has_the_same_signature_in_another_process():
    assert planted("wild")[0]["signature"] == planted("wild")[0]["signature"]


@test
def the_fault_is_what_the_program_did():
    document, text = planted("non-canonical")
    address = document["fault"]["address_is"]
    assert (address["register"], address["plus"], address["by"]) == ("rdi", 16, "instruction")
    assert address["address"] == "0x7ff8123456789ac0", address
    assert "address" not in document["signal"], "the kernel gives none, and 0 is not it"
    registers = {r["name"]: r for r in document["fault"]["registers"]}
    assert registers["rdi"]["points_to"] == "non-canonical" and "| rdi | " in text
    assert registers["rsp"]["points_to"] == "stack"
    document, _ = planted("double-free")
    assert document["signal"]["text"] == "SIGABRT: sent by the process itself", document["signal"]
    assert document["fault"]["abort_message"].startswith(("free()", "double free")), document
    document, _ = planted("recursion")
    assert document["fault"]["stack"]["is_exhausted"], document["fault"]["stack"]
    for how in ("handler", "handler-blocked"):
        document, _ = planted(how)
        assert document["signal"]["address"] == "0x10", document["signal"]


@test
def the_names_of_cplusplus_can_be_read():
    need("c++filt")
    document, text = planted("mangled")
    assert frames(document)[0] == "_ZN5model4loadEPVi", frames(document)
    assert "`c++filt < crash.md`" in text, text
    shown = subprocess.run(["c++filt"], input=text, text=True, stdout=subprocess.PIPE,
                           check=True, timeout=60 * PATIENCE).stdout
    assert "model::load(int volatile*)" in shown
    assert "c++filt" not in planted("null")[1]


@test
def a_stack_that_grows_is_not_said_to_have_an_end():
    document, text = planted("null")
    assert document["fault"]["stack"]["bytes_left"] is None, document["fault"]["stack"]
    assert "so far" in text and "are left" not in text
    document, text = planted("exit-other")  # in a thread of 256 KiB
    stack = document["fault"]["stack"]
    n_bytes = int(stack["end"], 16) - int(stack["start"], 16)
    assert n_bytes - (16 << 10) < stack["bytes_left"] < n_bytes <= 260 << 10, stack
    assert "are left" in text and "so far" not in text


def note(kind, data):
    return struct.pack("<III", 5, len(data), kind) + b"CORE\0\0\0\0" + data


@test
def a_core_without_a_thread_has_a_report():
    # SIGSEGV, SEGV_MAPERR at 0x100; and memory where sp, 0 as far as is known, may be near a stack
    notes = note(0x53494749, struct.pack("<iiiiQ", 11, 0, 1, 0, 0x100).ljust(128, b"\0"))
    head = b"\x7fELF\2\1\1".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 4, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    head += struct.pack("<IIQQQQQQ", 4, 0, 176, 0, 0, len(notes), 0, 4)
    head += struct.pack("<IIQQQQQQ", 1, 6, 4096, 0x10000, 0, 4096, 4096, 4096)
    with tempfile.NamedTemporaryFile() as core:
        core.write((head + notes).ljust(4096, b"\0") + bytes(4096))
        core.flush()
        document, text = report(core.name), run(CLI, "crash", core.name).stdout
    assert document["threads"]["count"] == 0 and document["signal"]["address"] == "0x100"
    assert "**Crashing thread:** not in the core" in text, text


@test
def what_is_known_beside_the_core_is_in_the_report():
    line = "crasher[4711]: segfault at 10 ip 0000 sp 0000 error 4"
    with core_of(CRASHER, "null") as core:
        before = report(core)
        signature = before["signature"]["id"]
        document, text = report_with(core, {
            "signatures": {signature: {"count": 3, "since": "2026-11-01T00:00:00Z"}},
            "kernel": [{"time": "2026-11-02T00:00:00Z", "kind": "segfault", "text": line}],
            "job": {"cluster": "big", "rank": 3}})
        other, other_text = report_with(core, {"signatures": {"0" * 16: {"count": 3}}})
        refused = run(REPORT_WITH, core, "[]")
    assert (before["signature"]["seen"], before["kernel"], before["job"]) == (None, [], None)
    assert document["signature"]["seen"] == {"count": 3, "since": "2026-11-01T00:00:00Z"}
    assert document["kernel"][0]["text"] == line and line in text
    assert document["job"] == {"cluster": "big", "rank": 3} and "| `cluster` | `big` |" in text
    assert "seen 3 times on this node before, since `2026-11-01T00:00:00Z`" in text
    assert other["signature"]["seen"] is None and "single occurrence" in other_text
    assert refused.returncode == 1 and "its context is not a JSON object" in refused.stderr


def documented_members():
    """@return {member: the words of its row} of the table of docs/CRASH-REPORTS.md"""
    with open(os.path.join(SOURCE_DIR, "docs/CRASH-REPORTS.md"), encoding="utf-8") as f:
        table = f.read().split("## crash.json")[1].split("## Context")[0]
    rows = re.findall(r"^\| `([a-z._]+)` \| (.*) \|$", table, re.MULTILINE)
    return {name: set(re.findall(r"`([^`]+)`", text)) for name, text in rows}


def check_members(value, path, words, rows, seen):
    """Each member has a row, or is a word of the row of what it is in."""
    if isinstance(value, list):
        for item in value:
            check_members(item, path, words, rows, seen)
    elif isinstance(value, dict) and path != "job":
        for name, inner in value.items():
            inner_path = f"{path}.{name}" if path else name
            seen.add(inner_path)
            assert inner_path in rows or name in words, f"{inner_path} is not documented"
            row = "threads.groups.end" if name == "chains_by_end" else inner_path
            check_members(inner, inner_path, rows.get(row, words), rows, seen)
            if name in ("pc", "value", "address", "start", "end") and inner_path[:7] != "threads":
                assert re.fullmatch("0x[0-9a-f]{1,16}", inner), (inner_path, inner)


@test
def the_document_has_the_members_that_are_documented():
    rows, seen = documented_members(), set()
    for how in ("null", "double-free", "wild-threads", "call-null", "handler"):
        check_members(planted(how)[0], "", set(), rows, seen)
    with core_of(sys.executable, "-c", "import ctypes; ctypes.string_at(0)") as core:
        check_members(report_with(core, {
            "kernel": [{"time": "T", "kind": "oom", "text": "t"}], "job": {"rank": 1}})[0],
                      "", set(), rows, seen)
    assert not rows.keys() - seen, f"{rows.keys() - seen}: documented, and never there"
    for name in ("fault.registers.points_to", "threads.groups.frames.lines.is_inlined",
                 "signal.raised_again_by_handler", "python.threads.frames.file"):
        assert name in seen, name


@test
def the_text_has_the_sections_of_an_analysis_and_what_to_do_next():
    document, text = planted("double-free")
    assert re.findall("^##+ (.*)$", text, re.MULTILINE)[1:9] == [
        "Crash call chain", "Crashing instruction", "Container environment", "Root cause",
        "Evidence", "Upstream fix status", "Recommended next steps"][:8], text
    for line in ("**Crash signal:** SIGABRT", "**Crashing thread:** ", "**Crash context:** runtime",
                 "**Determinism:** unknown (single occurrence)", "AddressSanitizer",
                 "`gdb -ex 'thread apply all bt' /", "`eu-unstrip -n --core /"):
        assert line in text, (line, text)
    assert "c++filt" not in text, "there is no name of C++ in it"
    for module in document["modules"]:
        assert (module["build_id"] or "none") in text


@test
def names_of_a_core_are_no_markup_in_the_text():
    name = "a`|<img src=x>[l](http:x)\n# head *b*"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        program = os.path.join(directory, name)
        shutil.copy(CRASHER, program)
        with core_of(program, "null") as core:
            document, text = report_with(core, {
                "job": {name: name}, "kernel": [{"time": name, "kind": "other", "text": name}]})
    assert [m["path"] for m in document["modules"] if m["path"].endswith(name)], document["modules"]
    assert "<img src=x>" in text and "\n# head" not in text
    outside = re.sub(r"`[^`\n]*`", "", text)
    for markup in ("`", "<img", "[l]", "*b*"):
        assert markup not in outside, (markup, outside)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({row.count("|") for row in table.splitlines()}) == 1, table


@test
def what_memory_holds_is_not_in_the_report():
    with core_of(CRASHER, "null", environment={"MY_SETTING": "forty-two-of-them"}) as core:
        assert b"forty-two-of-them" in run("cat", core, text=False).stdout, "it is in the core"
        for arguments in (["crash", core], ["--json", "crash", core]):
            assert "forty-two" not in run(CLI, *arguments).stdout
    secret = b"correct-horse-battery-staple"  # on the heap, a register points at it, and so does pc
    with core_of(CRASHER, "run-data") as core:
        assert secret in run("cat", core, text=False).stdout, "it is in the core"
        for arguments in (["crash", core], ["--json", "crash", core]):
            said = run(CLI, *arguments).stdout
            registers = {r["name"]: r for r in report(core)["fault"]["registers"]}
            assert registers["rdi"]["points_to"] == "anonymous memory", registers
            for form in (secret.decode(), secret[:8].hex(), secret[:8][::-1].hex()):
                assert form not in said, (form, said)


if __name__ == "__main__":
    sys.exit(main())
