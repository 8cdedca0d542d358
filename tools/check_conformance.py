#!/usr/bin/env python3
"""Holds docs/api-conformance.md to the tests: every line of the list has one, each exists, none of theirs is left out.

usage: tools/check_conformance.py [PASSED]
PASSED: names of tests that passed, one a line, as tools/run_tests.py --passed writes them.
Prints what is wrong, how many lines have their tests, and with PASSED how many lines passed: every test named for them did.
Exit code 1 when something is wrong; tests that did not pass are the test run's business.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SECTIONS = {"A": (1, 11), "B": (12, 16), "C": (17, 22), "D": (23, 29), "E": (30, 37), "F": (38, 41), "G": (42, 46), "H": (47, 50),
            "I": (51, 53), "J": (54, 56), "K": (57, 64), "L": (65, 70), "M": (71, 75)}
LINES = [f"{letter}{n}" for letter, (first, last) in SECTIONS.items() for n in range(first, last + 1)]


def existing_tests():
    found = set()
    for path in (ROOT / "tests").rglob("*.cpp"):
        found |= {f"{suite}.{name}" for suite, name in
                  re.findall(r"^TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\)", path.read_text(encoding="utf-8"), re.M)}
    for path in (ROOT / "tests" / "e2e").glob("*.py"):
        found |= {f"{path.stem}:{name}" for name in re.findall(r"^def (\w+)\(", path.read_text(encoding="utf-8"), re.M)}
    return found


def main():
    text = (ROOT / "docs" / "api-conformance.md").read_text(encoding="utf-8")
    table = {line: [test.strip() for test in tests.split(",")]
             for line, tests in re.findall(r"^\| ([A-M]\d+) \|[^|]*\| ([^|]*) \|$", text, re.M)}
    tests = existing_tests()
    wrong = [f"{line} is not in the table" for line in LINES if line not in table]
    wrong += [f"{line} is no line of the list" for line in table if line not in LINES]
    wrong += [f"{line}: there is no test {name}" for line, names in table.items() for name in names if name not in tests]
    listed = {name for names in table.values() for name in names}
    wrong += [f"{name} is named after a line and not in the table" for name in sorted(tests)
              if re.search(r"\.Api[A-M]\d\d_", name) and name not in listed]
    for one in wrong:
        print(one)
    print(f"{len(LINES) - sum(line not in table for line in LINES)} of {len(LINES)} lines have tests, {len(listed)} tests in all")
    if len(sys.argv) > 1:
        # A typed or valued GoogleTest is Instance/Suite.Name/0.
        passed = {re.sub(r"^\w+/(?=\w+\.)|/\w+$", "", name)
                  for name in pathlib.Path(sys.argv[1]).read_text(encoding="utf-8").split()}
        missing = {line: [name for name in names if name not in passed] for line, names in table.items()}
        for line, names in missing.items():
            if names:
                print(f"{line}: not passed (failed, skipped or not run): {', '.join(names)}")
        print(f"{sum(not names for names in missing.values())} of {len(LINES)} lines passed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
