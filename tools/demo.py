#!/usr/bin/env python3
"""Serves a model on a free local port, asks it one question over HTTP, shows the answer, and stops the server.

usage: tools/demo.py PLUMB MODEL
Exit code 0 only if the server became ready, the answer was right, and the server stopped cleanly.
"""
import http.client
import json
import signal
import socket
import subprocess
import sys
import time

QUESTION, ANSWER = "What is 2+2? Answer briefly.", "4"
READY_SECONDS, ANSWER_SECONDS, STOP_SECONDS = 120, 60, 30


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def request(port, method, path, body=None, timeout=5.0):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        return response.status, response.read().decode("utf-8", "replace")
    finally:
        connection.close()


def wait_until_ready(server, port):
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with exit code {server.returncode} before it was ready")
        try:
            status, _ = request(port, "GET", "/health")
            if status == 200:
                return
        except OSError:
            pass  # not listening yet
        time.sleep(0.25)
    raise RuntimeError(f"the server was not ready after {READY_SECONDS} s")


def ask(port):
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 32,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    status, text = request(port, "POST", "/v1/chat/completions", body, ANSWER_SECONDS)
    if status != 200:
        raise RuntimeError(f"HTTP {status}: {text}")
    return json.loads(text)["choices"][0]["message"]["content"]


def stop(server):
    """Exit code of the server after a polite request to stop; killed when it does not listen."""
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
    try:
        return server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
        raise RuntimeError(f"the server did not stop within {STOP_SECONDS} s") from None


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    plumb, model = sys.argv[1:]
    port = free_port()
    command = [plumb, "serve", model, "--host", "127.0.0.1", "--port", str(port), "--log-level", "warn"]
    print("$ " + " ".join(command), flush=True)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as server:
        try:
            wait_until_ready(server, port)
            print(f"\n  you:   {QUESTION}", flush=True)
            start = time.monotonic()
            answer = ask(port)
            print(f"  model: {answer}   ({time.monotonic() - start:.2f} s)\n", flush=True)
            code = stop(server)
        except (RuntimeError, OSError, ValueError, KeyError, http.client.HTTPException) as error:
            print(f"error: {error}", file=sys.stderr)
            if server.poll() is None:
                server.kill()
            return 1
        except KeyboardInterrupt:
            server.kill()
            return 1
    if code != 0:
        print(f"error: the server stopped with exit code {code}", file=sys.stderr)
        return 1
    if answer.strip() != ANSWER:
        print(f"error: the answer should have been {ANSWER}", file=sys.stderr)
        return 1
    print("The answer is right, and the server stopped cleanly. To keep one running:\n  " + " ".join(command[:3]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
