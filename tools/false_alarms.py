#!/usr/bin/env python3
"""Looks for false alarms: cold starts with verification, then generated tokens under the guard and the shadow.

usage: tools/false_alarms.py PLUMB MODEL [MODEL...] [--tokens N] [--starts N] [--shadow-rate R] [--port P] [--clients N]
       [--threads N] [--minutes M]

Each start takes the next of all combinations of model, KV format, and drafts on or off. A start that does not become ready,
a request that fails, and any count in plumb_numerical_faults_total or plumb_shadow_ops_outside_total is an alarm. The last
line is a JSON object with what was reached; exit code 1 after an alarm.
"""
import argparse
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request


class Server:
    """One `plumb serve`, from exec to exit."""

    def __init__(self, options, model, kv, drafts):
        self.url = f"http://127.0.0.1:{options.port}"
        self.log = tempfile.TemporaryFile()
        command = [options.plumb, "serve", model, "--host", "127.0.0.1", "--port", str(options.port), "--kv", kv,
                   "--draft-tokens", str(drafts), "--verify", options.verify, "--capture-dir", "off",
                   "--shadow-rate", str(options.shadow_rate), "--threads", str(options.threads), "--log-level", "warn"]
        self.began = time.monotonic()
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT)

    def get(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.read().decode()

    def ready(self, deadline=600):
        """Seconds from exec to ready; None when it ended or the time is over."""
        while time.monotonic() - self.began < deadline and self.process.poll() is None:
            try:
                self.get("/health")
                return time.monotonic() - self.began
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        return None

    def alarms(self):
        text = self.get("/metrics")
        counts = re.findall(r"^(plumb_numerical_faults_total\{[^}]*\}|plumb_shadow_ops_outside_total) (\S+)", text, re.M)
        return {name: float(value) for name, value in counts if float(value) != 0}

    def counter(self, name):
        found = re.search(rf"^{name} (\S+)", self.get("/metrics"), re.M)
        return float(found.group(1)) if found else 0

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.seek(0)
        return self.log.read().decode("utf-8", "replace")


def generate(server, options, until, problems):
    """Requests of random ids, greedy and not, from some clients at once, until that many tokens are there."""
    done = [0]
    lock = threading.Lock()

    def client(seed):
        rng = random.Random(seed)
        while not problems:
            with lock:
                if done[0] >= until:
                    return
            body = {"prompt": [rng.randrange(2000) for _ in range(rng.randrange(4, 150))], "max_tokens": 100,
                    "temperature": rng.choice([0, 1, 1]), "seed": rng.randrange(1 << 30), "ignore_eos": True}
            try:
                usage = json.loads(server.get("/v1/completions", body))["usage"]
            except (urllib.error.URLError, OSError, ValueError, KeyError) as error:
                detail = error.read().decode() if isinstance(error, urllib.error.HTTPError) else str(error)
                problems.append(f"request: {detail}")
                return
            with lock:
                done[0] += usage["completion_tokens"]

    threads = [threading.Thread(target=client, args=(random.random(),)) for _ in range(options.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done[0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("plumb")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--starts", type=int, default=1000)
    parser.add_argument("--shadow-rate", type=float, default=0.01)
    parser.add_argument("--verify", default="quick")
    parser.add_argument("--port", type=int, default=19190)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1e9, help="ends then, whatever was reached")
    options = parser.parse_args()
    settings = list(itertools.product(options.models, ["bf16", "fp8"], [0, 1]))
    end = time.monotonic() + 60 * options.minutes
    starts = tokens = 0
    shadowed = 0.0
    seconds, problems = [], []
    while (starts < options.starts or tokens < options.tokens) and not problems and time.monotonic() < end:
        model, kv, drafts = settings[starts % len(settings)]
        server = Server(options, model, kv, drafts)
        took = server.ready()
        name = f"{os.path.basename(model.rstrip('/'))} kv {kv} drafts {drafts}"
        if took is None:
            problems.append(f"{name} did not become ready")
        else:
            seconds.append(took)
            if tokens < options.tokens:
                share = max(1, (options.tokens - tokens) // max(1, options.starts - starts))
                tokens += generate(server, options, share, problems)
            shadowed += server.counter("plumb_shadow_ops_total")
            for alarm, value in server.alarms().items():
                problems.append(f"{name}: {alarm} {value}")
        log = server.stop()
        if problems:
            print(log[-4000:])
        starts += 1
        if starts % 50 == 0:
            print(f"{starts} starts, {tokens} tokens", flush=True)
    for problem in problems:
        print(f"ALARM {problem}")
    print(json.dumps({"starts": starts, "tokens": tokens, "shadowed_ops": shadowed, "alarms": len(problems),
                      "median_seconds_to_ready": sorted(seconds)[len(seconds) // 2] if seconds else None}))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
