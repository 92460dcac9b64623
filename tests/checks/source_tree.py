"""What the checks and `make figures` know of the tree: its C files, their includes, functions and
names."""
import os
import re
import sys

FOLDERS = ("agent", "cli", "collectors", "config", "hook", "lib", "uploaders")

# Layers of docs/ARCHITECTURE.md: the longest matching folder counts.
LAYERS = {
    "lib/base": 0,
    "lib/event": 1, "lib/http": 1, "lib/neuron": 1, "config": 1,
    "agent/store": 2, "agent/api": 2, "agent/peers": 2, "collectors": 2, "uploaders": 2,
    "lib/bundle": 2,
    "agent": 3, "cli": 3, "hook": 3,
    "tests": 4,
}
# What may be included within a layer, and nothing else.
WITHIN_LAYER = (("lib/http", "lib/event/"), ("config", "lib/http/url.h"),
                ("collectors", "lib/bundle/frame.h"))

LITERAL_OR_COMMENT = re.compile(
    r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*.*?\*/|//[^\n]*', re.S)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]')
FUNCTION_END = re.compile(r"^}", re.M)


def c_files(root, folders=FOLDERS):
    found = []
    for folder in folders:
        for directory, _, names in os.walk(os.path.join(root, folder)):
            found += [os.path.relpath(os.path.join(directory, name), root)
                      for name in names if name.endswith((".c", ".h"))]
    return sorted(found)


def read(root, name):
    with open(os.path.join(root, name), encoding="utf-8") as file:
        return file.read()


def without_comments(text):
    """The text with each comment replaced by its line ends; strings stay."""
    return LITERAL_OR_COMMENT.sub(
        lambda m: m.group(0) if m.group(0)[0] in "\"'" else re.sub(r"[^\n]", "", m.group(0)), text)


def without_literals(text):
    """As without_comments(), and strings are emptied too."""
    return LITERAL_OR_COMMENT.sub(lambda m: '""' if m.group(0)[0] == '"' else "0" if m.group(0)[0]
                                  == "'" else re.sub(r"[^\n]", "", m.group(0)), text)


def includes(text):
    """(line number, is quoted, path) of each #include."""
    for number, line in enumerate(text.split("\n"), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1) == '"', match.group(2)


def owner(path, table):
    """The longest folder of the table that holds the path, or None."""
    folder = os.path.dirname(path)
    while folder:
        if folder in table:
            return folder
        folder = os.path.dirname(folder)
    return None


def functions(text):
    """(first line, last line, head) of each function: clang-format puts its head and its last }
    into column 1."""
    lines = without_literals(text).split("\n")
    start, head, is_macro = None, "", False
    for number, line in enumerate(lines, 1):
        if start is None and not head:
            is_macro = is_macro or line.startswith("#")
            if is_macro:
                is_macro = line.endswith("\\")
                continue
            if not re.match(r"[A-Za-z_]", line):
                continue
            first = number
        if start is None:
            head += " " + line
            if re.search(r"[;=}]", head) or (head.rstrip().endswith("{") and "(" not in head):
                head = ""
            elif head.rstrip().endswith("{"):
                start = first
        elif line.startswith("}"):
            yield start, number, head.strip().rstrip("{").strip()
            start, head = None, ""


def function_name(head):
    match = re.search(r"(\w+)\s*\(", re.sub(r"__attribute__\s*\(\(.*?\)\)", "", head))
    return match.group(1) if match else ""


def circles(edges):
    """The strongly connected components of more than one node of {node: {node: …}}, each sorted."""
    order, low, stack, on_stack, found = {}, {}, [], set(), []

    def visit(node):
        work = [(node, iter(sorted(edges.get(node, ()))))]
        order[node] = low[node] = len(order)
        stack.append(node)
        on_stack.add(node)
        while work:
            here, rest = work[-1]
            for there in rest:
                if there not in order:
                    order[there] = low[there] = len(order)
                    stack.append(there)
                    on_stack.add(there)
                    work.append((there, iter(sorted(edges.get(there, ())))))
                    break
                if there in on_stack:
                    low[here] = min(low[here], order[there])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[here])
                if low[here] == order[here]:
                    component = []
                    while True:
                        one = stack.pop()
                        on_stack.discard(one)
                        component.append(one)
                        if one == here:
                            break
                    if len(component) > 1:
                        found.append(sorted(component))

    for node in sorted(edges):
        if node not in order:
            visit(node)
    return found


def report(results):
    """TAP: results is a list of (claim, faults); exits with 1 when one has faults."""
    print(f"1..{len(results)}")
    for number, (claim, faults) in enumerate(results, 1):
        for fault in faults:
            print("# " + fault)
        print(f"{'not ok' if faults else 'ok'} {number} - {claim}")
    sys.exit(any(faults for _, faults in results))


def root_of_arguments():
    return sys.argv[1] if len(sys.argv) > 1 else os.environ.get("srcdir", ".")
