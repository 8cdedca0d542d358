#!/usr/bin/env python3
"""Asks a running server the questions of cases.py and compares the shares of right answers with those measured once in
float32 (expected.json).

usage: tools/accuracy/run.py --port N [--format bf16|nvfp4|fp8] [--tasks add,lists] [--limit N] [--concurrency N]
                             [--json FILE]

An answer is right when it equals the expected one, with the reasoning where thinking is on, and the model stopped by
itself. Within one point is well; within one case where a task has fewer than 100; where nothing was measured, 22 of 24.
Exit code 1 when a task is outside. Needs nothing but Python.
"""
import argparse
import concurrent.futures
import functools
import http.client
import json
import math
import pathlib
import sys
import threading
import time

import cases

FOLDER = pathlib.Path(__file__).resolve().parent
# What the chat template makes of one user message; used where tools go in as text.
TOOLS_HEAD = "[gMASK]<sop><|system|>\n# Tools\n\nYou can call these functions to help the user:\n<tools>\n"
TOOLS_TAIL = ("</tools>\n\nWrite each call in this form:\n"
              "<tool_call>{name}<arg_key>{key}</arg_key><arg_value>{value}</arg_value></tool_call>")


class ServerError(Exception):
    def __init__(self, status, text):
        super().__init__(f"HTTP {status}: {text[:500]}")
        self.status = status


class Client:
    """One kept connection a thread."""

    def __init__(self, host, port, timeout):
        self.address, self.timeout, self.local = (host, port), timeout, threading.local()

    def post(self, path, body):
        for attempt in (1, 2):
            connection = getattr(self.local, "connection", None)
            if connection is None:
                connection = self.local.connection = http.client.HTTPConnection(*self.address, timeout=self.timeout)
            try:
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
                response = connection.getresponse()
                text = response.read().decode("utf-8")
                break
            except (http.client.HTTPException, ConnectionError):
                connection.close()
                self.local.connection = None  # the server may close an idle connection: once more on a new one
                if attempt == 2:
                    raise
        if response.status != 200:
            raise ServerError(response.status, text)
        return json.loads(text)


class Examiner:
    def __init__(self, client):
        self.client = client
        self.tools_as_text = False  # set when the server answers that it takes no `tools`

    @functools.lru_cache(maxsize=None)
    def count_tokens(self, text):
        answer = self.client.post("/tokenize", {"prompt": text, "add_special_tokens": False})
        return answer["count"]

    def is_right(self, case):
        if case.call is not None:
            return self.calls_right(case)
        body = {
            "messages": [{"role": "user", "content": case.question}],
            "temperature": 0,
            "max_tokens": 200,
            "chat_template_kwargs": {"enable_thinking": case.reasoning is not None},
        }
        choice = self.client.post("/v1/chat/completions", body)["choices"][0]
        content, reasoning = choice["message"].get("content") or "", choice["message"].get("reasoning_content")
        if reasoning is not None:
            content = reasoning + "</think>" + content
        want = case.answer if case.reasoning is None else case.reasoning + "</think>" + case.answer
        return content == want and choice["finish_reason"] == "stop"

    def calls_right(self, case):
        if not self.tools_as_text:
            body = {
                "messages": [{"role": "user", "content": case.question}],
                "tools": cases.TOOLS,
                "temperature": 0,
                "max_tokens": 200,
                "chat_template_kwargs": {"enable_thinking": False},
            }
            try:
                choice = self.client.post("/v1/chat/completions", body)["choices"][0]
            except ServerError as error:
                if error.status != 400:
                    raise
                self.tools_as_text = True
            else:
                return self.is_this_call(choice, *case.call)
        tools = "".join(json.dumps(tool, ensure_ascii=False) + "\n" for tool in cases.TOOLS)
        prompt = TOOLS_HEAD + tools + TOOLS_TAIL + "<|user|>" + case.question + "<|assistant|></think>"
        body = {"prompt": prompt, "temperature": 0, "max_tokens": 200}
        choice = self.client.post("/v1/completions", body)["choices"][0]
        return choice["text"] == self.call_text(*case.call) and choice["finish_reason"] == "stop"

    @staticmethod
    def call_text(name, key, value):
        return f"<tool_call>{name}<arg_key>{key}</arg_key><arg_value>{value}</arg_value></tool_call>"

    @classmethod
    def is_this_call(cls, choice, name, key, value):
        calls = choice["message"].get("tool_calls") or []
        if not calls:  # tools described to the model, its answer left as text
            return choice["message"].get("content") == cls.call_text(name, key, value)
        function = calls[0]["function"]
        return len(calls) == 1 and function["name"] == name and json.loads(function["arguments"]) == {key: value}


def bounds(count, expected):
    """Fewest and most right answers that count as reproduced."""
    if expected is None:
        return math.ceil(count * 22 / 24), count
    right = round(expected * count)
    slack = 1 if count < 100 else math.floor(count / 100)
    return right - slack, right + slack


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--format", default="nvfp4", help="column of expected.json")
    parser.add_argument("--tasks", help="some of the tasks, separated by commas")
    parser.add_argument("--limit", type=int, help="at most so many cases of each task, for a quick look: no verdict")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--seed", type=int, default=777)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()

    expected = json.loads((FOLDER / "expected.json").read_text())[options.format]
    examiner = Examiner(Client(options.host, options.port, options.timeout))
    tasks = cases.all_cases(options.seed, examiner.count_tokens)
    wanted = options.tasks.split(",") if options.tasks else list(tasks)
    unknown = [name for name in wanted if name not in tasks]
    if unknown:
        sys.exit(f"unknown tasks {', '.join(unknown)}: there are {', '.join(tasks)}")

    figures, outside = {}, []
    print(f"{'task':18} {'cases':>5} {'right':>6} {'share':>7} {options.format:>7}  allowed", flush=True)
    with concurrent.futures.ThreadPoolExecutor(options.concurrency) as pool:
        for name in wanted:
            start, chosen = time.monotonic(), tasks[name][:options.limit]
            answers = list(pool.map(examiner.is_right, chosen))
            right, count, want = sum(answers), len(answers), expected.get(name)
            low, high = bounds(count, want)
            verdict = "" if options.limit else f"{low}..{high}" + ("" if low <= right <= high else "  OUTSIDE")
            if verdict.endswith("OUTSIDE"):
                outside.append(name)
            figures[name] = {"cases": count, "right": right, "expected": want, "seconds": time.monotonic() - start}
            shown = f"{want:7.1%}" if want is not None else "      -"
            print(f"{name:18} {count:5} {right:6} {right / count:7.1%} {shown}  {verdict} "
                  f"({figures[name]['seconds']:.0f} s)", flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")
    if outside:
        print("outside: " + ", ".join(outside))
    return 1 if outside else 0


if __name__ == "__main__":
    sys.exit(main())
