#!/usr/bin/env python3
"""Verification before ready, seen from outside. usage: verify_test.py PLUMB MODEL"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from server import Server, free_port


def start(plumb, model, *flags):
    server = Server(plumb, str(model), "--max-running", "8", *flags)
    server.wait_until_ready()
    return server


def fails(plumb, model, *flags):
    """Exit code and message of a start that must not become ready."""
    done = subprocess.run([plumb, "serve", str(model), "--port", str(free_port()), "--max-running", "8", *flags],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stderr


def quick_is_the_default(plumb, model, folder):
    out = folder / "receipt.json"
    server = start(plumb, model, "--draft-tokens", "1", "--verification-out", str(out))
    try:
        health = json.loads(server.request("GET", "/health")[2])
        assert health == {"state": "ready", "verification": "verified"}, health
        receipt = json.loads(server.request("GET", "/verification")[2])
        assert receipt == json.loads(out.read_text()), "the file is the receipt"
        assert receipt["verdict"] == "verified" and receipt["level"] == "quick", receipt
        checks = {check["name"]: check for check in receipt["checks"]}
        for name in ("weights", "layer_replay", "decode_vs_prefill", "long_context", "batch_buckets", "cache_paths",
                     "speculation", "sampling"):
            assert checks[name]["verdict"] == "passed", checks[name]
            assert checks[name]["figure"] <= checks[name]["bound"], checks[name]
        for name in ("ranks", "golden", "text"):
            assert checks[name]["verdict"] == "skipped" and checks[name]["sample"], checks[name]
        print("quick verification:", round(receipt["seconds"], 2), "s")
        assert server.metric('plumb_numerical_faults_total{kind="nan"}') == 0
    finally:
        assert server.stop() == 0
    assert "verifying: layer_replay (3 of 11)" in server.log and "verified (quick)" in server.log, server.log


def off_is_said_everywhere(plumb, model, _folder):
    server = start(plumb, model, "--verify", "off")
    try:
        assert json.loads(server.request("GET", "/health")[2])["verification"] == "unverified"
        status, _, body = server.request("GET", "/verification")
        assert status == 404 and "unverified" in body, body
    finally:
        server.stop()
    assert "unverified" in server.log


def prompts_with_known_answers(plumb, model, folder):
    cases = folder / "cases.jsonl"
    cases.write_text('{"prompt": "What is 2+2? Answer briefly.", "expect": "4"}\n')
    server = start(plumb, model, "--verify-file", str(cases))
    server.stop()
    cases.write_text('{"prompt": "What is 2+2? Answer briefly.", "expect": "4"}\n'
                     '{"prompt": "What is 2+3? Answer briefly.", "expect": "seventeen"}\n')
    code, text = fails(plumb, model, "--verify-file", str(cases))
    assert code == 3 and "verification failed: text" in text and "cases.jsonl line 2" in text, text
    cases.write_text('{"prompt": 3}\n')
    code, text = fails(plumb, model, "--verify-file", str(cases))
    assert code == 1 and "cases.jsonl line 1" in text, text


def golden_file(plumb, model, folder):
    copy = folder / "model"
    copy.mkdir()
    for name in os.listdir(model):
        (copy / name).symlink_to(pathlib.Path(model).resolve() / name)
    made = subprocess.run([plumb, "golden", "make", str(copy)], capture_output=True, text=True, timeout=300, check=False)
    assert made.returncode == 0, made.stderr
    golden = json.loads((copy / "plumb-golden.json").read_text())
    assert max(len(prompt["ids"]) for prompt in golden["prompts"]) > 64, "one prompt is longer than index_topk"
    for kv in ("bf16", "fp8"):
        server = start(plumb, copy, "--kv", kv)
        checks = {c["name"]: c for c in json.loads(server.request("GET", "/verification")[2])["checks"]}
        server.stop()
        assert checks["golden"]["verdict"] == "passed" and checks["golden"]["figure"] > 0, checks["golden"]
    golden["prompts"][1]["positions"][0]["logits"][3] += 5
    (copy / "plumb-golden.json").write_text(json.dumps(golden))
    code, text = fails(plumb, copy)
    assert code == 3 and "verification failed: golden" in text, text
    golden["checkpoint"] = "0" * 16
    (copy / "plumb-golden.json").write_text(json.dumps(golden))
    code, text = fails(plumb, copy)
    assert code == 3 and "was made for checkpoint" in text and "plumb golden make" in text, text


def a_flag_with_nothing_to_act_on(plumb, model, _folder):
    code, text = fails(plumb, model, "--capture-dir", "off", "--capture-prompts")
    assert code == 2 and "--capture-prompts" in text, text


def main():
    plumb, model = sys.argv[1:3]
    passed = failed = 0
    for test in (quick_is_the_default, off_is_said_everywhere, prompts_with_known_answers, golden_file,
                 a_flag_with_nothing_to_act_on):
        with tempfile.TemporaryDirectory() as folder:
            try:
                test(plumb, model, pathlib.Path(folder))
                passed += 1
            except (AssertionError, RuntimeError, KeyError, OSError, ValueError) as error:
                failed += 1
                print(f"FAILED {test.__name__}: {type(error).__name__} {error}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
