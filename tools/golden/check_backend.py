#!/usr/bin/env python3
"""Holds `plumb logits` of one backend against the goldens in this tree; needs numpy.

usage: tools/golden/check_backend.py BINARY [option of plumb logits ...]
e.g.   tools/golden/check_backend.py build/release/plumb --backend cuda --kv f32 --index-keys f32
Prints one line a golden: largest logit error over the largest logit, index sets and experts that differ. Ends with exit
code 1 when an error exceeds 1e-4 or a set differs: what float32 arithmetic with f32 caches must keep.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import safetensors_numpy  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 1e-4


def run(binary, model, ids, options, taps):
    with tempfile.TemporaryDirectory() as folder:
        ids_file, out = f"{folder}/ids.json", f"{folder}/out.safetensors"
        pathlib.Path(ids_file).write_text(json.dumps([int(i) for i in ids]), encoding="utf-8")
        command = [binary, "logits", str(model), "--ids", ids_file, "--out", out, *options]
        if taps:
            command += ["--taps", taps]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
        return {name: array for name, (_, array) in safetensors_numpy.read(out).items()}


def sets_differ(mine, golden, rows):
    """Rows whose chosen positions differ; the golden fills short rows with future positions."""
    bad = 0
    for row in range(rows):
        want = {int(i) for i in golden[row] if i <= row}
        bad += want != {int(i) for i in mine[row] if i >= 0}
    return bad


def check_random(binary, folder, options):
    golden = {name: array for name, (_, array) in safetensors_numpy.read(folder / "golden.safetensors").items()}
    got = run(binary, folder, golden["input_ids"], options, "indexer.topk,router.experts")
    scale = np.abs(golden["logits"]).max()
    error = np.abs(got["logits"] - golden["logits"]).max() / scale
    rows = len(golden["input_ids"])
    sets = sum(sets_differ(got[n], golden[n], rows) for n in golden if n.endswith("indexer.topk"))
    experts = sum(int((np.sort(got[n]) != np.sort(golden[n])).any(axis=1).sum()) for n in golden if n.endswith("router.experts"))
    return error, f"{sets} index sets and {experts} expert choices differ", sets + experts


def check_prompts(binary, options):
    folder = ROOT / "tests/data/golden/tiny-glm-dsa"
    logits = safetensors_numpy.read(folder / "logits.nvfp4-dequant-float32.safetensors")
    for prompt in json.loads((folder / "prompts.json").read_text(encoding="utf-8")):
        want = logits[prompt["name"] + ".logits_last8"][1]
        got = run(binary, ROOT / "models/tiny-glm-dsa-nvfp4", prompt["ids"], options, "")["logits"][-8:]
        yield prompt["name"], np.abs(got - want).max() / np.abs(want).max(), f"{len(prompt['ids'])} tokens"


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    binary, options = sys.argv[1], sys.argv[2:]
    bad = 0
    for config in sorted((ROOT / "tests/data/golden/random").glob("*/config.json")):
        error, text, differing = check_random(binary, config.parent, options)
        bad += not error <= LIMIT or differing > 0
        print(f"random/{config.parent.name:18s} {error:9.2e}  {text}", flush=True)
    for name, error, text in check_prompts(binary, options):
        bad += not error <= LIMIT
        print(f"nvfp4 {name:21s} {error:9.2e}  {text}", flush=True)
    print("all within bounds" if bad == 0 else f"{bad} goldens out of bounds")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
