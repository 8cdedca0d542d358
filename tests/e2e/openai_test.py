#!/usr/bin/env python3
"""The openai package against the real binary: what its users call.

usage: openai_test.py PLUMB MODEL      (exit code 77 where the package is not installed)
"""
import asyncio
import sys
from typing import Annotated, Literal

from server import run_tests

try:
    import openai
    import pydantic
except ImportError:
    print("the openai package is not installed (pip install openai)")
    sys.exit(77)

QUESTION = [{"role": "user", "content": "What is 2+2? Answer briefly."}]
PLAIN = {"chat_template_kwargs": {"enable_thinking": False}}


def client_of(server, kind=openai.OpenAI):
    return kind(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)


def served_name(server):
    return client_of(server).models.list().data[0].id


def create(server):
    answer = client_of(server).chat.completions.create(model=served_name(server), messages=QUESTION, temperature=0,
                                                       extra_body=PLAIN)
    assert answer.choices[0].message.content == "4", answer
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.model == served_name(server)
    assert answer._request_id  # pylint: disable=protected-access


def create_stream(server):
    chunks = list(client_of(server).chat.completions.create(
        model=served_name(server), messages=QUESTION, temperature=0, stream=True, extra_body=PLAIN,
        stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "4"
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]
    assert chunks[-1].usage.completion_tokens > 0 and chunks[-1].choices == []
    assert len({c.id for c in chunks}) == 1


def stream_helper(server):
    with client_of(server).chat.completions.stream(model=served_name(server), messages=QUESTION, temperature=0,
                                                   logprobs=True, top_logprobs=2, extra_body=PLAIN) as events:
        final = None
        for _ in events:
            pass
        final = events.get_final_completion()
    assert final.choices[0].message.content == "4"
    assert final.choices[0].message.role == "assistant"
    assert "".join(t.token for t in final.choices[0].logprobs.content) == "4"


def asynchronous_and_many(server):
    async def run():
        client = client_of(server, openai.AsyncOpenAI)
        name = served_name(server)

        async def one():
            text = ""
            parts = await client.chat.completions.create(model=name, messages=QUESTION, temperature=0, stream=True,
                                                         extra_body=PLAIN)
            async for part in parts:
                text += part.choices[0].delta.content or ""
            return text

        answers = await asyncio.gather(*(one() for _ in range(64)))
        await client.close()
        return answers

    assert set(asyncio.run(run())) == {"4"}


def asynchronous_create_and_stream_helper(server):
    async def run():
        async with client_of(server, openai.AsyncOpenAI) as client:
            fields = {"model": served_name(server), "messages": QUESTION, "temperature": 0}
            whole = await client.chat.completions.create(**fields)
            async with client.chat.completions.stream(**fields) as events:
                async for _ in events:
                    pass
                streamed = await events.get_final_completion()
            return whole.choices[0], streamed.choices[0]

    whole, streamed = asyncio.run(run())
    assert whole.message.content == streamed.message.content == "4" and whole.finish_reason == streamed.finish_reason == "stop"
    assert whole.message.reasoning_content == streamed.message.reasoning_content != ""


def completions(server):
    answer = client_of(server).completions.create(model=served_name(server), prompt=["2+2=", "1+1="], max_tokens=3,
                                                  temperature=0, logprobs=1, echo=True)
    assert [c.index for c in answer.choices] == [0, 1]
    assert answer.choices[0].text.startswith("2+2=")
    assert answer.choices[0].logprobs.token_logprobs[0] is None


def errors(server):
    client, name = client_of(server), served_name(server)
    try:
        client.chat.completions.create(model=name, messages=QUESTION, temperature=3)
        raise AssertionError("no error")
    except openai.BadRequestError as error:
        assert error.param == "temperature" and error.code == "invalid_value", error
    try:
        client.chat.completions.create(model="none", messages=QUESTION)
        raise AssertionError("no error")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found", error
    try:
        client.chat.completions.create(model=name, messages=QUESTION, max_tokens=10**6)
        raise AssertionError("no error")
    except openai.BadRequestError as error:
        assert error.code == "context_length_exceeded" and "maximum context length" in str(error), error


def closing_a_stream_early(server):
    parts = client_of(server).chat.completions.create(model=served_name(server), messages=QUESTION, stream=True,
                                                      max_tokens=2000, extra_body={"ignore_eos": True})
    next(iter(parts))
    parts.close()
    create(server)


def raw_response_headers(server):
    raw = client_of(server).chat.completions.with_raw_response.create(
        model=served_name(server), messages=QUESTION, temperature=0, extra_body={**PLAIN, "wibble": 1},
        extra_headers={"x-request-id": "from-the-client"})
    assert raw.headers["x-request-id"] == "from-the-client"
    assert raw.headers["x-ignored-fields"] == "wibble"


def parse_helper(server):
    """pydantic models as response_format, whole, streamed and asynchronous."""
    class Pet(pydantic.BaseModel):
        name: Annotated[str, pydantic.Field(max_length=8)]
        kind: Literal["cat", "dog"]
        age: int | None

    class Owner(pydantic.BaseModel):
        pets: Annotated[list[Pet], pydantic.Field(max_length=2)]
        rating: Annotated[float, pydantic.Field(ge=0, le=5)]

    client, name = client_of(server), served_name(server)
    fields = {"model": name, "messages": QUESTION, "temperature": 1, "max_tokens": 600, "extra_body": PLAIN}
    whole = client.chat.completions.parse(**fields, seed=1, response_format=Owner)
    assert isinstance(whole.choices[0].message.parsed, Owner), whole
    with client.chat.completions.stream(**fields, seed=1, response_format=Owner) as events:
        for _ in events:
            pass
        streamed = events.get_final_completion()
    assert streamed.choices[0].message.parsed == whole.choices[0].message.parsed

    async def run():
        other = client_of(server, openai.AsyncOpenAI)
        answer = await other.chat.completions.parse(**fields, seed=1, response_format=Owner)
        await other.close()
        return answer.choices[0].message.parsed

    assert asyncio.run(run()) == whole.choices[0].message.parsed


def tools_helper(server):
    """A pydantic model as a tool; the call's arguments come back parsed, whole and streamed."""
    class Weather(pydantic.BaseModel):
        city: Annotated[str, pydantic.Field(max_length=12)]

    client, name = client_of(server), served_name(server)
    fields = {"model": name, "messages": [{"role": "user", "content": "What is the weather in Paris?"}], "temperature": 0,
              "tools": [openai.pydantic_function_tool(Weather, name="get_weather")], "tool_choice": "required",
              "parallel_tool_calls": False, "extra_body": PLAIN}
    whole = client.chat.completions.parse(**fields)
    call = whole.choices[0].message.tool_calls[0]
    assert whole.choices[0].finish_reason == "tool_calls" and isinstance(call.function.parsed_arguments, Weather), whole
    with client.chat.completions.stream(**fields) as events:
        final = [e for e in events if e.type == "tool_calls.function.arguments.done"]
        streamed = events.get_final_completion()
    assert len(final) == 1 and final[0].name == "get_weather"
    assert streamed.choices[0].message.tool_calls[0].function.parsed_arguments == call.function.parsed_arguments
    # The helper's tools are strict: what the model calls by itself keeps to the schema as well.
    free = client.chat.completions.parse(**{**fields, "tool_choice": "auto"})
    for one in free.choices[0].message.tool_calls or []:
        assert isinstance(one.function.parsed_arguments, Weather), free


def responses(server):
    client, name = client_of(server), served_name(server)
    whole = client.responses.create(model=name, input=QUESTION[0]["content"], temperature=0, extra_body=PLAIN)
    assert whole.output_text == "4" and whole.status == "completed", whole
    events = list(client.responses.create(model=name, input=QUESTION[0]["content"], temperature=0, stream=True, extra_body=PLAIN))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "4"
    assert events[-1].type == "response.completed" and events[-1].response.output_text == "4"
    tool = {"type": "function", "name": "get_weather", "strict": False,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
    called = client.responses.create(model=name, input="What is the weather in Paris?", temperature=0, tools=[tool],
                                     tool_choice="required", parallel_tool_calls=False, extra_body=PLAIN)
    assert [item.type for item in called.output] == ["function_call"] and called.output[0].name == "get_weather", called
    with client.responses.stream(model=name, input=QUESTION[0]["content"], temperature=0) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert any(item.type == "reasoning" for item in final.output), final


TESTS = [create, create_stream, stream_helper, asynchronous_and_many, asynchronous_create_and_stream_helper, completions, errors, closing_a_stream_early,
         raw_response_headers, parse_helper, tools_helper, responses]

if __name__ == "__main__":
    sys.exit(run_tests(sys.argv[1], sys.argv[2], TESTS, "--log-level", "warn"))
