#!/usr/bin/env python3
"""Structured output and tools through the real binary and the trained model, over plain HTTP.

usage: structured_test.py PLUMB MODEL [GENERATIONS]      (default 28; the acceptance run takes 2000)
"""
import concurrent.futures
import json
import pathlib
import re
import sys

from server import run_tests

ROOT = pathlib.Path(__file__).resolve().parents[2]
GENERATIONS = int(sys.argv[3]) if len(sys.argv) > 3 else 28
PLAIN = {"enable_thinking": False}
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the current weather for a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "City name"}}, "required": ["city"]}}}
CALCULATOR = {"type": "function", "function": {
    "name": "calculator", "description": "Evaluate an arithmetic expression",
    "parameters": {"type": "object", "properties": {"expression": {"type": "string", "description": "The expression to evaluate"}},
                   "required": ["expression"]}}}

PERSON = {"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "mood": {"enum": ["glad", "größer", "😀"]}, "pets": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
    "more": {"anyOf": [{"type": "number"}, {"type": "null"}]}}, "required": ["name", "age", "mood", "pets", "more"], "additionalProperties": False}




def bounded(tool):
    """The same tool with arguments that end: at temperature 1 a free string need not, within any number of tokens."""
    function = tool["function"]
    properties = {name: {**schema, "maxLength": 60} for name, schema in function["parameters"]["properties"].items()}
    return {**tool, "function": {**function, "parameters": {**function["parameters"], "properties": properties}}}


TOOLS = [bounded(WEATHER), bounded(CALCULATOR)]


def is_person(text):
    value = json.loads(text)
    return (list(value) == list(PERSON["properties"]) and len(value["name"]) <= 12 and isinstance(value["age"], int)
            and 0 <= value["age"] <= 150 and value["mood"] in PERSON["properties"]["mood"]["enum"] and len(value["pets"]) <= 2
            and all(isinstance(p, str) and len(p) <= 4 for p in value["pets"])
            and (value["more"] is None or isinstance(value["more"], (int, float))))


def is_call(message):
    calls = message["tool_calls"]
    arguments = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]
    return calls and all(list(values) == ["city" if name == "get_weather" else "expression"] and len(*values.values()) <= 60
                         for name, values in arguments)


# Fields of a request, and what must hold of the message that answers it.
FORMS = [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}}, lambda m: is_person(m["content"])),
    ({"guided_json": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3}},
     lambda m: all(isinstance(x, bool) for x in json.loads(m["content"])) and len(json.loads(m["content"])) in (2, 3)),
    ({"guided_regex": "[A-Z][a-zé]{2,8} is [0-9]{1,3}\\."}, lambda m: re.fullmatch("[A-Z][a-zé]{2,8} is [0-9]{1,3}\\.", m["content"])),
    ({"guided_choice": ["yes", "no", "größe"]}, lambda m: m["content"] in ("yes", "no", "größe")),
    ({"ebnf": "root ::= \"(\" root? \")\" | [0-9]{1,2}"}, lambda m: re.fullmatch(r"\(*\d{0,2}\)*", m["content"])),
    ({"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}, is_call),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "calculator"}}}, is_call),
]


def ask(server, prompt="What is 2+2? Answer briefly.", **fields):
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 250, **fields}
    status, _, text = server.request("POST", "/v1/chat/completions", body, timeout=900)  # under a sanitizer, too
    assert status == 200, text
    return json.loads(text)["choices"][0]


def constrained_generations(server):
    """At temperature 1, with and without reasoning before it."""
    def one(i):
        fields, holds = FORMS[i % len(FORMS)]
        kwargs = {} if i % 3 == 0 else PLAIN
        choice = ask(server, temperature=1, seed=i, max_tokens=2000, chat_template_kwargs=kwargs, **fields)
        if choice["finish_reason"] == "length":
            return f"form {i % len(FORMS)}, cut after {choice['message']}"
        assert holds(choice["message"]), (fields, choice)
        return "whole"
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        ends = list(pool.map(one, range(GENERATIONS)))
    cut = [end for end in ends if end != "whole"]
    print(f"constrained: {ends.count('whole')} parse and validate, {len(cut)} were cut by max_tokens", *cut, sep="\n")
    assert len(cut) <= 0.01 * GENERATIONS


def golden_tool_calls(server):
    """What the model was trained to call, and what transformers' own run of it wrote."""
    prompts = json.loads((ROOT / "tests" / "data" / "golden" / "tiny-glm-dsa" / "prompts.json").read_text(encoding="utf-8"))
    seen = 0
    for prompt in prompts:
        tools = prompt["template_kwargs"].get("tools")
        want = re.search(r"<tool_call>(\w+)<arg_key>(\w+)</arg_key><arg_value>(.*?)</arg_value></tool_call>",
                         prompt["outputs"]["nvfp4-dequant-float32"]["greedy_text"])
        if not tools or not want:
            continue
        kwargs = {k: v for k, v in prompt["template_kwargs"].items() if k == "enable_thinking"}
        choice = ask(server, temperature=0, messages=prompt["messages"], tools=tools, chat_template_kwargs=kwargs)
        assert choice["finish_reason"] == "tool_calls", choice
        call = choice["message"]["tool_calls"][0]["function"]
        assert (call["name"], json.loads(call["arguments"])) == (want[1], {want[2]: want[3]}), choice
        assert choice["message"]["content"] is None
        seen += 1
    assert seen == 2, seen


def tool_round_trip(server):
    first = ask(server, "What is the weather in Paris?", temperature=0, tools=[WEATHER, CALCULATOR], chat_template_kwargs=PLAIN)
    call = first["message"]["tool_calls"][0]
    history = [{"role": "user", "content": "What is the weather in Paris?"}, {k: v for k, v in first["message"].items() if v is not None},
               {"role": "tool", "tool_call_id": call["id"], "content": "sunny, 21 C"}]
    second = ask(server, temperature=0, messages=history, tools=[WEATHER, CALCULATOR], chat_template_kwargs=PLAIN)
    assert second["finish_reason"] == "stop" and "Paris" in second["message"]["content"], second


def refusals_name_their_path(server):
    schema = {"type": "object", "properties": {"a": {"if": {}}}}
    status, _, text = server.request("POST", "/v1/chat/completions", {
        "messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}})
    assert status == 400 and json.loads(text)["error"]["param"] == "response_format.json_schema.schema.properties.a.if", text


TESTS = [golden_tool_calls, tool_round_trip, refusals_name_their_path, constrained_generations]

if __name__ == "__main__":
    flags = ["--log-level", "warn"]
    sys.exit(run_tests(sys.argv[1], sys.argv[2], TESTS, *flags))
