#!/usr/bin/env python3
"""Time from exec to ready of a large model over several ranks, by a model whose every figure can be given.

usage: start_cost.py CONFIG.json [--bytes N] [--ranks N] [--read GB/s] [--copy GB/s] [--step ms] [--prompt tokens/s]
                     [--replay elements/s] [--threads N]

Loading reads every byte once and brings each rank its share; the slower of the two counts. Verification runs the steps
of engine/self_check.cpp, whose numbers are counted below, and the reference recomputes what engine/check_sample.cpp
chooses: on all threads, but the sums of magnitudes that the bounds are made of, half of its work, on one.
"""
import argparse
import json

# What each check sends through an engine: (decode steps, prompt tokens, times), with the prompts of index_topk apart.
QUICK = {"layer_replay": [(7, 24, 1)], "decode_vs_prefill": [(7, 24, 1), (0, 30, 2)],
         "long_context": [(7, "long", 1), (0, "long", 2)], "batch_buckets": [(11, 6, 4)],
         "cache_paths": [(7, 186, 5), (24, 189, 2), (27, 7, 1)], "speculation": [(23, 16, 2)],
         "sampling": [(15, 12, 3)]}
FULL = {"layer_replay": [(7, 96, 1)], "decode_vs_prefill": [(7, 80, 1), (0, 86, 2)],
        "long_context": [(7, "long", 1), (0, "long", 2)], "batch_buckets": [(11, 6, 10)],
        "cache_paths": [(7, 186, 7), (24, 189, 2), (213, 7, 1)], "speculation": [(63, 16, 8)],
        "sampling": [(15, 12, 3)]}


def attention_elements(c, own_indexer):
    heads, q, kv = c["num_attention_heads"], c["q_lora_rank"], c["kv_lora_rank"]
    nope, rope, v, h = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["hidden_size"]
    count = q * h + (kv + rope) * h + heads * (nope + rope) * q + heads * (nope + v) * kv + h * heads * v
    if own_indexer:
        count += c["index_n_heads"] * c["index_head_dim"] * q + c["index_head_dim"] * h + c["index_n_heads"] * h
    return count


def layer_elements(c, layer):
    """Of the weights that one row needs in a layer."""
    types = c.get("indexer_types")
    count = attention_elements(c, types is None or layer >= len(types) or types[layer] == "full")
    if layer < c["first_k_dense_replace"]:
        return count + 3 * c["intermediate_size"] * c["hidden_size"]
    experts = c["num_experts_per_tok"] + c["n_shared_experts"]
    return count + (3 * experts * c["moe_intermediate_size"] + c["n_routed_experts"]) * c["hidden_size"]


def replayed(c, full):
    layers = c["num_hidden_layers"]
    head = c["vocab_size"] * c["hidden_size"]
    if full:
        return head + sum(layer_elements(c, layer) for layer in range(layers + 1))
    kinds = {}
    types = c.get("indexer_types")
    for layer in range(layers):
        kinds.setdefault((layer >= c["first_k_dense_replace"], types is None or types[layer] == "full"), layer)
    return head + sum(layer_elements(c, layer) for layer in {0, layers - 1, layers, *kinds.values()})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("--bytes", type=float, default=465e9)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--read", type=float, default=7, help="GB/s of all files together")
    parser.add_argument("--copy", type=float, default=20, help="GB/s to each rank")
    parser.add_argument("--step", type=float, default=30, help="ms of a decode step")
    parser.add_argument("--prompt", type=float, default=4000, help="tokens/s of a prompt")
    parser.add_argument("--replay", type=float, default=120e6, help="weight elements/s that one thread judges")
    parser.add_argument("--threads", type=int, default=32)
    o = parser.parse_args()
    with open(o.config) as file:
        c = json.load(file)
    load = max(o.bytes / 1e9 / o.read, o.bytes / o.ranks / 1e9 / o.copy)
    print(f"loading {load:.0f} s")
    for name, checks, launches, rows in (("quick", QUICK, 3, 1), ("full", FULL, 6, 4)):
        total = 0.0
        for check, runs in checks.items():
            seconds = 0.0
            for steps, prompt, times in runs:
                tokens = c["index_topk"] + (24 if name == "quick" else 96) if prompt == "long" else prompt
                seconds += times * (steps * o.step / 1e3 + max(tokens / o.prompt, o.step / 1e3))
            if check == "layer_replay":
                # Of the first launch so many rows, of the others, decode steps, one.
                work = replayed(c, name == "full") * (rows + launches - 1) / o.replay
                seconds += work / 2 + work / 2 / o.threads
            total += seconds
            print(f"{name} {check}: {seconds:.1f} s")
        print(f"{name}: {total:.0f} s; from exec to ready {load + total:.0f} s")


if __name__ == "__main__":
    main()
