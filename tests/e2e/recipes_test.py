"""Command lines of public GLM-5 recipes for other servers: every flag is honoured, or refused by name with what to use
instead; what is left of the line then works.

usage: recipes_test.py PLUMB MODEL
"""
import json
import os
import shlex
import subprocess
import sys

import server as serving

# (server, flags) as published for 8 x RTX PRO 6000, 8 x B200 and 8 x H200; the model's name is MODEL.
RECIPES = {
    "sglang nvfp4 mtp rtx-pro-6000": """--model-path MODEL --served-model-name glm-5 --reasoning-parser glm45
        --tool-call-parser glm47 --tensor-parallel-size 8 --quantization modelopt_fp4 --kv-cache-dtype bf16
        --trust-remote-code --cuda-graph-max-bs 32 --max-running-requests 64 --mem-fraction-static 0.85
        --chunked-prefill-size 16384 --host 0.0.0.0 --port 5000 --disable-custom-all-reduce
        --enable-flashinfer-allreduce-fusion --enable-metrics --sleep-on-idle --attention-backend flashinfer
        --fp4-gemm-backend b12x --moe-runner-backend b12x --model-loader-extra-config
        '{"enable_multithread_load": true, "num_threads": 16}' --speculative-algorithm NEXTN --speculative-num-steps 4
        --speculative-num-draft-tokens 6 --speculative-eagle-topk 1
        --json-model-override-args '{"index_topk_pattern": "FFSF"}'""",
    "sglang nvfp4 mtp rtx-pro-6000, profile": """--model MODEL --served-model-name glm-5 --reasoning-parser glm45
        --tool-call-parser glm47 --tensor-parallel-size 8 --quantization modelopt_fp4 --kv-cache-dtype bf16
        --trust-remote-code --cuda-graph-max-bs 32 --max-running-requests 64 --mem-fraction-static 0.85
        --speculative-algo NEXTN --speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6
        --host 0.0.0.0 --port 5000 --disable-custom-all-reduce --enable-flashinfer-allreduce-fusion --enable-metrics
        --attention-backend flashinfer --fp4-gemm-backend b12x --moe-runner-backend b12x""",
    "sglang nvfp4 b200": """--model-path=MODEL --host=0.0.0.0 --port=8888 --trust-remote-code --tensor-parallel-size=8
        --data-parallel-size 1 --expert-parallel-size 1 --enable-dp-lm-head --disable-radix-cache
        --quantization modelopt_fp4 --kv-cache-dtype fp8_e4m3 --nsa-decode-backend trtllm --nsa-prefill-backend trtllm
        --moe-runner-backend flashinfer_trtllm --enable-flashinfer-allreduce-fusion --cuda-graph-max-bs 64
        --max-prefill-tokens 32768 --chunked-prefill-size 32768 --mem-fraction-static 0.9 --stream-interval 30
        --scheduler-recv-interval 10 --tokenizer-worker-num 6 --tokenizer-path MODEL""",
    "sglang fp8 b200": """--model-path=MODEL --host=0.0.0.0 --port=8888 --trust-remote-code --tensor-parallel-size=8
        --kv-cache-dtype fp8_e4m3 --quantization fp8 --nsa-decode-backend trtllm --nsa-prefill-backend trtllm
        --moe-runner-backend flashinfer_trtllm""",
    "sglang nvfp4 prefill node": """--model-path MODEL --trust-remote-code --enable-cache-report --tool-call-parser glm
        --reasoning-parser glm45 --mem-fraction-static 0.78 --max-running-requests 512 --tp 4 --kv-cache-dtype fp8_e4m3
        --enable-metrics --log-level-http info --log-level info --max-prefill-tokens 73728 --attention-backend nsa
        --nsa-prefill-backend trtllm --nsa-decode-backend trtllm --json-model-override-args '{"index_topk_freq": 4}'
        --moe-runner-backend flashinfer_trtllm --quantization modelopt_fp4 --chunked-prefill-size 16384
        --max-total-tokens 196608""",
    "vllm fp8 h200": """MODEL --tensor-parallel-size 8 --tool-call-parser glm47 --reasoning-parser glm45
        --enable-auto-tool-choice --chat-template-content-format=string --served-model-name glm-5.1-fp8""",
    "vllm fp8 h200 mtp": """MODEL --tensor-parallel-size 8 --speculative-config.method mtp
        --speculative-config.num_speculative_tokens 3 --tool-call-parser glm47 --reasoning-parser glm45
        --enable-auto-tool-choice --served-model-name glm-5-fp8""",
    "vllm nvfp4": """MODEL --tensor-parallel-size 8 --kv-cache-dtype fp8 --max-model-len 32768 --max-num-seqs 16
        --gpu-memory-utilization 0.9 --enable-expert-parallel --enforce-eager --trust-remote-code
        --speculative-config '{"method": "mtp", "num_speculative_tokens": 1}'""",
}


def run(plumb, *arguments):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PLUMB_")}
    return subprocess.run([plumb, *arguments], env=clean, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=120)


def check_recipe(plumb, model, recipe):
    arguments = [a.replace("MODEL", model) for a in shlex.split(recipe)]
    ended = run(plumb, "serve", *arguments)
    assert ended.returncode == 2, f"exit code {ended.returncode}: {ended.stderr}"
    refused, left = ended.stderr.split("works instead: ")
    # Where every flag is understood, only heads for so many ranks are missing here.
    whole = "num_attention_heads 4 cannot be divided by 8" in refused
    left = ["plumb", "serve", *arguments] if whole else shlex.split(left.splitlines()[0])
    assert left[:2] == ["plumb", "serve"], left
    for flag in (a.split("=")[0] for a in arguments if a.startswith("--")):
        known = flag in refused or flag in (a.split("=")[0] for a in left) or flag in HONOURED
        assert known, f"{flag} is neither refused nor kept:\n{ended.stderr}"
    # What is left is a plan, apart from what only a server or several GPUs can do.
    ours = iter(left[2:])
    kept = []
    for argument in ours:
        if argument.split("=")[0] in ("--host", "--port", "--served-model-name", "--log-level", "--tp", "--quantization",
                                      "--tensor-parallel-size",
                                      "--max-batch-tokens", "--chunk-tokens", "--context"):
            if "=" not in argument:
                next(ours)
            continue
        kept.append(argument)
    planned = run(plumb, "plan", *kept, "--json", "--max-batch-tokens", "4096")
    assert planned.returncode == 0, f"{kept}: {planned.stderr}"
    return json.loads(planned.stdout)


# Flags that become ours under another name, or ask for what is so anyway.
HONOURED = {"--model", "--model-path", "--tensor-parallel-size", "--max-running-requests", "--max-num-seqs",
            "--mem-fraction-static", "--gpu-memory-utilization", "--chunked-prefill-size", "--max-prefill-tokens",
            "--max-model-len", "--kv-cache-dtype", "--disable-radix-cache", "--data-parallel-size",
            "--expert-parallel-size", "--enable-expert-parallel", "--enable-metrics", "--sleep-on-idle", "--enable-cache-report",
            "--reasoning-parser", "--tool-call-parser", "--enable-auto-tool-choice", "--speculative-algorithm", "--speculative-algo", "--speculative-num-steps",
            "--speculative-num-draft-tokens", "--speculative-eagle-topk", "--speculative-config",
            "--speculative-config.method", "--speculative-config.num_speculative_tokens"}


def test_recipes(plumb, model):
    for name, recipe in RECIPES.items():
        print(name)
        if "--speculative-num-steps 5" in recipe or "--speculative-num-draft-tokens 6" in recipe:
            recipe = recipe.replace("--speculative-num-steps 5", "--speculative-num-steps 3") \
                           .replace("--speculative-num-steps 4", "--speculative-num-steps 3") \
                           .replace("--speculative-num-draft-tokens 6", "--speculative-num-draft-tokens 4")
        check_recipe(plumb, model, recipe)


def test_more_drafts_than_there_can_be(plumb, model):
    ended = run(plumb, "serve", model, "--speculative-algorithm", "NEXTN", "--speculative-num-steps", "5",
                "--speculative-num-draft-tokens", "6")
    assert ended.returncode == 1 and "--draft-tokens" in ended.stderr, ended.stderr
    ended = run(plumb, "serve", model, "--speculative-num-steps", "2", "--speculative-num-draft-tokens", "6")
    assert ended.returncode == 2 and "verifies one token more" in ended.stderr, ended.stderr


def flags_of(plumb, *arguments):
    ended = run(plumb, "plan", *arguments, "--json")
    assert ended.returncode == 0, ended.stderr
    return {flag["name"]: flag for flag in json.loads(ended.stdout)["flags"]}


def test_mapped_flags_are_shown_with_their_source(plumb, model):
    flags = flags_of(plumb, model, "--max-model-len", "2048", "--max-num-seqs=8", "--gpu-memory-utilization", "0.5",
                     "--kv-cache-dtype", "fp8_e4m3", "--enable-prefix-caching", "--dp", "1", "--quantization",
                     "modelopt_fp4", "--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}',
                     "--moe-runner-backend", "auto", "--fp8-gemm-backend", "auto")
    want = {"context": ("2048", "2048", "flag --max-model-len"), "max_sequences": ("8", "8", "flag --max-num-seqs max_running"),
            "memory_fraction": ("0.5", "0.5", "flag --gpu-memory-utilization"),
            "kv": ("fp8", "fp8_tile128", "flag --kv-cache-dtype"), "draft_tokens": ("2", "2", "flag --speculative-config"),
            "mtp": ("auto", "on", "flag --speculative-config draft_tokens 2"),
            "quantization": ("modelopt_fp4", "modelopt_fp4", "flag")}
    for name, (asked, effective, source) in want.items():
        got = (flags[name]["asked"], flags[name]["effective"], flags[name]["source"])
        assert got == (asked, effective, source), f"{name}: {got}"
    assert flags["enable-prefix-caching"]["effective"] == "on" and flags["moe-runner-backend"]["effective"] == "auto"


def test_own_kernel_names_and_wrong_formats(plumb, model):
    reference = flags_of(plumb, model, "--backend", "reference", "--moe-runner-backend", "moe.reference")
    assert reference["kernel moe"]["effective"] == "moe.reference", reference
    for arguments, said in [(["--quantization", "fp8"], "the checkpoint is 'modelopt_fp4'"),
                            (["--moe-runner-backend", "triton"], "--kernel moe=NAME"),
                            (["--kv-cache-dtype", "fp8_e5m2"], "known here: auto, f32, bf16"),
                            (["--tp", "8"], "num_attention_heads 4 cannot be divided by 8"),
                            (["--chunked-prefill-size", "8192"], "--max-batch-tokens 8256"),
                            (["--enable-dp-attention"], "--tp N")]:
        ended = run(plumb, "plan", model, *arguments)
        assert ended.returncode == 2 and said in ended.stderr, f"{arguments}: {ended.returncode} {ended.stderr}"


if __name__ == "__main__":
    sys.exit(serving.run_functions(globals(), sys.argv[1], sys.argv[2]))
