#!/usr/bin/env python3
"""What a server's processor does for a generated token outside the model's operations, under concurrent streams.

usage: tools/cpu_per_token.py PLUMB MODEL [--streams 64] [--requests 128] [--tokens 256]

One kernel thread, so that the seconds operations take (plumb_op_seconds_total) are seconds of one core, and can be taken
from the process's CPU time (user and system) between two readings. What waits for a core counts as the operation's: on a
busy machine the figure comes out too low, so it says how busy the cores were.
"""
import argparse
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "e2e"))
import server as serving  # noqa: E402


def cpu_seconds(process):
    after_name = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def sum_of(server, metric):
    lines = server.request("GET", "/metrics")[2].splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(metric))


def reading(server):
    return (cpu_seconds(server.process.pid), sum_of(server, "plumb_op_seconds_total"),
            sum_of(server, "plumb_generated_tokens_total"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plumb")
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=256)
    options = parser.parse_args()
    server = serving.Server(options.plumb, options.model, "--no-access-log", "--threads", "1", "--max-running",
                            str(options.streams))

    def load():
        subprocess.run([options.plumb, "bench", "serve", "--url", f"http://127.0.0.1:{server.port}", "--concurrency",
                        str(options.streams), "--requests", str(options.requests), "--input-tokens", "16",
                        "--output-tokens", str(options.tokens), "--temperature", "1"],
                       check=True, stdout=subprocess.DEVNULL)

    try:
        server.wait_until_ready()
        load()  # warm: caches filled, memory touched
        before = reading(server)
        load()
        cpu, ops, tokens = (after - earlier for after, earlier in zip(reading(server), before))
    finally:
        server.stop()
    print(f"{tokens:.0f} tokens, {options.streams} streams: CPU {cpu:.2f} s, operations {ops:.2f} s; "
          f"{(cpu - ops) / tokens * 1e6:.1f} us a token outside them (load average {os.getloadavg()[0]:.1f} on "
          f"{os.cpu_count()} cores)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
