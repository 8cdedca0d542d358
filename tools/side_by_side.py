#!/usr/bin/env python3
"""One model served by plumb and by a peer, in turns, under the same load: output tokens a second and time to first token.

usage: tools/side_by_side.py PLUMB MODEL --peer COMMAND [--peer-name NAME] [--streams 1 16 64 256] [--tokens 64]

COMMAND starts the peer, with {port} for its port, for instance
  "transformers serve MODEL --device cpu --port {port}"
Each point is a `plumb bench serve` of its own, plumb's and the peer's alternating; the median of --rounds is shown.
"""
import argparse
import contextlib
import http.client
import json
import os
import pathlib
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "e2e"))
import server as serving  # noqa: E402


class Peer:
    """Any program that answers /v1/models once it is ready."""

    def __init__(self, command):
        self.port = serving.free_port()
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(shlex.split(command.format(port=self.port)), stdout=self.log, stderr=self.log,
                                        start_new_session=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})

    def wait_until_ready(self):
        end = time.monotonic() + 300
        while time.monotonic() < end:
            if self.process.poll() is not None:
                self.log.seek(0)
                raise RuntimeError(f"the peer ended: {self.log.read()[-2000:]}")
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/v1/models")
                if connection.getresponse().status == 200:
                    return
            time.sleep(0.5)
        raise RuntimeError("the peer is not ready in time")

    def stop(self):
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)


def measure(plumb, port, streams, options):
    requests = max(streams, 8)
    command = [plumb, "bench", "serve", "--url", f"http://127.0.0.1:{port}", "--concurrency", str(streams), "--requests",
               str(requests), "--input-tokens", "16", "--output-tokens", str(options.tokens), "--use-eos", "--json"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if not ended.stdout:
        raise RuntimeError(ended.stderr)
    return json.loads(ended.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plumb")
    parser.add_argument("model")
    parser.add_argument("--peer", required=True)
    parser.add_argument("--peer-name", default="peer")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flag", action="append", default=[], help="of plumb serve, e.g. --flag=--max-running=256")
    options = parser.parse_args()
    ours = serving.Server(options.plumb, options.model, "--no-access-log", *options.flag)
    peer = Peer(options.peer)
    try:
        ours.wait_until_ready()
        peer.wait_until_ready()
        print(f"| streams | plumb, tokens/s | {options.peer_name}, tokens/s | | plumb, TTFT p50 | {options.peer_name}, TTFT p50 |")
        print("|---|---|---|---|---|---|")
        for streams in options.streams:
            runs = [(measure(options.plumb, ours.port, streams, options), measure(options.plumb, peer.port, streams, options))
                    for _ in range(options.rounds)]
            failed = sum(r["failed"] for pair in runs for r in pair)
            speed = [statistics.median(pair[i]["output_throughput"] for pair in runs) for i in (0, 1)]
            first = [statistics.median(pair[i]["p50_ttft_ms"] for pair in runs) for i in (0, 1)]
            note = f" ({failed} failed)" if failed else ""
            print(f"| {streams} | {speed[0]:.0f} | {speed[1]:.0f} | {speed[0] / max(speed[1], 1e-9):.1f}x{note} | "
                  f"{first[0]:.1f} ms | {first[1]:.1f} ms |", flush=True)
    finally:
        peer.stop()
        ours.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
