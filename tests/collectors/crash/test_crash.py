#!/usr/bin/env python3
"""neuron-collect crash names the threads and frames that gdb and eu-stack name, from cores made for
real: complete, cut, and filtered ones, with and without the program's files."""
import os
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from cores import CLI, CRASHER, chains, core_of, eu_stack, gdb_chains, gdb_lines, report, run
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
    with tempfile.NamedTemporaryFile() as packed:
        packed.write(b"\x28\xb5\x2f\xfd" + bytes(100))
        packed.flush()
        result = run(CLI, "crash", packed.name)
        assert result.returncode == 1 and "zstd -d" in result.stderr, result
    for path, words in ((CLI, "not an ELF core"), ("/etc/hostname", "not an ELF core"),
                        ("/nonexistent", "cannot open")):
        result = run(CLI, "crash", path)
        assert result.returncode == 1 and words in result.stderr, result


# how: the rule, or None: none may hold; the frame that is to be found; what else the document says
PLANTED = {
    "null": ("null-pointer", "read_through"),
    "non-canonical": ("non-canonical", "read_through"),
    "use-after-free": ("use-after-free", "read_through"),
    "recursion": ("recursion", "recurse"),
    "stack": ("stack-exhausted", "use_much_stack"),
    "exit": ("exit-time", "at_exit"),
    "exit-other": ("exit-time", "use_in_thread"),
    "double-free": ("heap-damaged", "double_free"),
    "assertion": ("abort-with-message", "check_assertion"),
    "bus": ("mapped-file-cut", "read_cut_file"),
    "call-null": ("null-call", "call_null"),
    "divide": ("arithmetic", "divide"),
    "illegal": ("trap", "crash"),
    "lock": ("many-in-one-lock", "crash"),
    "handler": ("null-pointer", "read_through"),
    "handler-blocked": ("null-pointer", "read_through"),
    "abort": (None, "abort"),
    "wild": (None, "write_through"),
    "wild-lock": (None, "write_through"),
    "wild-threads": (None, "write_through"),
    "read-only": (None, "write_through"),
    "killed": (None, "kill"),
    "quit": (None, "raise"),
    "quit-threads": (None, "raise"),
    "handler-wild": (None, "write_through"),
}


def planted(how):
    """@return (document, text)"""
    threads = ["40"] if how.endswith("-threads") else []
    # freed memory is filled with 0x5a
    environment = {"MALLOC_PERTURB_": "165"} if how == "use-after-free" else {}
    with core_of(CRASHER, how.removesuffix("-threads"), *threads, environment=environment) as core:
        return report(core), run(CLI, "crash", core).stdout


@test
def planted_crashes_have_their_verdict_and_others_have_none():
    signatures = {}
    for how, (rule, function) in PLANTED.items():
        document, text = planted(how)
        found = [v["rule"] for v in document["verdicts"]]
        assert found[:1] == ([rule] if rule else []), (how, found)
        assert function in frames(document), (how, frames(document))
        assert all(v["evidence"] for v in document["verdicts"]), document["verdicts"]
        assert (f"**{rule}**" if rule else "Unknown") in text, text
        assert document["signal"]["raised_again_by_handler"] == how.startswith("handler"), how
        signatures[how] = document["signature"]["id"]
    for how, same in (("wild", "wild-threads"), ("null", "handler"), ("null", "handler-blocked")):
        assert signatures[how] == signatures[same], (how, same)
    assert len(set(signatures.values())) == 16, signatures


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
    assert document["fault"]["abort_message"].startswith(("free()", "double free")), document
    document, _ = planted("recursion")
    assert document["fault"]["stack"]["is_exhausted"], document["fault"]["stack"]
    for how in ("handler", "handler-blocked"):
        document, _ = planted(how)
        assert document["signal"]["address"] == "0x10", document["signal"]


@test
def what_memory_holds_is_not_in_the_report():
    with core_of(CRASHER, "null", environment={"MY_SETTING": "forty-two-of-them"}) as core:
        assert b"forty-two-of-them" in run("cat", core, text=False).stdout, "it is in the core"
        for arguments in (["crash", core], ["--json", "crash", core]):
            assert "forty-two" not in run(CLI, *arguments).stdout


if __name__ == "__main__":
    sys.exit(main())
