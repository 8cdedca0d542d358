"""Starts `plumb serve` on a free port and runs test functions against it. Standard library only."""
import contextlib
import json
import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

READY_SECONDS = float(os.environ.get("TEST_READY_SECONDS", 120))  # more for builds with sanitizers


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    def __init__(self, plumb, model, *flags):
        self.port = free_port()
        self.log_file = tempfile.TemporaryFile("w+", errors="replace")  # a pipe that nobody reads would fill up
        self.process = subprocess.Popen([plumb, "serve", model, "--port", str(self.port), *flags],
                                        stderr=self.log_file, text=True)

    @property
    def log(self):
        self.log_file.seek(0)
        return self.log_file.read()

    def request(self, method, path, body=None, headers=None, timeout=120):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()
        finally:
            connection.close()

    def wait_until_ready(self):
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"ended with exit code {self.process.returncode}: {self.log}")
            with contextlib.suppress(OSError):
                if self.request("GET", "/health")[0] == 200:
                    return
            time.sleep(0.05)
        raise RuntimeError("not ready in time")

    def metric(self, line_start):
        for line in self.request("GET", "/metrics")[2].splitlines():
            if line.startswith(line_start):
                return float(line.rsplit(" ", 1)[1])
        raise KeyError(line_start)

    def wait_for(self, condition, seconds=30):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"not within {seconds} s"
            time.sleep(0.02)

    def stop(self, seconds=30):
        """Exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return -9
        return self.process.returncode


class Skipped(Exception):
    """A test that can't be run here; its text is the reason."""


def run_functions(names, *arguments):
    """Runs each test_... of a module's globals with the arguments; prints the counts. Returns the exit code."""
    passed = failed = skipped = 0
    for name, test in list(names.items()):
        if not name.startswith("test_"):
            continue
        try:
            test(*arguments)
            passed += 1
            print(f"PASSED {name}")
        except Skipped as reason:
            skipped += 1
            print(f"SKIPPED {name}: {reason}")
        except Exception as error:  # noqa: BLE001: a failed test must not end the others
            failed += 1
            print(f"FAILED {name}: {type(error).__name__} {error}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


def run_tests(plumb, model, tests, *flags):
    """Runs each function with the server; prints the counts that the test runner reads. Returns the exit code."""
    server = Server(plumb, model, *flags)
    passed = failed = 0
    try:
        server.wait_until_ready()
        for test in tests:
            try:
                test(server)
                passed += 1
                print(f"PASSED {test.__name__}")
            except Exception:  # noqa: BLE001: a failed test must not end the others
                failed += 1
                print(f"FAILED {test.__name__}")
                traceback.print_exc(file=sys.stdout)
    finally:
        code = server.stop()
    if code != 0:
        failed += 1
        print(f"FAILED: the server ended with exit code {code} after SIGTERM\n{server.log}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0
