#!/usr/bin/env python3
"""Compares our tokenizer with Hugging Face's on random and adversarial strings.

    tokenizer_diff.py --driver build/.../text_diff_driver [--count N] [--seed S] [MODEL_DIR ...]

Without MODEL_DIR it takes the bundled model's tokenizer; synthetic ones, which cover what that file does not use, are
always added. Exits 1 on any difference, 77 (skipped) when the `tokenizers` package is missing.
"""
import argparse
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

try:
    import tokenizers
    from tokenizers import Tokenizer
except ImportError:
    print("skipped: the Python package 'tokenizers' is not installed")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
GLM = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
       r"|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def byte_level(use_regex=False, prefix=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": use_regex}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


def synthetic(base):
    """Variants of a tokenizer.json, by name: each switches on something else."""
    def variant(**changes):
        out = json.loads(json.dumps(base))
        for key, value in changes.items():
            if key == "model":
                out["model"].update(value)
            else:
                out[key] = value
        return out

    def token(i, content, **flags):
        out = {"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
               "normalized": False, "special": False}
        return {**out, **flags}

    first = 1 + max(max(base["model"]["vocab"].values()), max(t["id"] for t in base["added_tokens"]))
    flagged = base["added_tokens"] + [
        token(first, "<lstrip>", lstrip=True), token(first + 1, "<rstrip>", rstrip=True, special=True),
        token(first + 2, "word", single_word=True), token(first + 3, "<both>", lstrip=True, rstrip=True),
        token(first + 4, "normé", normalized=True), token(first + 5, "aa"), token(first + 6, "aaa"),
        token(first + 7, "ﬁx", normalized=True), token(first + 8, " sp ace "), token(first + 9, "｜bar▁｜", special=True)]
    merges = base["model"]["merges"]
    as_text = [m if isinstance(m, str) else " ".join(m) for m in merges]
    yield "merges-as-text", variant(model={"merges": as_text})
    yield "ignore-merges", variant(model={"ignore_merges": True, "merges": merges[::2]})
    yield "few-merges", variant(model={"merges": merges[:200]})
    yield "shuffled-merges", variant(model={"merges": random.Random(5).sample(merges, len(merges))})
    yield "deepseek-splits", variant(pre_tokenizer=sequence(*[split(r) for r in DEEPSEEK], byte_level()))
    yield "gpt2-regex", variant(pre_tokenizer=byte_level(use_regex=True))
    yield "prefix-space", variant(pre_tokenizer=byte_level(use_regex=True, prefix=True))
    yield "prefix-space-split", variant(pre_tokenizer=sequence(split(GLM), byte_level(prefix=True)))
    yield "literal-split", variant(pre_tokenizer=sequence(
        {"type": "Split", "pattern": {"String": "a b"}, "behavior": "Isolated", "invert": True}, byte_level()))
    yield "empty-matches", variant(pre_tokenizer=sequence(split(r"\d*"), split(r"[\S]|x?"), byte_level()))
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        yield form.lower(), variant(normalizer={"type": form}, added_tokens=flagged)
    yield "nfkc-sequence", variant(normalizer={"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "NFC"}]})
    yield "flags", variant(added_tokens=flagged)
    yield "empty-normalizers", variant(normalizer={"type": "Sequence", "normalizers": []})


INTERESTING = (
    ["'s", "'S", "'ſ", "'Ve", "'LL", "'re", "’s", " ", "  ", "\t", "\n", "\r", "\r\n", "\u00a0", "\u3000", "\u180e",
     "\u200b", "\u2028", "\u0085", "\u001c", "\u000b", "0", "00", "000", "1234567", "٣", "Ⅳ", "²", "½", "\u0966", "\u2163",
     "é", "e\u0301", "\u0301", "\u0345", "ß", "ſ", "ﬁ", "İ", "中", "文", "ひ", "カ", "한", "ᄒ", "ᅡ", "ᆫ", "𝒳", "👍", "👩‍👩‍👧",
     "🏽", "\ufeff", "\ufffd", "\U0010ffff", "\ue000", "\x00", "\x7f", "!", "??", "...", "_", "-", "$", "<", ">", "|", "#",
     "the", "The", " the", "hello", " world", "aa", "aaa", "a b", "word", " word ", "<lstrip>", "<rstrip>", "<both>",
     "normé", "norme\u0301", "ﬁx", "fix", " sp ace ", "｜bar▁｜", "Ġ", "Ċ", "Å", "Å", "ﬀ", "\u1e9b\u0323", "ｱ", "㍿", "①",
     "\u0344", "\u0958", "क\u093c", "\u0e33", "\u0f73", "\u2126", "\u212a", "\u1100", "\ud7a3"])


class Strings:
    def __init__(self, seed, added):
        self.rng = random.Random(seed)
        self.pool = INTERESTING + added + [a[:-1] for a in added] + [a[1:] for a in added]
        self.planes = [(0x20, 0x7f)] * 6 + [(0, 0x100), (0x100, 0x3000), (0x3000, 0xd800), (0xe000, 0x10000),
                                            (0x10000, 0x20000), (0x1f000, 0x1fb00), (0x20000, 0x110000)]

    def character(self):
        low, high = self.rng.choice(self.planes)
        return chr(self.rng.randrange(low, high))

    def next(self):
        rng, kind, size = self.rng, self.rng.randrange(5), int(self.rng.expovariate(1 / 12)) + 1
        if kind == 0:
            return "".join(self.character() for _ in range(size))
        if kind == 1:
            return "".join(rng.choice(self.pool) for _ in range(size))
        if kind == 2:  # runs of few members, where ties and look-ahead matter
            few = [rng.choice(self.pool) for _ in range(rng.randrange(1, 4))]
            return "".join(rng.choice(few) * rng.randrange(1, 6) for _ in range(size))
        if kind == 3:
            alphabet = rng.choice(["ab", "the ", "0123 ,.", " \n\r\tx", "aeiouth sr", "'sStTrReEvVmMlLdD "])
            return "".join(rng.choice(alphabet) for _ in range(size * 3))
        return "".join(self.character() if rng.random() < 0.3 else rng.choice(self.pool) for _ in range(size))


# Characters with compatibility decompositions that the original's tables (Unicode 12) don't know yet.
NEWER_COMPATIBILITY = ((0xa7f2, 0xa7f4), (0x10781, 0x107ba), (0x1ccd6, 0x1ccf9), (0x1e030, 0x1e06d), (0x1f16c, 0x1f16c),
                       (0x1fbf0, 0x1fbf9))


def knows(variant, text):
    """False where the original is known to be older than our Unicode."""
    newer = any(low <= ord(c) <= high for c in text for low, high in NEWER_COMPATIBILITY)
    return not (newer and variant.startswith("nfk"))


def every_character():
    """Each code point alone and in company: shows where Unicode tables differ."""
    for c in range(0x110000):
        if not 0xd800 <= c < 0xe000:
            yield f"a{chr(c)}b 1{chr(c)}"


def compare(name, folder, strings, driver, seed):
    """Feeds strings, then random id lists; returns (cases, differences)."""
    original = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rng = random.Random(seed)
    size = original.get_vocab_size()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as requests, tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        cases = []
        for text in strings:
            if knows(name, text):
                cases.append(("text", text))
        for _ in range(len(cases) // 20):
            cases.append(("ids", [rng.randrange(size + 3) for _ in range(rng.randrange(1, 12))]))
        for kind, value in cases:
            requests.write(json.dumps({kind: value}) + "\n")
        requests.seek(0)
        subprocess.run([driver, "tokenizer", str(folder)], stdin=requests, stdout=out, check=True)
        out.seek(0)
        different = 0
        for kind, value in cases:
            answer = json.loads(out.readline())
            ids = original.encode(value, add_special_tokens=False).ids if kind == "text" else value
            want = {"decoded": original.decode(ids, skip_special_tokens=False),
                    "skipped": original.decode(ids, skip_special_tokens=True)}
            if kind == "text":
                want = {"ids": ids, **want}
            if answer != want:
                different += 1
                if different <= 3:
                    print(f"  {name}: {kind} {value!r}\n    want {want}\n    got  {answer}")
    print(f"{name:22} {len(cases):8} cases {different:6} differences", flush=True)
    return len(cases), different


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", required=True)
    parser.add_argument("--count", type=int, default=60000, help="for each model's own tokenizer; a tenth for others")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all-characters", action="store_true", help="also every Unicode character")
    parser.add_argument("models", nargs="*", type=pathlib.Path)
    args = parser.parse_args()
    models = args.models or [ROOT / "models" / "tiny-glm-dsa-nvfp4"]
    total = differences = 0

    def run(name, folder, count):
        nonlocal total, differences
        added = [t["content"] for t in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]]
        source = Strings(args.seed, added)
        strings = [source.next() for _ in range(count)]
        if args.all_characters:
            strings += list(every_character())
        cases, bad = compare(name, folder, strings, args.driver, args.seed)
        total += cases
        differences += bad

    for model in models:
        run(model.name, model, args.count)
    base = json.loads((models[0] / "tokenizer.json").read_text())
    for name, content in synthetic(base):
        folder = pathlib.Path(tempfile.mkdtemp())
        try:
            (folder / "tokenizer.json").write_text(json.dumps(content))
            run(name, folder, args.count // 10)
        finally:
            shutil.rmtree(folder)
    print(f"tokenizers {tokenizers.__version__}")
    print(f"{total - differences} passed, {differences} failed")
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
