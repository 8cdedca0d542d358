#!/usr/bin/env python3
"""Compares our template engine with Jinja2, set up as Hugging Face's apply_chat_template sets it up.

    template_diff.py --driver build/.../text_diff_driver [--count N] [--seed S]

Runs the snippets of snippets.json, the templates in templates/ over many conversations, and random expressions. Where
Jinja2 fails we must fail too, and the other way round; where both render, the texts must be equal. Exits 1 on any
difference, 77 (skipped) when the `jinja2` package is missing.
"""
import argparse
import copy
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import warnings
from datetime import datetime

try:
    import jinja2
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    print("skipped: the Python package 'jinja2' is not installed")
    sys.exit(77)

warnings.simplefilter("ignore")  # Jinja2 compiles some of the odd expressions to odd Python
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.now().strftime(f)
    return env


ENV = environment()


def original(case):
    try:
        template = ENV.from_string(case["template"])
        # Copies: Jinja2's indent filter changes a list that it is wrongly given.
        variables = {"documents": None, "add_generation_prompt": False, **copy.deepcopy(case.get("kwargs", {}))}
        return {"text": template.render(messages=case["messages"], tools=case.get("tools"), **variables)}
    except Exception as error:  # whatever Python raises there is an error here
        return {"error": f"{type(error).__name__}: {error}"}


TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather <now> & \"soon\" in a city’s centre",
                                      "parameters": {"type": "object", "properties": {
                                          "city": {"type": "string", "enum": ["Zürich", "東京"]},
                                          "days": {"type": "integer", "minimum": 0, "maximum": 18446744073709551615},
                                          "scale": {"type": "number", "default": 1.0, "multipleOf": 1e-05}},
                                          "required": ["city"]}}},
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {}}, "strict": True},
    {"type": "function", "function": {"name": "deferred", "defer_loading": True, "strict": False,
                                      "parameters": {"type": "object", "properties": {}}}, "defer_loading": True},
]


def conversations():
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": {
        "city": "Zürich", "days": 3, "scale": 0.1, "deep": {"a": [1, 2.5, None, True, "x\ny"]}, "s": ""}}}
    second = {"id": "call_2", "type": "function", "function": {"name": "now", "arguments": {}}}
    text_parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    user = {"role": "user", "content": "Hi there"}
    yield [user]
    yield [{"role": "system", "content": "Be brief.\n"}, user]
    yield [{"role": "user", "content": text_parts}]
    yield [{"role": "user", "content": "  padded \n"}, {"role": "assistant", "content": "\n ok \n"},
           {"role": "user", "content": "<think>not</think> mine /nothink"}]
    yield [user, {"role": "assistant", "content": "<think>\nwhy\n</think>\nbecause"}, {"role": "user", "content": "and?"}]
    yield [user, {"role": "assistant", "content": "because", "reasoning_content": " deep "}]
    yield [user, {"role": "assistant", "content": "because", "reasoning_content": ""}, user]
    yield [user, {"role": "assistant", "content": None, "tool_calls": [call]},
           {"role": "tool", "tool_call_id": "call_1", "content": "{\"t\": 7}"}]
    yield [user, {"role": "assistant", "content": "Let me look.", "reasoning_content": "hm", "tool_calls": [call, second]},
           {"role": "tool", "tool_call_id": "call_1", "content": "7 degrees"},
           {"role": "tool", "tool_call_id": "call_2", "content": text_parts},
           {"role": "assistant", "content": "It is 7."}, user]
    yield [user, {"role": "assistant", "content": "", "tool_calls": [second]},
           {"role": "tool", "content": [{"type": "tool_reference", "name": "now"}]},
           {"role": "assistant", "content": "a</think>b</think>c"}, {"role": "user", "content": ""}]
    yield [{"role": "system", "content": "a"}, {"role": "system", "content": "b"}, user,
           {"role": "assistant", "content": "x", "prefix": True}]
    yield [{"role": "developer", "content": "dev"}, user]
    yield [user, {"role": "assistant", "content": "x"}, {"role": "assistant", "content": "y", "tool_calls": []}]
    yield [{"role": "user", "content": "😀 \u2028 \x1c ünï\r\ncode"}, {"role": "assistant", "content": "\u3000x\u00a0"}]
    yield []


KWARGS = [{}, {"add_generation_prompt": True}, {"add_generation_prompt": True, "enable_thinking": False},
          {"add_generation_prompt": True, "thinking": True}, {"clear_thinking": False}, {"clear_thinking": True},
          {"add_generation_prompt": True, "reasoning_effort": "high"}, {"add_generation_prompt": True, "reasoning_effort": None},
          {"add_generation_prompt": True, "enable_thinking": True, "clear_thinking": False}]


def template_cases():
    files = sorted((HERE / "templates").glob("*.jinja"))
    files.append(ROOT / "models" / "tiny-glm-dsa-nvfp4" / "chat_template.jinja")
    for path in files:
        source = path.read_text(encoding="utf-8")
        for messages in conversations():
            for tools in (None, [], TOOLS):
                for kwargs in KWARGS:
                    kwargs = {"bos_token": "<bos>", "eos_token": "<eos>", **kwargs}
                    yield {"name": path.name, "template": source, "messages": messages, "tools": tools, "kwargs": kwargs}


def snippet_cases():
    variables = {"s": "Hello, Wörld", "n": 7, "neg": -3, "f": 2.5, "big": 18446744073709551615, "empty": "", "b": True,
                 "nil": None, "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "nested": [[1, [2]], {"k": ["v", None, False]}],
                 "d": {"x": 1, "y": "two", "items": 3, "z": None}, "people": [
                     {"name": "Ann", "age": 31, "in": {"a": 1}}, {"name": "bob", "age": 25}, {"name": "Cid", "age": 31}],
                 "ws": "  a b\t c\n", "multi": "one\ntwo\n\nthree", "quote": "it's \"q\"", "html": "<a href='x'>&</a>"}
    for source in json.loads((HERE / "snippets.json").read_text(encoding="utf-8")):
        yield {"name": "snippet", "template": source, "messages": [], "kwargs": variables}


class Random:
    """Random expressions over a few variables, and random whitespace control."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def expression(self, depth=0):
        rng = self.rng
        atoms = ["s", "n", "neg", "f", "l", "ls", "d", "nil", "b", "missing", "d.x", "d['y']", "l[0]", "ls[-1]", "s[1:4]",
                 "l[::-1]", "'a'", "\"it's\"", "0", "3", "-1", "2.0", "1e3", "true", "none", "[]", "{}", "()", "[1, 'x']",
                 "{'k': 1}", "(1, 2)", "people[0].name", "s|length", "range(3)", "d.items()"]
        if depth > 3 or rng.random() < 0.25:
            return rng.choice(atoms)
        a = self.expression(depth + 1)
        b = self.expression(depth + 1)
        return rng.choice([
            lambda: f"({a} {rng.choice(['+', '-', '*', '/', '//', '%', '~'])} {b})",
            lambda: f"({a} {rng.choice(['==', '!=', '<', '<=', '>', '>='])} {b})",
            lambda: f"({a} {rng.choice(['and', 'or'])} {b})",
            lambda: f"({a} {rng.choice(['in', 'not in'])} {b})",
            lambda: f"(not {a})",
            lambda: f"({a} if {b} else {self.expression(depth + 1)})",
            lambda: f"({a})|{rng.choice(['length', 'list', 'first', 'last', 'string', 'int', 'float', 'upper', 'lower', 'trim', 'title', 'capitalize', 'abs', 'tojson', 'unique|list', 'sort', 'reverse|list', 'sum', 'min', 'max', 'join', 'default(1)', 'd(2, true)', 'items|list', 'dictsort', 'round', 'round(1)', 'string|length', 'escape', 'indent(2)', 'wordcount', 'batch(2)|list'])}",
            lambda: f"({a} is {rng.choice(['', 'not '])}{rng.choice(['defined', 'undefined', 'none', 'string', 'number', 'integer', 'float', 'mapping', 'iterable', 'sequence', 'boolean', 'true', 'false', 'odd', 'even', 'callable', 'lower', 'upper'])})",
            lambda: f"({a} is {rng.choice(['eq', 'ne', 'lt', 'gt', 'in', 'sameas', 'divisibleby'])}({b}))",
            lambda: f"[{a}, {b}]", lambda: f"({a}, {b})", lambda: "{'k': " + a + ", 'l': " + b + "}",
            lambda: f"({a})[{b}]", lambda: f"({a})[{rng.choice(['1:', ':-1', '::2', '::-1', '-2:', ':1', '5:', '2:0:-1'])}]",
            lambda: f"({a}).{rng.choice(['x', 'name', 'k', 'items()', 'keys()|list', 'split()', 'strip()', 'upper()', 'title()', 'get(1)', 'lower()', 'splitlines()', 'isdigit()', 'count(1)'])}",
            lambda: f"({a})|join({b})", lambda: f"({a})|replace('a', {b})", lambda: f"({a}).split({b})",
            lambda: f"({a})|map({rng.choice(['attribute=0', repr('upper'), repr('string'), repr('length')])})|list",
            lambda: f"({a})|select({rng.choice([repr('string'), repr('defined'), repr('odd')])})|list",
        ])()

    def data(self):
        return self.rng.choice(["", " ", "\n", "  \n", "x", " x ", "\n  ", "\n\n", "\t", "a\n b", "}", "{ { ", "#", "x\n\t", "\u3000"])

    def tag(self, inside):
        left, right = self.rng.choice(["", "", "-", "+"]), self.rng.choice(["", "", "-", "+"])
        return "{%" + left + " " + inside + " " + right + "%}"

    def variable(self, inside):
        left, right = self.rng.choice(["", "", "-"]), self.rng.choice(["", "", "-"])
        return "{{" + left + " " + inside + " " + right + "}}"

    def body(self, depth=0):
        rng = self.rng
        out = self.data()
        for _ in range(rng.randrange(1, 4)):
            kind = rng.randrange(9 if depth < 3 else 3)
            if kind == 0:
                out += self.variable(rng.choice(["n", "x", "loop.index", "s", "1"]))
            elif kind == 1:
                out += self.tag("set x = " + rng.choice(["1", "n", "x", "'q'", "loop"]))
            elif kind == 2:
                out += "{#" + rng.choice(["", "-", "+"]) + " c " + rng.choice(["", "-", "+"]) + "#}"
            elif kind == 3:
                out += self.tag(rng.choice(["if x", "if n > 3", "if b"])) + self.body(depth + 1)
                if rng.random() < 0.5:
                    out += self.tag(rng.choice(["else", "elif nil"])) + self.body(depth + 1)
                out += self.tag("endif")
            elif kind in (4, 5):
                extra = rng.choice(["", "", " if i != 1", " if loop"])
                out += self.tag("for i in " + rng.choice(["l", "range(2)", "[]", "s[:2]", "d"]) + extra) + self.body(depth + 1)
                out += rng.choice(["", self.tag("break"), self.tag("continue"), self.variable("loop.last"),
                                   self.variable("loop.length ~ loop.revindex"), self.variable("loop.previtem|d('-')")])
                out += rng.choice(["", self.tag("else") + self.body(depth + 1)]) + self.tag("endfor")
            elif kind == 6:
                name = rng.choice(["m", "q"])
                out += self.tag(f"macro {name}(a, x=1)") + self.body(depth + 1) + self.tag("endmacro")
                out += self.variable(rng.choice([f"{name}(1)", f"{name}(1, x=2)", f"{name}()", f"{name}(1, 2, 3)"]))
            elif kind == 7:
                out += self.tag("raw").replace("+%}", "%}") + "{{ x }}" + self.data() + self.tag("endraw")
            else:
                out += self.tag("set y") + self.body(depth + 1) + self.tag("endset") + self.variable("y|trim")
            out += self.data()
        return out


def random_cases(count, seed):
    source = Random(seed)
    variables = {"s": "Hello, Wörld", "n": 7, "neg": -3, "f": 2.5, "b": True, "nil": None, "l": [3, 1, 2],
                 "ls": ["b", "A", "c"], "d": {"x": 1, "y": "two"}, "people": [{"name": "Ann"}, {"name": "bob"}]}
    for i in range(count):
        template = "{{ " + source.expression() + " }}" if i % 2 else source.body() + source.rng.choice(["", "\n", "\n\n"])
        yield {"name": "random expression" if i % 2 else "random blocks", "template": template, "messages": [], "kwargs": variables}


# What is knowingly different: (a word in Jinja2's error or in either text).
KNOWN = ("<generator object", "<list_reverseiterator", "<built-in", "<function", "<bound method", "<Macro", "<LoopContext",
         "<class ", "Markup(", "OverflowError", "MemoryError", "<dict_", "object at 0x")


def known(want, got, case):
    if any(word in want.get("text", want.get("error", "")) for word in KNOWN):
        return True
    # Jinja2 folds constants by other rules than it runs: (1)[1:] is undefined there, (n)[1:] an error. Sets, which
    # differences of dict views make in Python, are not among our values.
    return any(word in got.get("error", "") for word in ("not supported", "cannot be sliced", "'dict_"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", required=True)
    parser.add_argument("--count", type=int, default=40000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=5, help="differences to print")
    args = parser.parse_args()
    cases = [*template_cases(), *snippet_cases(), *random_cases(args.count, args.seed)]
    counts = {}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as requests, tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        for case in cases:
            requests.write(json.dumps(case) + "\n")
        requests.seek(0)
        subprocess.run([args.driver, "template"], stdin=requests, stdout=out, check=True)
        out.seek(0)
        for case in cases:
            got, want = json.loads(out.readline()), original(case)
            row = counts.setdefault(case["name"], {"cases": 0, "rendered": 0, "exempt": 0, "different": 0})
            row["cases"] += 1
            row["rendered"] += "text" in want
            if ("error" in got and "error" in want) or got == want:
                continue
            if known(want, got, case):
                row["exempt"] += 1
                continue
            row["different"] += 1
            if sum(r["different"] for r in counts.values()) <= args.show:
                print(f"{case['name']}: {case['template']!r}\n  want {want}\n  got  {got}")
    for name, row in counts.items():
        print(f"{name:28}", *(f"{value:7} {key}" for key, value in row.items()))
    different = sum(row["different"] for row in counts.values())
    print(f"jinja2 {jinja2.__version__}")
    print(f"{len(cases) - different} passed, {different} failed")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
