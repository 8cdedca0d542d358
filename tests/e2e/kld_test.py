"""plumb kld of the NVFP4 checkpoint against the BF16 one, compared with a float64 computation from transformers' logits.

usage: kld_test.py PLUMB SOURCE_ROOT
Skipped without PLUMB_TEST_DATA, which has the BF16 checkpoint and its logits.
"""
import array
import json
import math
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

TOLERANCE = 1e-6
LAST = 8  # positions whose logits are recorded


def logits(path, prompt):
    """Rows of PROMPT.logits_last8 of a safetensors file."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8:8 + size])[prompt + ".logits_last8"]
    assert entry["dtype"] == "F32"
    begin, end = (8 + size + offset for offset in entry["data_offsets"])
    values = array.array("f", data[begin:end])
    rows, columns = entry["shape"][-2:]
    return [values[r * columns:(r + 1) * columns] for r in range(rows)]


def divergence(a, b):
    def log_softmax(row):
        top = max(row)
        total = top + math.log(math.fsum(math.exp(x - top) for x in row))
        return [x - total for x in row]
    return math.fsum(math.exp(p) * (p - q) for p, q in zip(log_softmax(a), log_softmax(b)))


def main():
    plumb, root = sys.argv[1], pathlib.Path(sys.argv[2])
    extra = pathlib.Path(os.environ.get("PLUMB_TEST_DATA") or "/nonexistent")
    bf16 = extra / "models/tiny-glm-dsa"
    golden = root / "tests/data/golden/tiny-glm-dsa"
    golden_bf16 = extra / "golden/tiny-glm-dsa/logits.float32.safetensors"
    if not bf16.is_dir() or not golden_bf16.is_file():
        print("models/tiny-glm-dsa is not there: PLUMB_TEST_DATA names no folder that has it")
        return 77
    compared, worst = 0, 0.0
    for prompt in json.loads((golden / "prompts.json").read_text()):
        name, ids = prompt["name"], prompt["ids"]
        if len(ids) > 300:  # minutes of reference arithmetic
            continue
        want = [divergence(a, b) for a, b in zip(logits(golden / "logits.nvfp4-dequant-float32.safetensors", name),
                                                 logits(golden_bf16, name))]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(ids, file)
            file.flush()
            out = subprocess.run([plumb, "kld", root / "models/tiny-glm-dsa-nvfp4", bf16, "--ids", file.name, "--json",
                                  "--backend", "reference"], capture_output=True, text=True, timeout=600, check=True)
        got = json.loads(out.stdout)
        assert got["positions"] == len(ids) and abs(got["mean"] - sum(got["kl"]) / len(ids)) < 1e-12
        assert max(want) > 1e-6, "checkpoints that differ must diverge"
        for g, w in zip(got["kl"][-LAST:], want):
            worst = max(worst, abs(g - w))
            assert abs(g - w) <= TOLERANCE, f"{name}: {g} in place of {w}"
            compared += 1
        print(f"{name}: KL {['%.3g' % k for k in want]}")
    print(f"{compared} positions compared, largest difference {worst:.2g}")
    print(f"{compared} passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
