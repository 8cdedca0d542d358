"""Weights of a GLM-5-class model on each device of a tensor-parallel group, counted without plumb: every tensor by name
and shape, its bytes by format, its share by the split rules; then compared with what `plumb plan` says.

usage: weights.py PLUMB [CONFIG.json ...]      prints a table; exit code 1 when a figure is off by 1 % or more
"""
import json
import math
import pathlib
import re
import subprocess
import sys
import time

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "configs"
MACHINES = [("rtx-pro-6000", 8), ("h200", 8), ("h200", 4), ("h200", 1)]
FORMATS = ["bf16", "fp8", "fp8-ue8m0", "nvfp4"]
WIDE = {"bf16": 2.0, "f32": 4.0}


def encoded(fmt, n, k):
    """Bytes of an [n, k] matrix with its scales."""
    if fmt == "fp8":
        return n * k + 4 * math.ceil(n / 128) * math.ceil(k / 128)
    if fmt == "fp8-ue8m0":
        return n * k + math.ceil(n / 128) * math.ceil(k / 128)
    if fmt == "nvfp4":
        return n * k / 2 + n * k / 16 + 4
    return n * k * WIDE[fmt]


def tensors(c):
    """(kind, n, k, split, count): split 'n' divides the outputs, 'k' the inputs, '' nothing."""
    h, heads = c["hidden_size"], c["num_attention_heads"]
    nope, rope, v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    q, kv = c["q_lora_rank"], c["kv_lora_rank"]
    layers = c["num_hidden_layers"]
    mtp = c["num_nextn_predict_layers"]
    dense = c["first_k_dense_replace"]
    full = sum(t == "full" for t in c.get("indexer_types", ["full"] * layers))
    yield "plain", c["vocab_size"], h, "n", 2  # embedding and head
    yield "norm", h, 1, "", 2 * (layers + mtp) + 1 + 3 * mtp
    yield "plain", h, 2 * h, "", mtp  # eh_proj
    for kind, count in (("attention", layers), ("mtp attention", mtp)):
        yield kind, q, h, "", count
        yield kind, kv + rope, h, "", count
        yield kind, heads * (nope + rope), q, "n", count
        yield kind, heads * (nope + v), kv, "n", count
        yield kind, h, heads * v, "k", count
        yield "norm", q, 1, "", count
        yield "norm", kv, 1, "", count
    for kind, count in (("indexer", full), ("mtp indexer", mtp)):
        ih, idim = c["index_n_heads"], c["index_head_dim"]
        yield kind, ih * idim, q, "", count
        yield kind, idim, h, "", count
        yield "plain", ih, h, "", count
        yield "norm", idim, 1, "", 2 * count
    yield "mlp", c["intermediate_size"], h, "n", 2 * dense
    yield "mlp", h, c["intermediate_size"], "k", dense
    sparse, inter = layers - dense, c["moe_intermediate_size"]
    for kind, count in (("experts", sparse), ("mtp experts", mtp)):
        e = c["n_routed_experts"]
        yield kind, inter, h, "n", 2 * count * e
        yield kind, h, inter, "k", count * e
        shared = kind.replace("experts", "shared")
        yield shared, inter * c["n_shared_experts"], h, "n", 2 * count
        yield shared, h, inter * c["n_shared_experts"], "k", count
        yield "plain", e, h, "", count  # router
        yield "bias", e, 1, "", count


def format_of(kind, fmt):
    if kind == "bias":
        return "f32"
    if kind in ("plain", "norm"):
        return "bf16"
    if fmt == "nvfp4":  # as published: routed experts of the trunk alone
        return "nvfp4" if kind == "experts" else "bf16"
    return fmt  # the published FP8 files quantise every other linear, the next-n layer's too


def per_device(config, fmt, ranks):
    total = 0
    for kind, n, k, split, count in tensors(config):
        n_rank = math.ceil(n / ranks) if split == "n" else n
        k_rank = math.ceil(k / ranks) if split == "k" else k
        total += count * encoded(format_of(kind, fmt), n_rank, k_rank)
    return total


def planned(plumb, config, fmt, device, ranks):
    """(weights per device, longest context, tokens of cache, seconds, first line of a refusal)."""
    begin = time.monotonic()
    # The next-n layer counts: it is in the checkpoint, and drafting is how these models are served.
    ended = subprocess.run([plumb, "plan", str(config), "--weights", fmt, "--device", device, "--tp", str(ranks),
                            "--draft-tokens", "3", "--json"], capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begin
    if ended.returncode != 0:
        assert ended.returncode == 2, ended.stderr
        first = ended.stderr.splitlines()[0].removeprefix("error: ")
        weights = re.search(r"weights needs ([0-9.]+) GiB", first)
        return float(weights[1]) * 2**30 if weights else None, 0, 0, seconds, first
    plan = json.loads(ended.stdout)
    weights = sum(m["bytes"] for m in plan["memory"] if m["category"].startswith(("weights", "norms")))
    return weights, plan["fit"]["context"], plan["fit"]["cache_tokens_most"], seconds, ""


def main():
    plumb = sys.argv[1]
    configs = [pathlib.Path(p) for p in sys.argv[2:]] or sorted(CONFIGS.glob("glm-5*.json"))
    compared = wrong = 0
    slowest = 0.0
    print("| model | format | devices | counted GB a device | planned GB a device | off | longest context | cache tokens |")
    print("|---|---|---|---|---|---|---|---|")
    for config in configs:
        parsed = json.loads(config.read_text())
        for fmt in FORMATS:
            for device, ranks in MACHINES:
                counted = per_device(parsed, fmt, ranks)
                weights, context, tokens, seconds, refusal = planned(plumb, config, fmt, device, ranks)
                slowest = max(slowest, seconds)
                row = f"| {config.stem} | {fmt} | {ranks} x {device} | {counted / 1e9:.2f} |"
                if weights is None:
                    print(row, f"refused: {refusal} | | | |")
                    continue
                off = weights / counted - 1
                compared += 1
                wrong += abs(off) >= 0.01
                fits = f"{context} | {tokens}" if not refusal else "does not fit |"
                print(row, f"{weights / 1e9:.2f} | {off * 100:+.3f} % | {fits} |")
    print(f"\nslowest plan {slowest:.2f} s; off by 1 % or more: failed\n{compared - wrong} passed, {wrong} failed")
    return 1 if wrong or compared == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
