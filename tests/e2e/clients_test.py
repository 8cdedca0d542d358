#!/usr/bin/env python3
"""What users put in front of the server: Anthropic's client, LangChain, LiteLLM as a proxy.

usage: clients_test.py PLUMB MODEL      (each is skipped by name where its package is not installed:
                                         tools/requirements-clients.txt; exit code 77 where none is)
"""
import contextlib
import importlib.util
import json
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


@contextlib.contextmanager
def litellm(server):
    """The port of a proxy in front of the server, and the key that it wants."""
    port, key = free_port(), "sk-local"
    with tempfile.TemporaryDirectory() as folder:
        config, log = pathlib.Path(folder) / "config.yaml", pathlib.Path(folder) / "log"
        config.write_text(json.dumps({
            "model_list": [{"model_name": "tiny", "litellm_params": {
                "model": "openai/" + served_name(server), "api_base": base(server) + "/v1", "api_key": "none"}}],
            "general_settings": {"master_key": key}}), encoding="utf-8")
        program = pathlib.Path(sys.executable).parent / "litellm"
        with log.open("w", encoding="utf-8") as sink, subprocess.Popen(
                [program, "--config", config, "--port", str(port), "--host", "127.0.0.1"], stdout=sink, stderr=sink,
                env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}) as process:
            try:
                wait_for_proxy(process, port, log)
                yield port, key
            finally:
                process.terminate()


def wait_for_proxy(process, port, log):
    end = time.monotonic() + 300
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.5)
    raise RuntimeError(f"the proxy is not there: {log.read_text(encoding='utf-8')[-3000:]}")


def litellm_proxy(server):
    import openai  # pylint: disable=import-outside-toplevel
    with litellm(server) as (port, key):
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0)
        ask = {"model": "tiny", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
        assert client.chat.completions.create(**ask, extra_body=PLAIN).choices[0].message.content == "4"
        chunks = list(client.chat.completions.create(**ask, stream=True, extra_body=PLAIN))
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "4"
        assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]
        thought = client.chat.completions.create(**ask).choices[0].message
        assert thought.reasoning_content and thought.content == "4", thought
        parts = list(client.chat.completions.create(**ask, stream=True))
        streamed = "".join(getattr(c.choices[0].delta, "reasoning_content", None) or "" for c in parts if c.choices)
        assert streamed == thought.reasoning_content, (streamed, thought)
        tool = {"type": "function", "function": {"name": "get_weather", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
        call = {"model": "tiny", "messages": [{"role": "user", "content": WEATHER}], "temperature": 0, "tools": [tool],
                "tool_choice": "required", "extra_body": {**PLAIN, "parallel_tool_calls": False}}
        called = client.chat.completions.create(**call).choices[0].message.tool_calls[0].function
        assert called.name == "get_weather" and set(json.loads(called.arguments)) == {"city"}, called
        pieces = [c.choices[0].delta.tool_calls[0].function.arguments
                  for c in client.chat.completions.create(**call, stream=True) if c.choices and c.choices[0].delta.tool_calls]
        assert "".join(pieces) == called.arguments, (pieces, called)
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
        shaped = client.chat.completions.create(**ask, extra_body=PLAIN, response_format={
            "type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}})
        assert isinstance(json.loads(shaped.choices[0].message.content)["n"], int), shaped
        try:
            client.chat.completions.create(model="tiny", messages=ask["messages"], max_tokens=10**6)
            raise AssertionError("no error")
        except openai.BadRequestError as error:
            assert "maximum context length" in str(error), error


NEEDS = {anthropic_client: "anthropic", langchain: "langchain_openai", litellm_proxy: "litellm"}

if __name__ == "__main__":
    present = [test for test, package in NEEDS.items() if importlib.util.find_spec(package) is not None]
    missing = [package for package in NEEDS.values() if importlib.util.find_spec(package) is None]
    for package in missing:
        print(f"skipped: the package {package} is not installed")
    if not present:
        print("none of " + ", ".join(NEEDS.values()) + " is installed (tools/requirements-clients.txt)")
        sys.exit(77)
    sys.exit(run_tests(sys.argv[1], sys.argv[2], present, "--log-level", "warn"))
