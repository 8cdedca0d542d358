#!/usr/bin/env python3
"""Load and hostility against a real server: many streams for minutes, random aborts, malformed and slow clients, kill -9.

usage: tools/soak.py PLUMB MODEL [streams|aborts|hostile|kills]... [--short] [--count N] [--seconds S] [--tokens N]
       [--flag=--x=y ...]

Without a name all four run. --short is what CI runs: the same with few repetitions. Each part prints its figures and fails
when a request failed that should not have, a pool did not come back to where it started, or memory kept growing.
"""
import argparse
import asyncio
import hashlib
import json
import os
import pathlib
import random
import signal
import socket
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "e2e"))
import server as serving  # noqa: E402

# A cache that is soon full: its memory is touched page by page, and would look like growth.
STREAM_FLAGS = ["--max-running", "256", "--pages", "768"]
POOLS = ("plumb_sequences_running", "plumb_sequences_waiting")


def request_bytes(path, body, extra=""):
    data = json.dumps(body)
    return (f"POST {path} HTTP/1.1\r\nHost: soak\r\nContent-Type: application/json\r\n{extra}"
            f"Content-Length: {len(data)}\r\n\r\n{data}").encode()


def stream_request(tokens, prompt="The stone in the river"):
    return request_bytes("/v1/completions", {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True,
                                             "temperature": 1})


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


class Quiet(serving.Server):
    def __init__(self, plumb, model, *flags):
        super().__init__(plumb, model, "--no-access-log", *flags)

    def metrics(self):
        values = {}
        for line in self.request("GET", "/metrics")[2].splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        return values

    def expect_idle(self):
        """Every pool back: no sequence, no page held, one connection (the one that asks)."""
        def idle():
            m = self.metrics()
            held = m["plumb_cache_pages"] - m["plumb_cache_pages_free"] - m["plumb_cache_pages_cached"]
            return held == 0 and all(m[name] == 0 for name in POOLS) and m["plumb_http_connections"] <= 1
        self.wait_for(idle, 60)


class StreamClient(asyncio.Protocol):
    """Asks again and again on one connection until told to stop; notes when tokens came."""

    def __init__(self, soak, tokens):
        self.soak, self.tokens = soak, tokens
        self.tail = b""
        self.last = None

    def connection_made(self, transport):
        self.transport = transport
        self.ask()

    def ask(self):
        self.last = None
        self.tail = b""
        self.transport.write(stream_request(random.randint(self.tokens // 2, self.tokens)))

    def data_received(self, data):
        now = time.perf_counter()
        events = data.count(b"data: {")
        if events:
            self.soak.tokens += events
            if self.last is not None:
                self.soak.gaps.append(now - self.last)
            self.last = now
        if b'"error"' in data or b"HTTP/1.1 4" in data or b"HTTP/1.1 5" in data:
            self.soak.errors.append(data[:300])
        self.tail = (self.tail + data)[-40:]
        if self.tail.endswith(b"0\r\n\r\n"):
            self.soak.answers += 1
            if time.monotonic() < self.soak.until:
                self.ask()
            else:
                self.transport.close()

    def connection_lost(self, error):
        self.soak.open -= 1
        if error or not self.tail.endswith(b"0\r\n\r\n"):
            self.soak.errors.append(f"connection lost: {error}".encode())
        if self.soak.open == 0:
            self.soak.done.set_result(None)


class Streams:
    def __init__(self, server, count, seconds, tokens):
        self.server, self.count, self.seconds, self.token_limit = server, count, seconds, tokens
        self.tokens = self.answers = 0
        self.open = count
        self.gaps, self.errors, self.memory = [], [], []

    async def watch(self, loop):
        while self.open:
            metrics = await loop.run_in_executor(None, self.server.metrics)
            self.memory.append((time.monotonic(), metrics["plumb_resident_memory_bytes"]))
            await asyncio.sleep(max(0.5, self.seconds / 60))

    async def run(self):
        loop = asyncio.get_running_loop()
        self.done = loop.create_future()
        self.until = time.monotonic() + self.seconds
        for _ in range(self.count):
            await loop.create_connection(lambda: StreamClient(self, self.token_limit), "127.0.0.1", self.server.port)
        watching = asyncio.ensure_future(self.watch(loop))
        await self.done
        await watching


def part_streams(server, options):
    count = options.count or (100 if options.short else 2000)
    seconds = options.seconds or (5 if options.short else 600)
    soak = Streams(server, count, seconds, options.tokens)
    begin = time.monotonic()
    asyncio.run(soak.run())
    lasted = time.monotonic() - begin
    server.expect_idle()
    print(f"streams: {count} at a time for {lasted:.0f} s: {soak.answers} answers, {soak.tokens} events "
          f"({soak.tokens / lasted:.0f}/s), between events p50 {percentile(soak.gaps, .5) * 1e3:.0f} ms, "
          f"p99 {percentile(soak.gaps, .99) * 1e3:.0f} ms, {len(soak.errors)} errors")
    assert not soak.errors, soak.errors[:3]
    quarter = len(soak.memory) // 4
    warm, late = [m for _, m in soak.memory[quarter:2 * quarter]], [m for _, m in soak.memory[3 * quarter:]]
    if warm and late:
        growth = percentile(late, .5) / percentile(warm, .5) - 1
        print(f"streams: resident memory {percentile(warm, .5) / 1e6:.0f} MB in the second quarter, "
              f"{percentile(late, .5) / 1e6:.0f} MB in the last ({growth * 100:+.1f} %)")
        assert options.short or growth < 0.02, "memory grows"


def ask_whole(server, result):
    status, _, text = server.request("POST", "/v1/completions", {"prompt": "2+2 is", "max_tokens": 24, "temperature": 0})
    result.append((status, json.loads(text)["choices"][0]["text"] if status == 200 else text))


def part_aborts(server, options):
    """Clients that leave at any moment, streamed or not, among others that must not notice."""
    count = options.count or (200 if options.short else 10_000)
    right = []
    ask_whole(server, right)
    answers, left = [], []
    stopping = threading.Event()

    def neighbour():
        while not stopping.is_set():
            ask_whole(server, answers)

    def leave(number):
        for i in range(number):
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                body = {"prompt": "a " * random.randint(1, 300), "max_tokens": random.randint(1, 200), "ignore_eos": True,
                        "stream": random.random() < 0.5, "n": random.choice((1, 1, 1, 3))}
                data = request_bytes("/v1/completions", body)
                cut = random.random() < 0.1
                client.sendall(data[:random.randint(1, len(data))] if cut else data)
                time.sleep(random.choice((0, random.random() * 0.003, random.random() * 0.05)))
                if random.random() < 0.5:  # a reset in place of an orderly end
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            left.append(i)

    threads = [threading.Thread(target=neighbour) for _ in range(2)]
    leavers = [threading.Thread(target=leave, args=(count // 8,)) for _ in range(8)]
    for thread in threads + leavers:
        thread.start()
    for thread in leavers:
        thread.join()
    stopping.set()
    for thread in threads:
        thread.join()
    server.expect_idle()
    wrong = [answer for answer in answers if answer != right[0]]
    print(f"aborts: {len(left)} clients left at random moments; {len(answers)} answers to others, {len(wrong)} of them wrong")
    assert not wrong, wrong[:3]


def exchange(server, data, seconds=30, half_close=False):
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as client:
        try:
            client.sendall(data)
            if half_close:
                client.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it may refuse before all is sent
        got = b""
        try:
            while chunk := client.recv(65536):
                got += chunk
        except OSError:
            pass
        return got


def part_hostile(server, options):
    short = options.short
    good = request_bytes("/v1/completions", {"prompt": "a", "max_tokens": 2}, "Connection: close\r\n")
    # Slow heads: a byte now and then, from many sockets, and the others are served meanwhile.
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100 if short else 1000)]
    for step in range(8):
        for client in slow:
            client.sendall(b"POST /v1/"[step:step + 1])
        assert exchange(server, good).startswith(b"HTTP/1.1 200")
    for client in slow:
        client.close()
    print(f"hostile: {len(slow)} slow heads, others served")
    big = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 52428800\r\n\r\n"
    assert exchange(server, big + b"x" * (1 << 20)).startswith(b"HTTP/1.1 413")
    assert exchange(server, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" +
                    (b"100000\r\n" + b"y" * 0x100000 + b"\r\n") * 50 + b"0\r\n\r\n").startswith(b"HTTP/1.1 413")
    for deep in (b"[" * 10_000 + b"]" * 10_000, b'{"a":' * 10_000 + b"1" + b"}" * 10_000, b"[" * 10_000):
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(deep)}\r\n\r\n"
        assert exchange(server, head.encode() + deep).startswith(b"HTTP/1.1 400")
    assert exchange(server, stream_request(4000), half_close=True) is not None  # counts as gone: the work stops
    server.expect_idle()
    piped = request_bytes("/v1/completions", {"prompt": "a", "max_tokens": 3}) * 20 + good
    assert exchange(server, piped).count(b"HTTP/1.1 200") == 21
    for head in (b"GET / HTTP/9.9\r\n\r\n", b"\0\1\2\3\r\n\r\n", b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
                 b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000 + b"\r\n", b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
                 b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n"):
        answer = exchange(server, head)
        assert not answer or answer.startswith(b"HTTP/1.1 4"), (head[:40], answer[:100])
    dice = random.Random(7)
    for _ in range(50 if short else 2000):
        broken = bytearray(good)
        for _ in range(dice.randint(1, 8)):
            broken[dice.randrange(len(broken))] = dice.randrange(256)
        exchange(server, bytes(broken), seconds=5, half_close=True)
    server.expect_idle()
    assert server.request("GET", "/health")[0] == 200
    print("hostile: 50 MB bodies, 10,000-deep JSON, half-closed sockets, pipelining, garbage: answered or dropped")


def digest(folder):
    """Every file with its bytes."""
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(pathlib.Path(folder).rglob("*")) if path.is_file()}


def part_kills(plumb, model, short, count, flags):
    count = count or (3 if short else 100)
    before = digest(model)
    with tempfile.TemporaryDirectory() as folder:
        traces = pathlib.Path(folder) / "spans.jsonl"
        for _ in range(count):
            server = Quiet(plumb, model, "--trace-file", str(traces), "--crash-dir", folder + "/crashes",
                           "--unix-socket", folder + "/socket", *flags)
            server.wait_until_ready()
            assert server.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200
            clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(16)]
            for client in clients:
                client.sendall(stream_request(2000) if random.random() < 0.5 else
                               request_bytes("/v1/completions", {"prompt": "a", "max_tokens": 5}) * 20)
            time.sleep(random.random() * 0.5)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            for client in clients:
                client.close()
        lines = traces.read_text().splitlines(keepends=True)
        for line in lines:
            assert line.endswith("\n")
            json.loads(line)
        left = [path for path in digest(folder) if path != traces]
        assert not left, f"left behind: {left}"
    assert digest(model) == before, "the model's folder has changed"
    print(f"kills: kill -9 {count} times under load, each next start clean; {len(lines)} traces, none cut; nothing left behind")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plumb")
    parser.add_argument("model")
    parser.add_argument("parts", nargs="*", choices=["streams", "aborts", "hostile", "kills", []])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--tokens", type=int, default=64, help="most that a stream asks for; it asks for half as many at least")
    parser.add_argument("--flag", action="append", default=[], help="of plumb serve, e.g. --flag=--max-running=128")
    options = parser.parse_args()
    parts = options.parts or ["streams", "aborts", "hostile", "kills"]
    passed = failed = 0
    for name in parts:
        server = None
        try:
            if name == "kills":
                part_kills(options.plumb, options.model, options.short, options.count, options.flag)
            else:
                flags = options.flag or (STREAM_FLAGS if name == "streams" else [])
                server = Quiet(options.plumb, options.model, "--queue", "8192", *flags)
                server.wait_until_ready()
                {"streams": part_streams, "aborts": part_aborts, "hostile": part_hostile}[name](
                    server, options)
            passed += 1
        except Exception as error:  # noqa: BLE001: the other parts are still worth running
            failed += 1
            print(f"FAILED {name}: {type(error).__name__} {error}")
        finally:
            if server and server.stop() != 0:
                failed += 1
                print(f"FAILED {name}: the server did not end well")
        sys.stdout.flush()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    os.environ.pop("PLUMB_CONFIG", None)
    sys.exit(main())
