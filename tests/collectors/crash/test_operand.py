#!/usr/bin/env python3
"""The operand in memory that x86_operand finds is the one that objdump prints, of each instruction
of programs and libraries that are here."""
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from cores import BUILD_DIR, CRASHER, PATIENCE, need, run
from tap import Skip, figures, main, test

OPERAND_OF = os.path.join(BUILD_DIR, "tests/collectors/crash/operand_of")
# by DWARF's numbers
REGISTERS = "rax rdx rcx rbx rsi rdi rbp rsp r8 r9 r10 r11 r12 r13 r14 r15".split()
OPERAND = re.compile(r"(%\w\w:)?(-?0x[0-9a-f]+)?\((%\w+)(?:,(%\w+),(\d))?\)")
LIBRARIES = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib/x86_64-linux-gnu/libm.so.6",
             "/lib/x86_64-linux-gnu/libcrypto.so.3", "/usr/bin/python3"]
BY_NAME = ("movs", "stos", "lods", "scas", "cmps", "ins", "outs", "xlat")  # and by rsi, rdi, rbx


def expected(code, text):
    """@return what operand_of is to print; None: what it prints does not matter"""
    if "(bad)" in text or re.match(r"(rex[.\w]*|data16|addr32)\s*$", text):
        return None
    if code[0] == 0x9b or re.match("rex[.RWXB]* v", text) or "pop " in text:
        return None  # two instructions in one line; data among code; `pop`, which looks like XOP
    jump = re.search(r"(?:call|jmp) +\*%(r\w+)$", text)
    if jump:
        return f"jump {REGISTERS.index(jump[1])}"
    match = OPERAND.search(text)
    if not match:
        return "-"
    segment, displacement, base, index, scale = match.groups()
    words = text.split("(")[0].split()
    if (segment in ("%fs:", "%gs:") or base == "%rip" or base[1:] not in REGISTERS or
            (index or "%rax")[1:3] in ("xm", "ym", "zm") or
            any(w.startswith("lea") and w != "leave" for w in words) or
            (segment in ("%ds:", "%es:") and any(w.startswith(BY_NAME) for w in words))):
        return "-"
    first = next(b for b in code if b not in (0x66, 0xf2, 0xf3, 0x2e, 0x36, 0x3e, 0x26, 0xf0))
    if first == 0x62:  # EVEX
        return "-"
    number = -1 if index in (None, "%riz") else REGISTERS.index(index[1:])
    shift = {"1": 0, "2": 1, "4": 2, "8": 3}[scale or "1"]
    value = int(displacement or "0", 16)
    if value >= 1 << 63:
        value -= 1 << 64
    return f"{REGISTERS.index(base[1:])} {number} {shift} {value}"


def instructions(path):
    """@return {bytes: text} of what objdump finds"""
    found = {}
    for line in run("objdump", "-d", "-w", path).stdout.splitlines():
        parts = line.split("\t")
        if len(parts) == 3:
            found[bytes.fromhex(parts[1].replace(" ", ""))] = parts[2].split("#")[0].strip()
    return found


@test
def operands_are_those_that_objdump_prints():
    need("objdump")
    if os.uname().machine != "x86_64":
        raise Skip("the programs here are of another machine")
    all_found = {}
    for path in [CRASHER] + [p for p in LIBRARIES if os.path.exists(p)]:
        all_found.update(instructions(path))
    codes = sorted(all_found)
    said = subprocess.run([OPERAND_OF], input="".join(c.hex() + "\n" for c in codes), text=True,
                          stdout=subprocess.PIPE, check=True, timeout=120 * PATIENCE).stdout
    said = said.splitlines()
    assert len(said) == len(codes) > 1000, len(said)
    wrong, n_found, n_unknown = [], 0, 0
    for code, ours in zip(codes, said):
        wanted = expected(code, all_found[code])
        n_found += ours != "-"
        if wanted is None or ours == wanted:
            continue
        wrong.append((code.hex(" "), all_found[code], ours, wanted))
    figures.append(f"{len(codes)} instructions, {n_found} with an operand that is known")
    assert not wrong, (len(wrong), wrong[:40])


if __name__ == "__main__":
    sys.exit(main())
