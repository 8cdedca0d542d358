#!/usr/bin/env python3
"""What changes how a text is computed, never which: the prefix cache, drafts, small chunks of prompts, kernels whose bits
don't depend on the batch; any three of them on and off in every way. Greedy texts are the recorded ones, cold, warm, and
beside others.

usage: features_test.py PLUMB MODEL
"""
import concurrent.futures
import itertools
import json
import pathlib
import sys
import traceback

from server import Server

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "golden" / "tiny-glm-dsa" / "prompts.json"
FEATURES = [("--no-prefix-cache",), ("--draft-tokens", "1"), ("--chunk-tokens", "64"), ("--deterministic",)]
LONGEST = 300  # tokens of a prompt
TOKENS = 12


def prompts():
    found = []
    for prompt in json.loads(GOLDEN.read_text(encoding="utf-8")):
        text = prompt["outputs"]["nvfp4-dequant-float32"]["greedy_text"]
        if len(prompt["ids"]) <= LONGEST:
            found.append((prompt["ids"], text))
    return found


def ask(server, ids):
    body = {"prompt": ids, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "skip_special_tokens": False}
    status, _, text = server.request("POST", "/v1/completions", body)
    assert status == 200, text
    return json.loads(text)["choices"][0]["text"]


def check(plumb, model, features):
    flags = [word for feature in features for word in feature]
    server = Server(plumb, model, "--log-level", "warn", "--verify", "off", "--max-running", "8", "--threads", "1", *flags)
    try:
        server.wait_until_ready()
        cases = prompts()
        assert len(cases) >= 5
        for _ in ("cold", "warm"):
            for ids, want in cases:
                got = ask(server, ids)
                assert got and (want.startswith(got) or got.startswith(want)), (flags, got, want)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            alone = [ask(server, ids) for ids, _ in cases]
            assert list(pool.map(lambda case: ask(server, case[0]), cases * 2)) == alone * 2, flags
        drafts = server.metric("plumb_drafts_accepted_total")
        assert (drafts > 0) == (("--draft-tokens", "1") in features), (flags, drafts)
        cached = server.metric("plumb_cached_tokens_total")
        assert (cached > 0) == (("--no-prefix-cache",) not in features), (flags, cached)
    finally:
        code = server.stop()
    assert code == 0, (flags, server.log)


def main():
    passed = failed = 0
    for chosen in itertools.product((False, True), repeat=3):
        last = chosen[0] ^ chosen[1] ^ chosen[2]  # so that every three of the four are seen in all eight ways
        features = [feature for feature, on in zip(FEATURES, (*chosen, last)) if on]
        try:
            check(sys.argv[1], sys.argv[2], features)
            passed += 1
        except Exception:  # noqa: BLE001: the other combinations are still worth a look
            failed += 1
            print(f"FAILED with {features}")
            traceback.print_exc(file=sys.stdout)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
