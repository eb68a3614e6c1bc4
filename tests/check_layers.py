"""Fails an #include that goes against tests/layers.txt; see there for the table's form.

    check_layers.py ROOT
"""
import os
import re
import sys
import tempfile

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
COMMENT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.S)
SKIP = re.compile(r"^(build|\.)")


def read_table(path):
    table = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            words = line.split("#")[0].split()
            if words:
                table[words[0]] = (
                    {w for w in words[1:] if not w.startswith("!")},
                    {w[1:] for w in words[1:] if w.startswith("!")},
                )
    return table


def sources(root):
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders if not SKIP.match(f)]
        for name in files:
            if name.endswith((".c", ".h")):
                yield os.path.relpath(os.path.join(folder, name), root)


def owner(table, path):
    """The longest row that this file lies under, or None."""
    while path:
        if path in table:
            return path
        path = os.path.dirname(path)
    return None


def resolve(root, source, name):
    """The repository file that an #include names, or None for one from outside."""
    if os.path.basename(name) == "baton.pb-c.h":  # generated
        return "proto/baton.proto"
    for base in (os.path.dirname(source), "", "lib", "proto"):
        path = os.path.normpath(os.path.join(base, name))
        if os.path.exists(os.path.join(root, path)):
            return path
    return None


def check_file(root, table, source):
    row = owner(table, source)
    if row is None:
        return [f"{source}: no row of tests/layers.txt covers it"]
    folder = owner({k: v for k, v in table.items() if not k.endswith(".c")}, source)
    allowed, forbidden = table[row]
    with open(os.path.join(root, source), encoding="utf-8") as file:
        text = file.read()
    problems = []
    for quote, name in INCLUDE.findall(text):
        if name in forbidden:
            problems.append(f"{source}: {row} must not include {name}")
        target = resolve(root, source, name)
        if target is None:
            if quote == '"':
                problems.append(f'{source}: "{name}" is no file of this repository; write <{name}>')
            continue
        there = owner({k: v for k, v in table.items() if not k.endswith(".c")}, target)
        if there != folder and not {there, target, "*"} & allowed:
            problems.append(f"{source}: {row} must not use {there} ({name})")
    code = COMMENT.sub(" ", text)
    for name in forbidden:
        if name.endswith("()") and re.search(rf"\b{re.escape(name[:-2])}\b", code):
            problems.append(f"{source}: {row} must not call {name}")
    return problems


def check_alone(root, table):
    """A header that a row names alone drags nothing along that the row could not use itself."""
    problems = []
    for row, (allowed, _) in table.items():
        for header in allowed:
            if not header.endswith(".h") or not os.path.exists(os.path.join(root, header)):
                continue
            with open(os.path.join(root, header), encoding="utf-8") as file:
                targets = [resolve(root, header, name) for _, name in INCLUDE.findall(file.read())]
            for target in filter(None, targets):
                if not {owner(table, target), target, "*"} & allowed:
                    problems.append(f"{header}: {row} may use this header, but not {target}, which it includes")
    return problems


def check(root, table):
    problems, count = check_alone(root, table), 0
    for source in sorted(sources(root)):
        problems += check_file(root, table, source)
        count += 1
    return problems, count


def self_test(table):
    """What the check is for must be found, or the check itself is broken."""
    planted = {
        "lib/base/x.h": ("", 0),
        "lib/base/a.c": ('#include "kv/x.h"\n', 1),
        "lib/kv/x.h": ("", 0),
        "lib/kv/y.c": ('#include "base/x.h"\n#include "x.h"\n#include <stdio.h>\n', 0),
        "lib/engine/a.c": ("  # include <uv.h>\n", 1),
        "conductor/core/x.h": ("", 0),
        "conductor/core/a.c": ('#include "kv/x.h"\n#include "baton.pb-c.h"\nint a = clock_now_ns();\n', 3),
        "conductor/core/b.c": ('/* clock_now_ns() */ const char *a = "clock_now_ns()";\n', 0),
        "conductor/a.c": ('#include "conductor/core/x.h"\n#include "decode-node/core/x.h"\n', 1),
        "decode-node/core/x.h": ("", 0),
        "prefill-node/main.c": ('#include "decode-node/core/x.h"\n', 0),
        "prefill-node/other.c": ('#include "decode-node/core/x.h"\n', 1),
        "elsewhere/a.c": ("", 1),
        "cli/a.c": ('#include "decode-node/core/x.h"\n#include "nowhere.h"\n', 1),
    }
    with tempfile.TemporaryDirectory() as root:
        os.makedirs(os.path.join(root, "proto"))
        for path in ["proto/baton.proto", *planted]:
            os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(planted.get(path, ("",))[0])
        for path, (_, expected) in planted.items():
            found = check_file(root, table, path)
            if len(found) != expected:
                return f"self-test: {path}: {expected} problems expected, found {found}"
    return None


def main():
    root = sys.argv[1]
    table = read_table(os.path.join(root, "tests/layers.txt"))
    broken = self_test(table)
    if broken:
        print(broken)
        return 1
    problems, count = check(root, table)
    for problem in problems:
        print(problem)
    print(f"{count} files checked, {len(problems)} problems")
    return 1 if problems or not count else 0


if __name__ == "__main__":
    sys.exit(main())
