#!/usr/bin/env python3
"""What users put in front of the server: Anthropic's client, LangChain, LiteLLM as a proxy, lm-eval.

usage: clients_test.py PLUMB MODEL      (each is skipped by name where its package is not installed:
                                         tools/requirements-clients.txt; exit code 77 where none is)
"""
import contextlib
import importlib.util
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

from server import free_port, run_tests

QUESTION = "What is 2+2? Answer briefly."
PLAIN = {"chat_template_kwargs": {"enable_thinking": False}}
WEATHER = "What is the weather in Paris?"


def base(server):
    return f"http://127.0.0.1:{server.port}"


def served_name(server):
    return json.loads(server.request("GET", "/v1/models")[2])["data"][0]["id"]


def anthropic_client(server):
    import anthropic  # pylint: disable=import-outside-toplevel
    client, name = anthropic.Anthropic(base_url=base(server), api_key="none", max_retries=0), served_name(server)
    ask = {"model": name, "max_tokens": 60, "extra_body": {"temperature": 0}, "messages": [{"role": "user", "content": QUESTION}]}
    whole = client.messages.create(**ask)
    assert whole.content[0].text == "4" and whole.stop_reason == "end_turn", whole
    with client.messages.stream(**ask) as stream:
        assert "".join(stream.text_stream) == "4"
        assert stream.get_final_message().stop_reason == "end_turn"
    tool = {"name": "get_weather", "description": "Get the current weather for a city",
            "input_schema": {"type": "object", "properties": {"city": {"type": "string", "description": "City name"}}, "required": ["city"]}}
    ask = {**ask, "messages": [{"role": "user", "content": WEATHER}], "tools": [tool], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    called = client.messages.create(**ask)
    assert called.stop_reason == "tool_use" and called.content[0].name == "get_weather", called
    with client.messages.stream(**ask) as stream:
        final = stream.get_final_message()
    assert final.content[0].input == called.content[0].input, final
    history = ask["messages"] + [{"role": "assistant", "content": called.content},
                                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": called.content[0].id, "content": "sunny"}]}]
    assert client.messages.create(**{**ask, "messages": history, "tool_choice": {"type": "auto"}}).content
    assert client.messages.count_tokens(model=name, messages=[{"role": "user", "content": "hi"}]).input_tokens > 3
    thinking = client.messages.create(**{**ask, "messages": [{"role": "user", "content": QUESTION}], "tools": [],
                                         "tool_choice": {"type": "none"}, "max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1024}})
    assert thinking.content[0].type == "thinking", thinking
    try:
        client.messages.create(**{**ask, "extra_body": {"temperature": 7}})
        raise AssertionError("no error")
    except anthropic.BadRequestError as error:
        assert "temperature" in str(error)


def langchain(server):
    import langchain_openai  # pylint: disable=import-outside-toplevel
    import pydantic  # pylint: disable=import-outside-toplevel

    class Pet(pydantic.BaseModel):
        """A pet."""
        kind: str = pydantic.Field(max_length=8)
        age: int = pydantic.Field(ge=0, le=30)

    class get_weather(pydantic.BaseModel):  # pylint: disable=invalid-name
        """Get the current weather for a city"""
        city: str = pydantic.Field(max_length=12)

    model = langchain_openai.ChatOpenAI(model=served_name(server), base_url=base(server) + "/v1", api_key="none", temperature=0,
                                        max_retries=0, extra_body=PLAIN)
    assert model.invoke(QUESTION).content == "4"
    assert "".join(chunk.content for chunk in model.stream(QUESTION)) == "4"
    called = model.bind_tools([get_weather], tool_choice="required", parallel_tool_calls=False).invoke(WEATHER)
    assert called.tool_calls[0]["name"] == "get_weather" and set(called.tool_calls[0]["args"]) == {"city"}, called
    gathered = None
    for chunk in model.bind_tools([get_weather], tool_choice="required", parallel_tool_calls=False).stream(WEATHER):
        gathered = chunk if gathered is None else gathered + chunk
    assert gathered.tool_calls[0]["args"] == called.tool_calls[0]["args"], gathered
    for method in ("json_schema", "function_calling"):
        assert isinstance(model.with_structured_output(Pet, method=method).invoke(QUESTION), Pet)


def litellm_proxy(server):
    import openai  # pylint: disable=import-outside-toplevel
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "config.yaml"
        config.write_text(json.dumps({"model_list": [{"model_name": "tiny", "litellm_params": {
            "model": "openai/" + served_name(server), "api_base": base(server) + "/v1", "api_key": "none"}}]}), encoding="utf-8")
        program = pathlib.Path(sys.executable).parent / "litellm"
        with open(pathlib.Path(folder) / "log", "w", encoding="utf-8") as log, subprocess.Popen(
                [program, "--config", config, "--port", str(port), "--host", "127.0.0.1"], stdout=log, stderr=log,
                env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}) as process:
            try:
                end = time.monotonic() + 120
                while time.monotonic() < end:
                    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=5) as answer:
                        if answer.status == 200:
                            break
                    time.sleep(0.5)
                client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
                ask = {"model": "tiny", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
                assert client.chat.completions.create(**ask, extra_body=PLAIN).choices[0].message.content == "4"
                chunks = list(client.chat.completions.create(**ask, stream=True, extra_body=PLAIN))
                assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "4"
                assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]
                thought = client.chat.completions.create(**ask).choices[0].message
                assert thought.reasoning_content and thought.content == "4", thought
                tool = {"type": "function", "function": {"name": "get_weather", "parameters": {
                    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
                called = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": WEATHER}], temperature=0, tools=[tool],
                                                        tool_choice="required", extra_body={**PLAIN, "parallel_tool_calls": False})
                assert called.choices[0].message.tool_calls[0].function.name == "get_weather", called
                try:
                    client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": QUESTION}], max_tokens=10**6)
                    raise AssertionError("no error")
                except openai.BadRequestError as error:
                    assert "maximum context length" in str(error), error
            finally:
                process.terminate()


def lm_eval_task(server):
    """A log-likelihood and a generation task over /v1/completions; their figures against a direct computation."""
    import lm_eval  # pylint: disable=import-outside-toplevel
    from lm_eval.models.openai_completions import LocalCompletionsAPI  # pylint: disable=import-outside-toplevel
    from lm_eval.api.instance import Instance  # pylint: disable=import-outside-toplevel
    assert lm_eval

    class Tokenizer:
        """The server's own, as lm-eval wants one."""
        eos_token, bos_token, pad_token = "<|endoftext|>", None, "<|endoftext|>"
        eos_token_id = bos_token_id = pad_token_id = 2000

        def encode(self, text, **_):
            return json.loads(server.request("POST", "/tokenize", {"prompt": text})[2])["tokens"]

        def decode(self, ids, **_):
            return json.loads(server.request("POST", "/detokenize", {"tokens": list(ids)})[2])["prompt"]

        def __call__(self, texts, **_):
            class Encoded:  # pylint: disable=too-few-public-methods
                input_ids = [self.encode(t) for t in texts]
            return Encoded()
    model = LocalCompletionsAPI(base_url=base(server) + "/v1/completions", model=served_name(server), tokenizer_backend=None, max_retries=1,
                                tokenized_requests=True, num_concurrent=1, batch_size=1, max_length=2048)
    model.tokenizer = Tokenizer()
    model._tokenizer_backend = model.tokenizer_backend = "huggingface"  # pylint: disable=protected-access
    head, answers = "[gMASK]<sop><|user|>What is 2+2? Answer briefly.<|assistant|></think>", ["4", "5", " seven"]
    instances = [Instance(request_type="loglikelihood", doc={}, arguments=(head, a), idx=i) for i, a in enumerate(answers)]
    figures = model.loglikelihood(instances)
    for answer, (logprob, greedy) in zip(answers, figures):
        ids, all_ids = model.tokenizer.encode(head), model.tokenizer.encode(head + answer)
        direct = json.loads(server.request("POST", "/v1/completions", {"prompt": all_ids, "max_tokens": 0, "echo": True, "logprobs": 1})[2])
        values = direct["choices"][0]["logprobs"]["token_logprobs"][len(ids):]
        assert math.isclose(logprob, sum(values), abs_tol=1e-4), (answer, logprob, values)
        assert greedy == (answer == "4"), (answer, greedy)
    text = model.generate_until([Instance(request_type="generate_until", doc={}, arguments=(head, {"until": ["<|user|>"], "max_gen_toks": 8}), idx=0)])
    direct = json.loads(server.request("POST", "/v1/completions", {"prompt": head, "max_tokens": 8, "temperature": 0})[2])
    assert text == [direct["choices"][0]["text"]] == ["4"], (text, direct)


NEEDS = {anthropic_client: "anthropic", langchain: "langchain_openai", litellm_proxy: "litellm", lm_eval_task: "lm_eval"}

if __name__ == "__main__":
    present = [test for test, package in NEEDS.items() if importlib.util.find_spec(package) is not None]
    missing = [package for package in NEEDS.values() if importlib.util.find_spec(package) is None]
    for package in missing:
        print(f"skipped: the package {package} is not installed")
    if not present:
        print("none of " + ", ".join(NEEDS.values()) + " is installed (tools/requirements-clients.txt)")
        sys.exit(77)
    sys.exit(run_tests(sys.argv[1], sys.argv[2], present, "--log-level", "warn"))
