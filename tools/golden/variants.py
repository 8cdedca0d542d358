"""Goldens of variants of the small models, each made to show one mistake that no other golden shows.

A variant is a recipe (tests/data/golden/variants/recipes.json): a base checkpoint, keys of config.json to replace, and
edits of tensors. The C++ tests apply the same recipe to the same base. Run with numpy:
    python3 tools/golden/variants.py          # rewrites tests/data/golden/variants/goldens.safetensors
    python3 tools/golden/variants.py --check  # the witness against goldens that transformers computed
"""
import json
import pathlib
import sys

try:
    import numpy as np
except ImportError:
    print("numpy is not installed")
    sys.exit(77)

import safetensors_numpy
from model_numpy import Model

ROOT = pathlib.Path(__file__).resolve().parents[2]
VARIANTS = ROOT / "tests/data/golden/variants"


def load(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        if path.name != "golden.safetensors":
            tensors.update(safetensors_numpy.read(path))
    return json.loads((folder / "config.json").read_text()), tensors


def to_bf16(values):
    """Exact: edits keep values representable."""
    codes = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    assert np.array_equal((codes.astype(np.uint32) << 16).view(np.float32), values.astype(np.float32))
    return codes


def edit(tensors, step):
    if step["op"] == "copy_layer":
        old, new = f"model.layers.{step['from']}.", f"model.layers.{step['to']}."
        for name in [n for n in tensors if n.startswith(old)]:
            tensors[new + name[len(old):]] = tensors[name]
        return
    names = [n for n in tensors if n.endswith(tuple(step["suffixes"]))]
    assert names, step
    for name in names:
        kind, array = tensors[name]
        array = array.copy()
        if step["op"] == "multiply":
            if kind == "BF16":
                array = to_bf16((array.astype(np.uint32) << 16).view(np.float32) * np.float32(step["value"]))
            else:
                array = (array * np.float32(step["value"])).astype(np.float32)
        elif step["op"] == "add":
            array = (array + np.float32(step["value"])).astype(np.float32)
        elif step["op"] == "set_bytes":
            flat = array.reshape(-1).view(np.uint8)
            flat[step.get("first", 0)::step["every"]] = step["value"]
        tensors[name] = (kind, array)


def build(recipe):
    config, tensors = load(ROOT / recipe["base"])
    config.update(recipe.get("config", {}))
    config = {key: value for key, value in config.items() if value is not None}
    for step in recipe.get("edits", []):
        edit(tensors, step)
    return config, tensors


def ids_of(recipe):
    source = recipe["ids"]
    if "golden" in source:
        return safetensors_numpy.read(ROOT / source["golden"])["input_ids"][1].tolist()
    prompts = json.loads((ROOT / "tests/data/golden/tiny-glm-dsa/prompts.json").read_text())
    return next(p["ids"] for p in prompts if p["name"] == source["prompt"])[:source.get("first", 1 << 30)]


def compute(recipe):
    config, tensors = build(recipe)
    model = Model(config, tensors, recipe.get("latent_eps", 1e-6), recipe.get("fp8_latent", False),
                  recipe.get("fp8_index", False))
    ids = ids_of(recipe)
    out = {}
    if recipe.get("greedy"):
        prompt = len(ids)
        for _ in range(recipe["greedy"]):
            logits = model.forward(ids)
            ids.append(int(np.argmax(logits[-1])))
        out["greedy_ids"] = np.array(ids[prompt:], np.int32)
        top = np.sort(logits[prompt - 1:], axis=1)
        out["margins"] = (top[:, -1] - top[:, -2]).astype(np.float32)
        out["logits"] = logits[-8:].astype(np.float32)
    else:
        out["logits"] = model.forward(ids)[-recipe.get("rows", len(ids)):].astype(np.float32)
    return out


def check():
    """(what, largest error, its bound) of the witness against transformers, and of the recorded goldens against the witness."""
    for name in ["base", "indexer_shared", "n_group", "no_norm_topk", "attention_bias", "tied", "mlp_types"]:
        folder = ROOT / "tests/data/golden/random" / name
        golden = safetensors_numpy.read(folder / "golden.safetensors")
        config, tensors = load(folder)
        got = Model(config, tensors).forward(golden["input_ids"][1])
        yield f"random/{name}", np.abs(got - golden["logits"][1]).max(), 1e-4
    folder = ROOT / "models/tiny-glm-dsa-nvfp4"
    config, tensors = load(folder)
    golden = safetensors_numpy.read(ROOT / "tests/data/golden/tiny-glm-dsa/logits.nvfp4-dequant-float32.safetensors")
    prompts = json.loads((ROOT / "tests/data/golden/tiny-glm-dsa/prompts.json").read_text())
    for prompt in [p for p in prompts if len(p["ids"]) < 250]:
        got = Model(config, tensors).forward(prompt["ids"])[-8:]
        yield f"tiny nvfp4 {prompt['name']}", np.abs(got - golden[prompt["name"] + ".logits_last8"][1]).max(), 1e-4
    recorded = safetensors_numpy.read(VARIANTS / "goldens.safetensors")
    for recipe in json.loads((VARIANTS / "recipes.json").read_text()):
        if not recipe.get("greedy"):
            error = np.abs(compute(recipe)["logits"] - recorded[recipe["name"] + ".logits"][1]).max()
            yield recipe["name"], error, recipe.get("bound", 1e-4)


def main():
    if "--check" in sys.argv:
        counts = [0, 0]
        for what, error, bound in check():
            failed = not error <= bound
            counts[failed] += 1
            print(f"{what}: {error:.2g}{' FAILED' if failed else ''}", flush=True)
        print(f"{counts[0]} passed, {counts[1]} failed")
        return 1 if counts[1] else 0
    arrays = {}
    for recipe in json.loads((VARIANTS / "recipes.json").read_text()):
        for key, array in compute(recipe).items():
            arrays[f"{recipe['name']}.{key}"] = array
        print(recipe["name"])
    safetensors_numpy.write(VARIANTS / "goldens.safetensors", arrays,
                            {"made_by": "tools/golden/variants.py", "numpy": np.__version__})
    return 0


if __name__ == "__main__":
    sys.exit(main())
