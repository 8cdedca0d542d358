"""`plumb bench serve` against the real server, and against one that isn't there.

usage: bench_serve_test.py PLUMB MODEL
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import server as serving


def bench(server, *arguments, expect=0):
    ended = subprocess.run([sys.argv[1], "bench", "serve", "--url", f"http://127.0.0.1:{server.port}/v1", *arguments],
                           capture_output=True, text=True, timeout=120)
    assert ended.returncode == expect, f"exit code {ended.returncode}: {ended.stdout}{ended.stderr}"
    return ended


def figures(server, *arguments):
    return json.loads(bench(server, "--json", *arguments).stdout)


def closed_loop_counts_what_the_server_counts(server):
    before = server.metric("plumb_generated_tokens_total")
    out = figures(server, "--requests", "12", "--concurrency", "4", "--output-tokens", "9", "--warmup", "0")
    assert (out["completed"], out["failed"], out["total_output_tokens"]) == (12, 0, 108), out
    assert server.metric("plumb_generated_tokens_total") - before == 108
    assert out["tokens_counted_by_server"] and out["total_input_tokens"] > 12, out
    assert out["plan_fingerprint"] == json.loads(server.request("GET", "/model_info")[2])["plan_fingerprint"]
    for name in ("ttft", "tpot", "itl", "e2el"):
        assert 0 <= out[f"p50_{name}_ms"] <= out[f"p90_{name}_ms"] <= out[f"p99_{name}_ms"], (name, out)
        assert out[f"mean_{name}_ms"] > 0
    assert out["mean_ttft_ms"] < out["mean_e2el_ms"]
    slow = figures(server, "--requests", "3", "--concurrency", "1", "--output-tokens", "400")
    assert slow["mean_ttft_ms"] < slow["mean_e2el_ms"] / 2, "tokens are timed as they come"
    assert abs(out["output_throughput"] * out["duration"] - 108) < 1e-6


def the_same_seed_sends_the_same(server):
    runs = [figures(server, "--requests", "5", "--seed", seed)["total_input_tokens"] for seed in ("7", "7", "8")]
    assert runs[0] == runs[1], runs


def open_loop_keeps_its_rate(server):
    out = figures(server, "--requests", "20", "--rate", "40", "--concurrency", "0", "--output-tokens", "2")
    assert out["completed"] == 20 and out["request_rate"] == 40, out
    assert out["duration"] > 0.15, "twenty at forty a second take about half a second"


def shared_prefixes_are_found(server):
    before = server.metric("plumb_cached_tokens_total")
    out = figures(server, "--workload", "shared-prefix", "--prefix-tokens", "200", "--input-tokens", "8", "--requests", "6",
                  "--concurrency", "1")
    assert out["completed"] == 6
    assert server.metric("plumb_cached_tokens_total") - before > 5 * 100


def chat_and_whole_answers(server):
    out = figures(server, "--endpoint", "chat", "--requests", "4", "--output-tokens", "5")
    assert out["completed"] == 4 and out["total_output_tokens"] == 20, out
    out = figures(server, "--no-stream", "--requests", "4", "--output-tokens", "5")
    assert out["total_output_tokens"] == 20 and "mean_ttft_ms" not in out and out["mean_e2el_ms"] > 0, out
    text = bench(server, "--requests", "3").stdout
    for name in ("Output token throughput", "TTFT", "TPOT", "ITL", "E2E", "p99"):
        assert name in text, text


def traces_are_replayed_at_their_times(server):
    with tempfile.TemporaryDirectory() as folder:
        trace = pathlib.Path(folder) / "trace.jsonl"
        trace.write_text('{"timestamp": 1000, "input_length": 20, "output_length": 3}\n'
                         '{"timestamp": 1300, "prompt": "2+2 is", "max_tokens": 4}\n\n'
                         '{"timestamp": 1600, "messages": [{"role": "user", "content": "hi"}], "output_length": 5}\n')
        out = figures(server, "--workload", "trace", "--trace", str(trace), "--endpoint", "chat")
        assert out["completed"] == 3 and out["total_output_tokens"] == 12 and out["duration"] >= 0.6, out
        trace.write_text('{"input_length": 20}\n{"other": 1}\n')
        assert "trace.jsonl:2" in bench(server, "--workload", "trace", "--trace", str(trace), expect=1).stderr


def failures_are_named(server):
    ended = bench(server, "--model", "nobody", "--warmup", "0", "--requests", "3", expect=1)
    assert "3 requests failed" in ended.stderr and "404" in ended.stderr, ended.stderr
    assert "warm-up" in bench(server, "--model", "nobody", expect=1).stderr
    nowhere = subprocess.run([sys.argv[1], "bench", "serve", "--url", f"http://127.0.0.1:{serving.free_port()}"],
                             capture_output=True, text=True)
    assert nowhere.returncode == 1 and "cannot reach" in nowhere.stderr, nowhere.stderr
    for url in ("https://x", "127.0.0.1:80", "http://"):
        bad = subprocess.run([sys.argv[1], "bench", "serve", "--url", url], capture_output=True, text=True)
        assert bad.returncode == 1 and "--url" in bad.stderr, bad.stderr


TESTS = [closed_loop_counts_what_the_server_counts, the_same_seed_sends_the_same, open_loop_keeps_its_rate,
         shared_prefixes_are_found, chat_and_whole_answers, traces_are_replayed_at_their_times, failures_are_named]

if __name__ == "__main__":
    sys.exit(serving.run_tests(sys.argv[1], sys.argv[2], TESTS))
