#!/usr/bin/env python3
"""The real binary and model over plain HTTP: answers, errors, leaving clients, many streams.

usage: api_test.py PLUMB MODEL
"""
import concurrent.futures
import http.client
import json
import socket
import sys
import time

from server import run_tests

QUESTION = [{"role": "user", "content": "What is 2+2? Answer briefly."}]
PLAIN = {"chat_template_kwargs": {"enable_thinking": False}}


def chat(server, **fields):
    status, _, text = server.request("POST", "/v1/chat/completions", {"messages": QUESTION, "temperature": 0, **fields})
    return status, json.loads(text)


def stream(server, **fields):
    """(content, reasoning, finish reasons, usage) of a streamed chat, with the framing checked."""
    body = {"messages": QUESTION, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}, **fields}
    status, headers, text = server.request("POST", "/v1/chat/completions", body)
    assert status == 200, text
    assert headers["Content-Type"].startswith("text/event-stream")
    events = [event[6:] for event in text.split("\n\n") if event.startswith("data: ")]
    assert events[-1] == "[DONE]"
    content, reasoning, finishes, usage = "", "", [], None
    for event in map(json.loads, events[:-1]):
        usage = event["usage"] or usage
        for choice in event["choices"]:
            content += choice["delta"].get("content") or ""
            reasoning += choice["delta"].get("reasoning_content") or ""
            if choice["finish_reason"]:
                finishes.append(choice["finish_reason"])
    return content, reasoning, finishes, usage


def answers_the_question(server):
    status, answer = chat(server, **PLAIN)
    assert status == 200, answer
    assert answer["choices"][0]["message"]["content"] == "4", answer
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]
    assert answer["system_fingerprint"]


def streamed_equals_whole(server):
    for fields in ({}, PLAIN, {"max_tokens": 5}, {"seed": 7, "temperature": 1.0}, {"stop": "e"}):
        _, whole = chat(server, **fields)
        message = whole["choices"][0]["message"]
        content, reasoning, finishes, usage = stream(server, **fields)
        assert content == message["content"], (fields, content, message)
        assert reasoning == message.get("reasoning_content", ""), (fields, reasoning, message)
        assert finishes == [whole["choices"][0]["finish_reason"]]
        assert usage["completion_tokens"] == whole["usage"]["completion_tokens"], (fields, usage, whole["usage"])


def greedy_logprobs_report_the_best(server):
    _, answer = chat(server, logprobs=True, top_logprobs=3, **PLAIN)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == answer["choices"][0]["message"]["content"]
    for entry in entries:
        assert entry["logprob"] <= 0
        assert entry["top_logprobs"][0]["token"] == entry["token"], entry
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True) and len(values) == 3


def a_seed_repeats_its_draw(server):
    fields = {"temperature": 2.0, "top_p": 1.0, "seed": 42, "max_tokens": 48,
              "messages": [{"role": "user", "content": "Tell me a short story."}]}
    texts = {json.dumps(chat(server, **fields)[1]["choices"]) for _ in range(3)}
    assert len(texts) == 1, texts
    _, several = chat(server, n=3, **fields)
    assert len({json.dumps(c["message"]) for c in several["choices"]}) > 1, "choices draw for themselves"
    assert json.dumps([several["choices"][0]]) in texts, "the first choice keeps the seed"


def completions_echo_and_score(server):
    body = {"prompt": "The code of amber is", "max_tokens": 4, "temperature": 0, "echo": True, "logprobs": 2}
    status, _, text = server.request("POST", "/v1/completions", body)
    answer = json.loads(text)
    assert status == 200, answer
    choice = answer["choices"][0]
    assert choice["text"].startswith(body["prompt"])
    tokens = choice["logprobs"]["tokens"]
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert all(value <= 0 for value in choice["logprobs"]["token_logprobs"][1:])
    assert "".join(tokens) == choice["text"], (tokens, choice["text"])
    scored = server.request("POST", "/v1/completions", {**body, "max_tokens": 0})
    assert json.loads(scored[2])["choices"][0]["text"] == body["prompt"], scored


def excluded_tokens_have_the_lowest_logprob_in_valid_json(server):
    """No infinity in the JSON where most tokens are excluded: the best token alone, a schema, a scored prompt."""
    def no_constant(name):
        raise AssertionError(f"{name} is no JSON")
    schema = {"type": "object", "properties": {"n": {"enum": [1, 22]}}, "required": ["n"], "additionalProperties": False}
    for fields in ({"top_k": 1, "temperature": 1}, {"guided_json": schema, "temperature": 1, "seed": 3}, {"guided_choice": ["zebra", "quartz"]}):
        body = {"messages": QUESTION, "logprobs": True, "top_logprobs": 20, "max_tokens": 40, **PLAIN, **fields}
        status, _, text = server.request("POST", "/v1/chat/completions", body)
        entries = json.loads(text, parse_constant=no_constant)["choices"][0]["logprobs"]["content"]
        assert status == 200 and entries, text
        assert all(-9999 <= top["logprob"] <= 0 for entry in entries for top in [entry, *entry["top_logprobs"]]), text
    body = {"prompt": "zq \U0001f600 <|user|>", "max_tokens": 3, "echo": True, "logprobs": 20, "top_k": 1, "guided_regex": "zz+"}
    status, _, text = server.request("POST", "/v1/completions", body)
    values = json.loads(text, parse_constant=no_constant)["choices"][0]["logprobs"]["token_logprobs"]
    assert status == 200 and values[0] is None and all(-9999 <= value <= 0 for value in values[1:]), text


def the_template_switches_thinking(server):
    def prompt(**fields):
        return json.loads(server.request("POST", "/apply-template", {"messages": QUESTION, **fields})[2])["prompt"]
    on, off = prompt(), prompt(chat_template_kwargs={"enable_thinking": False})
    assert on.endswith("<|assistant|><think>") and off.endswith("<|assistant|></think>"), (on, off)
    assert prompt(chat_template_kwargs={"enable_thinking": True}) == prompt(chat_template_kwargs={"unknown": 1}) == on
    assert prompt(reasoning_effort="none") == off
    for fields in ({}, {"enable_thinking": True}, {"unknown": 1}):
        message = chat(server, chat_template_kwargs=fields)[1]["choices"][0]["message"]
        assert message["content"] == "4" and message["reasoning_content"], message
    message = chat(server, **PLAIN)[1]["choices"][0]["message"]
    assert message["content"] == "4" and not message.get("reasoning_content"), message


def errors_are_the_callers(server):
    status, error = chat(server, top_logprobs=1000000, logprobs=True)
    assert status == 400 and error["error"]["param"] == "top_logprobs", error
    status, error = chat(server, max_tokens=1000000)
    assert status == 400 and error["error"]["code"] == "context_length_exceeded", error
    assert "maximum context length is" in error["error"]["message"]
    status, error = chat(server, logit_bias={"99999999": 5})
    assert status == 400 and error["error"]["param"] == "logit_bias", error
    status, error = chat(server, model="no-such-model")
    assert status == 404 and error["error"]["code"] == "model_not_found", error
    status, error = chat(server, tools=[{"type": "function", "function": {}}])
    assert status == 400 and error["error"]["param"].startswith("tools"), error


def tokenize_and_back(server):
    for text in ("What is 2+2?", "\U0001f600 é \n\t x", "<|user|>"):
        tokens = json.loads(server.request("POST", "/tokenize", {"prompt": text})[2])
        assert tokens["count"] == len(tokens["tokens"])
        back = json.loads(server.request("POST", "/detokenize", {"tokens": tokens["tokens"]})[2])
        assert back["prompt"] == text, back
    prompt = json.loads(server.request("POST", "/apply-template", {"messages": QUESTION})[2])["prompt"]
    assert prompt.endswith("<|assistant|><think>"), prompt


def leaving_clients_stop_the_work(server):
    for streamed in (True, False):
        aborts = server.metric("plumb_aborts_total")
        body = json.dumps({"messages": QUESTION, "ignore_eos": True, "max_tokens": 3000, "stream": streamed})
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall((f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                            f"Content-Length: {len(body)}\r\n\r\n{body}").encode())
            end = time.monotonic() + 20
            while server.metric("plumb_sequences_running") == 0:
                assert time.monotonic() < end, "never ran"
        end = time.monotonic() + 20
        while server.metric("plumb_aborts_total") == aborts or server.metric("plumb_sequences_running") > 0:
            assert time.monotonic() < end, "the work goes on for nobody"
            time.sleep(0.02)


def sixty_four_at_once_equal_one_alone(server):
    alone = stream(server)
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        for answer in pool.map(lambda _: stream(server), range(64)):
            assert answer[:3] == alone[:3], (answer, alone)


def a_running_stream_survives_a_drain(server):
    """Last: SIGTERM comes from the runner afterwards; here the connection of a stream is still open then."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/v1/chat/completions",
                       json.dumps({"messages": QUESTION, "stream": True, "max_tokens": 8, "ignore_eos": True}))
    text = connection.getresponse().read().decode()
    assert text.endswith("data: [DONE]\n\n"), text


TESTS = [answers_the_question, streamed_equals_whole, greedy_logprobs_report_the_best, a_seed_repeats_its_draw,
         completions_echo_and_score, excluded_tokens_have_the_lowest_logprob_in_valid_json, the_template_switches_thinking,
         errors_are_the_callers, tokenize_and_back, leaving_clients_stop_the_work,
         sixty_four_at_once_equal_one_alone, a_running_stream_survives_a_drain]

if __name__ == "__main__":
    sys.exit(run_tests(sys.argv[1], sys.argv[2], TESTS, "--log-level", "warn"))
