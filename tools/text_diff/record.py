#!/usr/bin/env python3
"""Writes the expected results in tests/data/text from Hugging Face's tokenizers and from Jinja2; versions go along.

    record.py            (needs the packages tokenizers and jinja2)
"""
import json
import pathlib

import jinja2
import tokenizers
from tokenizers import Tokenizer

import template_diff
import tokenizer_diff

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "data" / "text"

STRINGS = ["'Vea", "'VEa 'Re 'sS 'LLx", "\u2163000", "\u0966000", "1\u2163\u09662345", "\u0301's", "a\u0301's", "'\u017f", "it'\u017fa",
           "\u180e x\u180e", "\u00a0\u00a0x", "a\u0085\u0085b", " \u2028 b", "\u001c a", "<think>a</think>/nothink", "<|user|><|use|user|>",
           "[gMASK]<sop>\n\n x", "  <think>  ", "\U00013d71<tool", "\U0001e06b1", "aa aaa aaaa", "word words sword word", "norme\u0301 norm\u00e9",
           "\ufb01x fix", " <lstrip> <rstrip> <both> x", " sp ace sp ace ", "\uff5cbar\u2581\uff5c", "hello world the", "a b a b", "12345a b", "中文字ひらがな漢字x", "!@#ab?cd\r\n\r\n x",
           "", " ", "\n", "\r\n\r\n", "\t \t x"]


def tokenizer_variants(base):
    """A small patch of the bundled tokenizer.json, which the test applies, for each of tokenizer_diff's variants."""
    for name, changed in tokenizer_diff.synthetic(base):
        patch = {key: changed[key] for key in changed if key != "model" and changed[key] != base[key]}
        if "added_tokens" in patch:
            patch["added_tokens"] = changed["added_tokens"][len(base["added_tokens"]):]
        merges = {"merges-as-text": "as-text", "ignore-merges": "every-second", "few-merges": "first-200"}.get(name)
        if name == "shuffled-merges":
            continue
        if merges:
            patch["merges"] = merges
        if changed["model"].get("ignore_merges"):
            patch["ignore_merges"] = True
        yield name, changed, patch


def record_tokenizer():
    folder = ROOT / "models" / "tiny-glm-dsa-nvfp4"
    base = json.loads((folder / "tokenizer.json").read_text())
    variants = []
    for name, changed, patch in [("bundled", base, {}), *tokenizer_variants(base)]:
        original = Tokenizer.from_str(json.dumps(changed))
        # The original's compatibility tables are older than ours: characters of Unicode 15 differ there.
        strings = [s for s in STRINGS if not (name.startswith("nfk") and "\U0001e06b" in s)]
        cases = [{"text": s, "ids": original.encode(s, add_special_tokens=False).ids} for s in strings]
        variants.append({"name": name, "patch": patch, "cases": cases})
    original = Tokenizer.from_str(json.dumps(base))
    smile = original.encode("é😀 中", add_special_tokens=False).ids
    lists = [smile[:n] for n in range(1, len(smile))] + [smile[n:] for n in range(1, len(smile))]
    lists += [smile[:3] + [2007] + smile[3:], smile[:4] + [2011] + smile[1:], [127, 127, 172, 2012, 253], [999999, 5]]
    decoded = [{"ids": ids, "text": original.decode(ids, skip_special_tokens=False),
                "skipped": original.decode(ids, skip_special_tokens=True)} for ids in lists]
    write("tokenizer_cases.json", {"versions": {"tokenizers": tokenizers.__version__}, "variants": variants, "decode": decoded})


def record_templates():
    cases, variables = [], {}
    for case in template_diff.snippet_cases():
        variables = case["kwargs"]
        result = template_diff.original(case)
        if template_diff.known(result, {}, case):
            continue
        cases.append({"template": case["template"], **({"error": True} if "error" in result else result)})
    write("template_cases.json", {"versions": {"jinja2": jinja2.__version__}, "variables": variables, "cases": cases})


def write(name, content):
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / name).write_text(json.dumps(content, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    print("wrote", OUT / name)


if __name__ == "__main__":
    record_tokenizer()
    record_templates()
