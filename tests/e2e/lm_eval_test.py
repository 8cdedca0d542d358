#!/usr/bin/env python3
"""lm-eval's own program runs two local tasks against /v1/completions; its figures against `plumb logits`.

usage: lm_eval_test.py PLUMB MODEL      (exit code 77 where the lm_eval package is not installed)
"""
import importlib.util
import json
import math
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

from server import run_tests

TASKS = pathlib.Path(__file__).resolve().parents[1] / "data" / "lm_eval"
PLUMB, MODEL = (str(pathlib.Path(argument).resolve()) for argument in sys.argv[1:3])
# A figure is a sum over the tokens of a continuation; the server computes them in steps of other sizes.
TOLERANCE = 1e-3


def evaluate(server, folder):
    """Its results, and for each task what it asked and got."""
    name = json.loads(server.request("GET", "/v1/models")[2])["data"][0]["id"]
    arguments = (f"model={name},base_url=http://127.0.0.1:{server.port}/v1/completions,tokenizer_backend=remote,num_concurrent=2,"
                 "max_retries=1,tokenized_requests=True,max_length=2048")
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": folder + "/cache"}
    ended = subprocess.run(
        [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", arguments, "--tasks",
         "plumb_choice,plumb_answer", "--include_path", TASKS, "--output_path", folder + "/out", "--log_samples", "--batch_size", "2"],
        cwd=TASKS, env={**os.environ, **offline}, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    out = pathlib.Path(folder) / "out"
    (results,) = out.rglob("results_*.json")
    samples = {}
    for task in ("plumb_choice", "plumb_answer"):
        (file,) = out.rglob(f"samples_{task}_*.jsonl")
        samples[task] = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return json.loads(results.read_text(encoding="utf-8"))["results"], samples


def tokens(server, text):
    return json.loads(server.request("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})[2])["tokens"]


def log_probabilities(ids, folder):
    """A function of position and token, from the logits that another command writes."""
    ids_file, out = pathlib.Path(folder) / "ids.json", pathlib.Path(folder) / "logits.safetensors"
    ids_file.write_text(json.dumps(ids), encoding="utf-8")
    subprocess.run([PLUMB, "logits", MODEL, "--ids", ids_file, "--out", out], check=True, capture_output=True, timeout=300)
    data = out.read_bytes()
    head = 8 + struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8:head])["logits"]
    columns, begin = entry["shape"][1], head + entry["data_offsets"][0]

    def row(position):
        return struct.unpack_from(f"<{columns}f", data, begin + 4 * columns * position)

    def of(position, token):
        values = row(position - 1)
        top = max(values)
        return values[token] - top - math.log(math.fsum(math.exp(v - top) for v in values)), values[token] == top
    return of, lambda position: max(range(columns), key=row(position - 1).__getitem__)


def direct_score(server, context, continuation, folder):
    head, ids = tokens(server, context), tokens(server, context + continuation)
    assert ids[:len(head)] == head, "the continuation begins with its own token"
    of, _ = log_probabilities(ids, folder)
    figures = [of(position, ids[position]) for position in range(len(head), len(ids))]
    return math.fsum(value for value, _ in figures), all(best for _, best in figures)


def direct_answer(server, context, folder):
    """Greedy, token by token, until the next turn."""
    ids, text = tokens(server, context), []
    while len(text) < 24:
        _, best = log_probabilities(ids, folder)
        ids.append(best(len(ids)))
        text.append(ids[-1])
        written = json.loads(server.request("POST", "/detokenize", {"tokens": text})[2])["prompt"]
        if "<|user|>" in written:
            return written.split("<|user|>")[0]
    return written


def figures_equal_a_direct_computation(server):
    with tempfile.TemporaryDirectory() as folder:
        results, samples = evaluate(server, folder)
        worst, right = 0.0, 0
        for sample in samples["plumb_choice"]:
            scores = []
            for number in range(len(sample["doc"]["choices"])):
                asked, got = sample["arguments"][f"gen_args_{number}"], sample["filtered_resps"][number]
                value, greedy = direct_score(server, asked["arg_0"], asked["arg_1"], folder)
                worst = max(worst, abs(float(got[0]) - value))
                assert str(got[1]) == str(greedy), (asked, got, value, greedy)
                scores.append(value)
            right += scores.index(max(scores)) == sample["doc"]["label"]
        assert worst < TOLERANCE, worst
        assert math.isclose(results["plumb_choice"]["acc,none"], right / len(samples["plumb_choice"])), (results, right)
        same = 0
        for sample in samples["plumb_answer"]:
            want = direct_answer(server, sample["doc"]["context"], folder)
            assert sample["filtered_resps"] == [want], (sample["filtered_resps"], want)
            same += want == sample["doc"]["answer"]
        assert math.isclose(results["plumb_answer"]["exact_match,none"], same / len(samples["plumb_answer"])), (results, same)
    print(f"lm-eval: accuracy {right}/{len(samples['plumb_choice'])}, exact match {same}/{len(samples['plumb_answer'])}; "
          f"log-likelihoods within {worst:.1e} of plumb logits")


if __name__ == "__main__":
    if importlib.util.find_spec("lm_eval") is None:
        print("the package lm_eval is not installed (tools/requirements-clients.txt)")
        sys.exit(77)
    sys.exit(run_tests(PLUMB, MODEL, [figures_equal_a_direct_computation], "--log-level", "warn"))
