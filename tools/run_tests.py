#!/usr/bin/env python3
"""Runs the tests of a build folder and adds up what happened.

usage: tools/run_tests.py build/release [--only NAME,...] [--split NAME,...] [--jobs N] [--timeout S]
                          [--summary FILE] [--passed FILE]

Reads tests.json of the build folder. GoogleTest binaries count test by test; a binary that crashes or hangs counts one
failure for every test that it did not finish. Scripts count as one test each (exit code 77: skipped), or as what their
last line says. Prints failed tests with their output, every skip with its reason, and at the end
"N passed, N failed, N skipped". Exit code 1 when a test failed or none ran.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree

COUNTS = re.compile(r"(\d+) passed, (\d+) failed(?:, (\d+) skipped)?")


running = set()  # process groups, for the case that this program is told to stop


def stop_everything(_signal, _frame):
    for group in list(running):
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass
    os._exit(1)


class Outcome:
    """What one binary or script did."""

    def __init__(self, name):
        self.name = name
        self.passed = 0
        self.names = []  # of tests that passed, where they have names: Suite.Name, or file:function of a script
        self.failed = []  # (test name, text)
        self.skipped = []  # (test name, reason)
        self.seconds = 0.0


def run_command(command, timeout, env):
    """(exit code or None after a timeout, output). The whole process group ends with the time."""
    with tempfile.TemporaryFile() as sink:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, env=env,
                                   start_new_session=True)
        running.add(process.pid)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        try:
            os.killpg(process.pid, signal.SIGKILL)  # also what a test left running
        except ProcessLookupError:
            pass
        running.discard(process.pid)
        process.wait()
        sink.seek(0)
        return code, sink.read().decode("utf-8", "replace")


def how_it_ended(code, timeout):
    if code is None:
        return f"did not finish within {timeout:.0f} s"
    return f"ended by signal {-code}" if code < 0 else f"exit code {code}"


def list_gtests(command, env):
    """Those that a run with `env` would run."""
    code, text = run_command(command + ["--gtest_list_tests"], 60, env)
    names, suite = [], ""
    for line in text.splitlines() if code == 0 else []:
        word = line.split("#")[0].strip()
        if line.startswith("  ") and word:
            names.append(suite + word)
        elif word.endswith("."):
            suite = word
    names = [name for name in names if ".DISABLED_" not in name and not name.startswith("DISABLED_")]
    return names[int(env.get("GTEST_SHARD_INDEX", 0))::int(env.get("GTEST_TOTAL_SHARDS", 1))]


def test_output(text, name):
    """The part of a GoogleTest log between [ RUN ] and the verdict of one test; to the end if there is none."""
    start = text.find(f"[ RUN      ] {name}\n")
    if start < 0:
        return ""
    ends = [at for mark in ("[       OK ]", "[  FAILED  ]", "[  SKIPPED ]") if (at := text.find(mark, start)) >= 0]
    return text[start:min(ends)] if ends else text[start:]


def read_report(outcome, report, text):
    """Counts from GoogleTest's XML report. False when it is missing or broken."""
    try:
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return False
    for case in cases:
        if case.get("status") == "notrun":
            continue
        name = f"{case.get('classname')}.{case.get('name')}"
        skip = case.find("skipped")
        if case.find("failure") is not None:
            outcome.failed.append((name, test_output(text, name)))
        elif skip is not None:
            reason = " ".join((skip.get("message") or skip.text or "").split("\n")[1:]).strip()
            outcome.skipped.append((name, reason or "no reason given"))
        else:
            outcome.passed += 1
            outcome.names.append(name)
    return True


def read_log_of_crash(outcome, command, env, text, ending):
    """Counts without a report: what the log shows as done is done, every other test failed."""
    verdicts = re.findall(r"^\[ +(OK|FAILED|SKIPPED) +\] ([\w/.]+).*\(\d+ ms\)$", text, re.M)
    done = {name: verdict for verdict, name in verdicts}
    names = list_gtests(command, env) or [outcome.name + " (its tests cannot be listed)"]
    for name in names:
        verdict = done.get(name)
        if verdict == "OK":
            outcome.passed += 1
        elif verdict == "SKIPPED":
            outcome.skipped.append((name, "see the log: the binary ended before its report"))
        elif verdict == "FAILED":
            outcome.failed.append((name, test_output(text, name)))
        elif f"[ RUN      ] {name}\n" in text:
            outcome.failed.append((name, test_output(text, name) + f"\n{outcome.name} {ending}"))
        else:
            outcome.failed.append((name, f"did not run: {outcome.name} {ending}"))


def run_gtest(entry, timeout, env):
    outcome = Outcome(entry["name"])
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.xml")
        code, text = run_command(entry["command"] + [f"--gtest_output=xml:{report}"], timeout, env)
        ending = how_it_ended(code, timeout)
        if not read_report(outcome, report, text):
            read_log_of_crash(outcome, entry["command"], env, text, ending)
    if code != 0 and not outcome.failed:  # a leak found at exit, for example
        outcome.failed.append((entry["name"], text[-6000:] + f"\n{ending} though every test passed"))
    return outcome


def run_script(entry, timeout, env):
    outcome = Outcome(entry["name"])
    code, text = run_command(entry["command"], timeout, env)
    lines = text.strip().splitlines()
    script = next((pathlib.Path(word).stem for word in entry["command"] if word.endswith(".py")), entry["name"])
    outcome.names = [f"{script}:{line.removeprefix('PASSED ')}" for line in lines if line.startswith("PASSED ")]
    counts = COUNTS.fullmatch(lines[-1].strip()) if lines else None
    if code == 77:
        outcome.skipped.append((entry["name"], lines[-1] if lines else "no reason given"))
    elif counts and code is not None:
        outcome.passed = int(counts[1])
        outcome.skipped = [(entry["name"], line.partition("SKIP ")[2]) for line in lines if line.startswith("SKIP ")]
        failed = max(int(counts[2]), 1 if code != 0 else 0)
        outcome.failed = [(entry["name"], text[-6000:])] + [(entry["name"], "")] * (failed - 1) if failed else []
    elif code == 0:
        outcome.passed = 1
    else:
        outcome.failed.append((entry["name"], text[-6000:] + f"\n{how_it_ended(code, timeout)}"))
    return outcome


def split(entries, names, parts):
    """Those binaries in `parts` parts that run side by side, before the others: they take longest."""
    first = []
    for entry in [entry for entry in entries if entry["name"] in names and entry["kind"] == "gtest"]:
        entries = [other for other in entries if other is not entry]
        first += [dict(entry, name=f"{entry['name']} ({part + 1} of {parts})",
                       env={"GTEST_TOTAL_SHARDS": str(parts), "GTEST_SHARD_INDEX": str(part)})
                  for part in range(parts)]
    return first + entries


def run_entry(entry, timeout, env):
    env = {**env, **entry.get("env", {})}
    start = time.monotonic()
    outcome = (run_gtest if entry["kind"] == "gtest" else run_script)(entry, timeout, env)
    outcome.seconds = time.monotonic() - start
    print(f"{outcome.name}: {outcome.passed} passed, {len(outcome.failed)} failed, {len(outcome.skipped)} skipped "
          f"({outcome.seconds:.1f} s)", flush=True)
    return outcome


def print_details(outcomes):
    for outcome in outcomes:
        for name, text in outcome.failed:
            if text:
                print(f"\n=== FAILED {outcome.name}: {name}\n{text.rstrip()}")
    by_reason = collections.defaultdict(list)
    for outcome in outcomes:
        for name, reason in outcome.skipped:
            by_reason[reason].append(name if name == outcome.name else f"{outcome.name}: {name}")
    for reason, names in by_reason.items():
        print(f"\nskipped, {reason}:\n  " + "\n  ".join(names))
    names = [f"{outcome.name}: {name}" for outcome in outcomes for name, _ in outcome.failed]
    if names:
        print("\nfailed:\n  " + "\n  ".join(names))


def read_list(build, only):
    try:
        entries = json.loads((pathlib.Path(build) / "tests.json").read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"{build}: no list of tests ({error}): configure and build it first")
    if only is None:
        return entries
    wanted = only.split(",")
    unknown = [name for name in wanted if name not in {entry["name"] for entry in entries}]
    if unknown:
        sys.exit(f"unknown tests {', '.join(unknown)}: there are {', '.join(entry['name'] for entry in entries)}")
    return [entry for entry in entries if entry["name"] in wanted]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--only", help="names from tests.json, separated by commas")
    parser.add_argument("--split", default="", help="names of binaries that run in four parts for each job: some of their tests take long")
    parser.add_argument("--jobs", type=int, default=1, help="binaries at a time")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one binary")
    parser.add_argument("--summary", help="file to append this run's counts to")
    parser.add_argument("--passed", help="file for the names of the tests that passed, one a line")
    options = parser.parse_args()

    signal.signal(signal.SIGTERM, stop_everything)
    entries = read_list(options.build, options.only)
    env = dict(os.environ)
    entries = split(entries, options.split.split(","), 4 * max(1, options.jobs))
    for entry in entries:
        entry["command"] = [sys.executable if word == "@python" else word for word in entry["command"]]
    with concurrent.futures.ThreadPoolExecutor(max(1, options.jobs)) as pool:
        outcomes = list(pool.map(lambda entry: run_entry(entry, options.timeout, env), entries))
    print_details(outcomes)

    passed = sum(outcome.passed for outcome in outcomes)
    failed = sum(len(outcome.failed) for outcome in outcomes)
    skipped = sum(len(outcome.skipped) for outcome in outcomes)
    none_ran = passed + failed == 0
    if none_ran:
        print("no test ran", file=sys.stderr)
    line = f"{passed} passed, {failed + none_ran} failed, {skipped} skipped"
    if options.summary:
        with open(options.summary, "a", encoding="utf-8") as file:
            file.write(line + "\n")
    if options.passed:
        names = sorted(name for outcome in outcomes for name in outcome.names)
        pathlib.Path(options.passed).write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    print(f"\n{line}", flush=True)
    return 1 if failed or none_ran else 0


if __name__ == "__main__":
    sys.exit(main())
