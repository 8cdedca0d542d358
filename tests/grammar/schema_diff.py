#!/usr/bin/env python3
"""JSON schemas through the grammar engine and the jsonschema package, side by side.

usage: schema_diff.py --driver DRIVER [--count N] [--seed S]

Every text that the engine writes must parse and validate; every instance made to fit must be taken; a damaged text that
is taken must still validate. Schemas: the shapes that pydantic and openai's .parse() send (schemas.json beside this
file) and N made at random. Exit code 77 where jsonschema is not installed.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys

try:
    from jsonschema import Draft202012Validator
except ImportError:
    print("the jsonschema package is not installed")
    sys.exit(77)

WORDS = ["a", "id", "name", "größe", "x y", "na", "names", "kind", "z"]


def text_of(value, rng, escapes):
    """JSON in one of the layouts the engine takes."""
    if rng.random() < 0.3:
        return json.dumps(value, ensure_ascii=False, indent=rng.choice([1, 2, 4]))
    return json.dumps(value, ensure_ascii=escapes and rng.random() < 0.3, separators=rng.choice([(",", ":"), (", ", ": ")]))


def ordered(schema_names, chosen):
    return {name: chosen[name] for name in schema_names if name in chosen}


def some_string(rng, low, high):
    return "".join(rng.choice("ab é\"\\\n😀z0") for _ in range(rng.randint(low, high)))


def random_schema(rng, depth, defs):
    """(schema, function that makes an instance)."""
    kind = rng.choice(["string", "integer", "number", "boolean", "null", "enum", "const", "object", "array", "anyOf", "map", "tuple",
                       "types", "ref", "pattern", "allOf", "oneOf"] if depth > 0
                      else ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern"])
    if kind == "string":
        low, high = rng.choice([(0, None), (0, 5), (2, 6), (3, 3)])
        schema = {"type": "string"}
        if low:
            schema["minLength"] = low
        if high is not None:
            schema["maxLength"] = high
        return schema, lambda: some_string(rng, low, high if high is not None else 8)
    if kind in ("integer", "number"):
        low = rng.choice([None, -1000, -7, 0, 3, 10**12])
        high = None if low is None and rng.random() < 0.5 else (low or 0) + rng.choice([0, 1, 9, 100, 12345])
        schema = {"type": kind}
        if low is not None:
            schema["minimum"] = low
        if high is not None:
            schema["maximum"] = high
        return schema, lambda: rng.randint(low if low is not None else high - 50 if high is not None else -50,
                                           high if high is not None else (low or 0) + 50)
    if kind == "boolean":
        return {"type": "boolean"}, lambda: rng.random() < 0.5
    if kind == "null":
        return {"type": "null"}, lambda: None
    if kind == "enum":
        values = rng.sample(["a", "bé", 1, 2.5, None, True, {"k": [1, "x"]}, ["y"], "a\"b"], rng.randint(1, 4))
        return {"enum": values}, None
    if kind == "const":
        value = rng.choice(["only", 7, None, [1, {"a": None}]])
        return {"const": value}, None
    if kind == "pattern":
        pattern, make = rng.choice([("^[a-c]{2,4}$", lambda: "abca"[:rng.randint(2, 4)]), ("^\\d{3}-\\d{2}$", lambda: "123-45"),
                                    ("b\"", lambda: "ab\"c"), ("^(x|yy)+$", lambda: "xyyx"), ("^\\S+@[a-z]+$", lambda: "é@a")])
        return {"type": "string", "pattern": pattern}, make
    if kind == "array":
        item, make = random_schema(rng, depth - 1, defs)
        low, high = rng.choice([(0, None), (1, 2), (2, 3), (0, 0)])
        schema = {"type": "array", "items": item, "minItems": low}
        if high is not None:
            schema["maxItems"] = high
        return schema, make and (lambda: [make() for _ in range(rng.randint(low, high if high is not None else 3))])
    if kind == "tuple":
        parts = [random_schema(rng, depth - 1, defs) for _ in range(rng.randint(1, 3))]
        schema = {"type": "array", "prefixItems": [p[0] for p in parts], "items": False, "minItems": len(parts)}
        return schema, all(p[1] for p in parts) and (lambda: [p[1]() for p in parts]) or None
    if kind == "object":
        names = rng.sample(WORDS, rng.randint(0, 4))
        parts = {name: random_schema(rng, depth - 1, defs) for name in names}
        required = [name for name in names if rng.random() < 0.5]
        schema = {"type": "object", "properties": {name: parts[name][0] for name in names}, "required": required}
        if rng.random() < 0.7:
            schema["additionalProperties"] = False
        elif rng.random() < 0.5:
            schema["additionalProperties"] = {"type": "integer"}

        def make():
            chosen = {name: parts[name][1]() for name in names if name in required or rng.random() < 0.5}
            return ordered(names, chosen)
        return schema, names and all(p[1] for p in parts.values()) and make or None
    if kind == "map":
        item, make = random_schema(rng, depth - 1, defs)
        return ({"type": "object", "additionalProperties": item},
                make and (lambda: {some_string(rng, 1, 4) + str(i): make() for i in range(rng.randint(0, 3))}))
    if kind == "types":
        return {"type": ["string", "null", "boolean"]}, lambda: rng.choice([None, "s", False])
    if kind == "anyOf":
        parts = [random_schema(rng, depth - 1, defs) for _ in range(rng.randint(1, 3))]
        return {"anyOf": [p[0] for p in parts]}, parts[0][1]
    if kind == "oneOf":
        item, make = random_schema(rng, depth - 1, defs)
        branches = [{"type": "object", "properties": {"kind": {"const": name}, "v": item}, "required": ["kind", "v"]} for name in "pq"]
        return {"oneOf": branches}, make and (lambda: {"kind": rng.choice("pq"), "v": make()})
    if kind == "allOf":
        item, make = random_schema(rng, depth - 1, defs)
        return ({"allOf": [{"type": "object", "properties": {"a": item}, "required": ["a"]},
                           {"properties": {"b": {"type": "integer"}}, "required": ["b"]}]},
                make and (lambda: {"a": make(), "b": rng.randint(-9, 9)}))
    name = f"d{len(defs)}"
    defs[name] = None
    item, make = random_schema(rng, depth - 1, defs)
    defs[name] = {"type": "object", "properties": {"v": item, "next": {"anyOf": [{"$ref": f"#/$defs/{name}"}, {"type": "null"}]}},
                  "required": ["v", "next"], "additionalProperties": False}
    return ({"$ref": f"#/$defs/{name}"},
            make and (lambda: {"v": make(), "next": {"v": make(), "next": None} if rng.random() < 0.5 else None}))


def damaged(text, rng):
    at = rng.randrange(len(text)) if text else 0
    how = rng.random()
    if how < 0.4:
        return text[:at] + text[at + 1:]
    if how < 0.7:
        return text[:at] + rng.choice("\"{}[],:0a1-. \\") + text[at:]
    return text[:at] + rng.choice("\"{}[],:0a1-. \\") + text[at + 1:]


def unique(pairs):
    if len({k for k, _ in pairs}) != len(pairs):
        raise ValueError("a key appears twice")
    return dict(pairs)


class Driver:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def check(driver, schema, make, rng, seed):
    """Problems, and how many texts were looked at."""
    problems = []
    escapes = not any(word in json.dumps(schema, ensure_ascii=False) for word in ("pattern", "größe"))  # escaped only where they must be
    fitting = [text_of(make(), rng, escapes) for _ in range(5)] if make else []
    answer = driver.ask(schema=schema, seed=seed, count=8, check=fitting)
    if "error" in answer:
        return [f"refused: {answer['error']}"], 0
    validator = Draft202012Validator(schema)
    free_names = "additionalProperties" in json.dumps(schema)  # free names may repeat: the last one counts

    def verdict(text):
        value = json.loads(text, object_pairs_hook=None if free_names else unique)
        return next(iter(validator.iter_errors(value)), None)
    for text in answer["texts"]:
        try:
            wrong = verdict(text)
        except ValueError as error:
            wrong = error
        if wrong is not None:
            problems.append(f"wrote {text!r}: {wrong}")
    for text, taken in zip(fitting, answer["takes"]):
        if verdict(text) is not None:
            problems.append(f"this test made {text!r}, which does not fit")
        elif not taken:
            problems.append(f"does not take {text!r}")
    wounded = [damaged(text, rng) for text in answer["texts"] for _ in range(6)]
    taken = driver.ask(schema=schema, check=wounded)["takes"]
    for text, yes in zip(wounded, taken):
        if not yes:
            continue
        try:
            wrong = verdict(text)
        except ValueError as error:
            wrong = error
        if wrong is not None:
            problems.append(f"takes {text!r}: {wrong}")
    return problems, len(answer["texts"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--driver", required=True)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    corpus = json.loads((pathlib.Path(__file__).parent / "schemas.json").read_text(encoding="utf-8"))
    cases = [(schema, None) for schema in corpus]
    for i in range(args.count):
        rng = random.Random(args.seed * 100_003 + i)
        defs = {}
        schema, make = random_schema(rng, rng.randint(0, 3), defs)
        if defs:
            schema = {"$defs": defs, **schema}
        cases.append((schema, make))
    driver = Driver(args.driver)
    passed = failed = texts = 0
    for i, (schema, make) in enumerate(cases):
        problems, count = check(driver, schema, make, random.Random(i), i + 1)
        texts += count
        if problems:
            failed += 1
            print(f"FAILED {json.dumps(schema, ensure_ascii=False)}")
            for problem in problems[:3]:
                print(f"    {problem[:600]}")
        else:
            passed += 1
    print(f"{texts} texts of {len(cases)} schemas")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
