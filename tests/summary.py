"""Adds up the results of tests/run's stages.

    summary.py add ALL.json STAGE meson|pytest FILE   one stage's results; prints its line
    summary.py add ALL.json STAGE failed REASON       a stage that could not run at all
    summary.py total ALL.json                         the last line, and the exit status
"""
import json
import os
import sys
import xml.etree.ElementTree as ElementTree


def read_meson(path):
    """(passed, failures, skips) of meson's testlog.json: one JSON object a line."""
    passed, failures, skips = 0, [], []
    with open(path, encoding="utf-8") as file:
        for line in file:
            test = json.loads(line)
            result = test["result"]
            if result in ("OK", "EXPECTEDFAIL"):
                passed += 1
            elif result == "SKIP":
                said = (test.get("stdout", "") + test.get("stderr", "")).strip().splitlines()
                skips.append((test["name"], said[-1] if said else "exit status 77 without a word"))
            else:
                failures.append((test["name"], result.lower()))
    return passed, failures, skips


def read_pytest(path):
    passed, failures, skips = 0, [], []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = case.get("classname", "").split(".")[-1] + "::" + case.get("name", "")
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        if bad is not None:
            failures.append((name, (bad.get("message") or "").splitlines()[0:1]))
        elif case.find("skipped") is not None:
            skips.append((name, case.find("skipped").get("message", "")))
        else:
            passed += 1
    return passed, failures, skips


def line_of(passed, failed, skipped):
    return f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else "")


def add(all_path, stage, kind, what):
    try:
        if kind == "failed":
            passed, failures, skips = 0, [(stage, what)], []
        else:
            passed, failures, skips = {"meson": read_meson, "pytest": read_pytest}[kind](what)
    except (OSError, ValueError, ElementTree.ParseError) as error:
        passed, failures, skips = 0, [(stage, f"no results: {error}")], []
    stages = []
    if os.path.exists(all_path):
        with open(all_path, encoding="utf-8") as file:
            stages = json.load(file)
    stages.append({"stage": stage, "passed": passed, "failed": len(failures), "skipped": len(skips)})
    with open(all_path, "w", encoding="utf-8") as file:
        json.dump(stages, file)
    for name, reason in failures:
        print(f"FAILED {name}: {reason if isinstance(reason, str) else ''.join(reason)}")
    for name, reason in skips:
        print(f"skipped {name}: {reason}")
    print(f"== {stage}: {line_of(passed, len(failures), len(skips))}", flush=True)


def total(all_path):
    stages = []
    if os.path.exists(all_path):
        with open(all_path, encoding="utf-8") as file:
            stages = json.load(file)
    print()
    for stage in stages:
        print(f"  {stage['stage']:<40} {line_of(stage['passed'], stage['failed'], stage['skipped'])}")
    passed, failed, skipped = (sum(s[key] for s in stages) for key in ("passed", "failed", "skipped"))
    print(line_of(passed, failed, skipped))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    if sys.argv[1] == "add":
        add(*sys.argv[2:6])
    else:
        sys.exit(total(sys.argv[2]))
