#!/usr/bin/env python3
"""Runs clang-tidy over the host sources of a build folder, several at a time, and reports what it finds.

usage: tools/run_tidy.py build/tidy [--jobs N] [--only PART-OF-PATH]

The build folder needs to be configured only. `cmake --preset tidy` makes one whose files are read a dozen at a time, so
that the headers, where the time goes, are read once for all of them; any other works too.

Results without findings are remembered in build/tidy-cache under a hash of the preprocessed source, the settings and the
program, so that an unchanged file costs a second. Exit code 1 when there is a finding.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ROOT / "build" / "tidy-cache"
TIDY = "clang-tidy-14"
# clang sees Asio's coroutines only when told; g++'s own flags mean nothing to it.
EXTRA = ["-DBOOST_ASIO_HAS_CO_AWAIT", "-DBOOST_ASIO_HAS_STD_COROUTINE", "-Wno-unknown-warning-option"]


def run(command, cwd):
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    return done.returncode, done.stdout, done.stderr


def fingerprint(entry, settings):
    """Hash of all that the verdict depends on; None when the file does not preprocess."""
    words = shlex.split(entry["command"])
    words = words[next(i for i, word in enumerate(words) if re.search(r"(\+\+|clang|gcc|cc)[-\d.]*$", word)):]
    skip = {"-c"}
    arguments, drop = [], False
    for word in words[1:]:
        if drop:
            drop = False
        elif word == "-o":
            drop = True
        elif word not in skip:
            arguments.append(word)
    # With comments, for NOLINT is one.
    code, text, _ = run([words[0], *arguments, "-E", "-C"], entry["directory"])
    return hashlib.sha256(settings + text).hexdigest() if code == 0 else None


def folder_checks(path):
    """What the .clang-tidy files of the source folders on the way to a file say of checks, beside the root's.

    clang-tidy finds these files by itself, but for the files that a unity build makes, which lie in the build folder.
    """
    parts = path.relative_to(ROOT).parts[:-1]
    if "src" not in parts:
        return ""
    folder, found = ROOT, []
    for part in parts[parts.index("src"):]:
        folder = folder / part
        if (folder / ".clang-tidy").exists():
            found += re.findall(r"^Checks: '(.*)'$", (folder / ".clang-tidy").read_text(), re.MULTILINE)
    return ",".join(found)


def check(entry, settings, build):
    path = pathlib.Path(entry["directory"], entry["file"])
    checks = folder_checks(path)
    if path.parent.name == "Unity":
        checks += ",-bugprone-suspicious-include"  # including sources is what such a file is for
    mark = fingerprint(entry, settings + checks.encode())
    if mark and (CACHE / mark).exists():
        return path, 0.0, ""
    start = time.monotonic()
    command = [TIDY, "-p", build, "--quiet", f"--checks={checks}", *[f"--extra-arg={word}" for word in EXTRA], str(path)]
    code, out, err = run(command, ROOT)
    if code == 0:
        if mark:
            (CACHE / mark).touch()
        return path, time.monotonic() - start, ""
    return path, time.monotonic() - start, (out or err).decode("utf-8", "replace")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="")
    options = parser.parse_args()

    entries = json.loads((pathlib.Path(options.build) / "compile_commands.json").read_text())
    wanted = [e for e in entries if re.search(r"/(src|fuzz)/.*\.(cpp|cxx)$", e["file"]) and options.only in e["file"]]
    unique = list({e["file"]: e for e in wanted}.values())
    if not unique:
        sys.exit("no source file to check")
    version = subprocess.run([TIDY, "--version"], check=True, stdout=subprocess.PIPE).stdout
    settings = version + (ROOT / ".clang-tidy").read_bytes() + " ".join(EXTRA).encode()
    CACHE.mkdir(parents=True, exist_ok=True)
    bad, slowest = 0, []
    with concurrent.futures.ThreadPoolExecutor(max(1, options.jobs)) as pool:
        for path, seconds, text in pool.map(lambda entry: check(entry, settings, options.build), unique):
            slowest.append((seconds, path.relative_to(ROOT).as_posix()))
            if text:
                bad += 1
                print(text, flush=True)
    slowest.sort(reverse=True)
    print(f"{len(unique)} files checked, {bad} with findings; slowest: "
          + ", ".join(f"{name} {seconds:.0f} s" for seconds, name in slowest[:5]))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
