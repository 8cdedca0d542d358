#!/usr/bin/env python3
"""Prints the tables of docs/serving.md from the binary: every option of `plumb serve` and every metric.

usage: tools/doc_tables.py PLUMB MODEL
"""
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "e2e"))
import server as serving  # noqa: E402


def code(text):
    return f"`{text}`" if text else ""


def print_options(plumb):
    text = subprocess.run([plumb, "serve", "--print-config=json"], check=True, stdout=subprocess.PIPE).stdout
    print("| flag | file | variable | default | what |\n|---|---|---|---|---|")
    for entry in json.loads(text):
        cells = [code(entry["flag"]), code(entry["key"]), code(entry["variable"]), code(entry["default"])]
        print("| " + " | ".join([*cells, entry["help"].replace("|", "/")]) + " |")


def print_metrics(plumb, model):
    server = serving.Server(plumb, model, "--vllm-metrics")
    try:
        server.wait_until_ready()
        server.request("POST", "/v1/completions", {"prompt": "2+2", "max_tokens": 4})
        text = server.request("GET", "/metrics")[2]
    finally:
        server.stop()
    print("\n| metric | kind | what |\n|---|---|---|")
    help_of = dict(line.split(" ", 3)[2:] for line in text.splitlines() if line.startswith("# HELP"))
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            name, kind = line.split()[2:]
            print(f"| `{name}` | {kind} | {help_of[name]} |")


if __name__ == "__main__":
    print_options(sys.argv[1])
    print_metrics(sys.argv[1], sys.argv[2])
