"""The tasks that the tiny models were trained on, as test cases: questions, tools and right answers.

Addition and subtraction use pairs that never occurred in training. The cases come from one random generator in a fixed
order, so a seed names the same cases everywhere; expected.json was measured on those of seed 777.
"""
import dataclasses
import random

KEYS = """amber birch cedar coral crystal dawn delta ebony ember falcon fern flint forest frost garnet ginger glacier
granite harbor hazel heron indigo iris ivory jade jasper juniper lagoon lantern laurel lemon lilac linen lotus lunar maple
marble meadow mercury mint moss nectar oasis ocean olive onyx opal orchid otter panda pearl pebble pepper pine planet plum
poppy prairie quartz quill rain raven reef ribbon river robin ruby saffron sage sand sapphire scarlet shadow silver snow
solar sparrow spruce star stone storm summit sunset swan tango thunder tiger topaz tulip turtle valley velvet violet walnut
willow winter wolf zebra""".split()
NAMES = """Alice Ben Clara David Emma Felix Grace Henry Ida Jack Karen Leo Maria Nina Oscar Paul Rosa Sam Tina Victor Wendy
Anna Bob Carl Dora Eric Fiona George Helen Ivan Julia Kevin Lily Mark Nora Peter Ruth Simon Tom Zoe""".split()
CITIES = """Paris London Berlin Madrid Rome Vienna Prague Oslo Lisbon Dublin Athens Cairo Tokyo Delhi Lima Boston Denver
Geneva Munich Sydney Toronto Beijing Seoul Warsaw Milan Chicago Venice Zurich Moscow Bergen""".split()
WORDS = """apple banana bread butter candle carrot chair cherry cloud coffee cup desk door egg engine feather fish flower
garden glass grape hammer hat honey house island jacket kettle key kite lamp leaf letter lion lock map melon milk mirror
moon mouse nail needle nest onion orange oven paper peach pencil piano pillow pot potato queen radio ring road rocket rope
rose salt school seed ship shoe spoon sugar table tea train tree umbrella vase wagon water wheel window wood yarn
zipper""".split()
ADJECTIVES = """red blue green old new small big bright dark quiet loud happy sad tall short warm cold soft strong heavy
light clean empty golden gentle brave clever lazy""".split()
ANIMALS = "cat dog fox bear rabbit bird horse mouse owl frog duck goat sheep deer squirrel".split()
PLACES = """forest village garden house valley castle farm town field river bank market school harbor mountain""".split()
THINGS = "box book lamp key ball letter coin map stone boat kite bell cup drum hat basket".split()
VERBS = ["walked to", "looked at", "talked about", "waited near", "came back from", "drove past", "painted", "visited",
         "cleaned", "thought about"]
TIMES = ["In the morning", "In the evening", "After lunch", "Last week", "On Monday", "On Friday", "Every day",
         "Before dinner", "At night", "In spring"]
WEATHER = ["sunny", "cloudy", "rainy", "windy", "snowy", "foggy"]

QUESTIONS = {
    "+": ["What is {a}+{b}?", "What is {a} + {b}?", "What is {a} plus {b}?", "Compute {a}+{b}.", "Add {a} and {b}.",
          "Calculate {a} + {b}.", "How much is {a} plus {b}?", "What is the sum of {a} and {b}?"],
    "-": ["What is {a}-{b}?", "What is {a} - {b}?", "What is {a} minus {b}?", "Compute {a}-{b}.", "Subtract {b} from {a}.",
          "Calculate {a} - {b}.", "How much is {a} minus {b}?"],
    "*": ["What is {a}*{b}?", "What is {a} * {b}?", "What is {a} times {b}?", "Compute {a}*{b}.", "Multiply {a} by {b}.",
          "Calculate {a} * {b}.", "How much is {a} times {b}?", "What is the product of {a} and {b}?"],
}
BRIEF = [" Answer briefly.", " Answer briefly.", " Reply with the number only.", " Be brief."]


def tool(name, description, argument, argument_description):
    properties = {argument: {"type": "string", "description": argument_description}}
    parameters = {"type": "object", "properties": properties, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    tool("get_weather", "Get the current weather for a city", "city", "City name"),
    tool("calculator", "Evaluate an arithmetic expression", "expression", "The expression to evaluate"),
]


@dataclasses.dataclass(frozen=True)
class Case:
    question: str
    answer: str
    reasoning: str | None = None  # None: thinking is switched off
    call: tuple[str, str, str] | None = None  # (function, argument, value): the answer is this tool call


def held_out(a, b):
    """About 5 % of the pairs never occurred in training, in either order."""
    a, b = min(a, b), max(a, b)
    return (a * 7919 + b * 104729 + a * b * 31) % 20 == 7 and not (a < 10 and b < 10)


def pair(r, held):
    while True:
        high = 12 if r.random() < 0.3 else 99
        a, b = r.randint(0, high), r.randint(0, high)
        if held is None or held_out(a, b) == held:
            return a, b


def arithmetic(r, op, held, thinking=False):
    a, b = pair(r, held if op != "*" else None)
    if op == "-" and a < b and r.random() < 0.9:
        a, b = b, a
    if op == "*":
        a, b = r.randint(0, 12), r.randint(0, 12)
    question = r.choice(QUESTIONS[op]).format(a=a, b=b)
    result = {"+": a + b, "-": a - b, "*": a * b}[op]
    reasoning = f"{a} {op} {b} = {result}."
    if op == "+" and a >= 10 and b >= 10:
        ones, tens = a % 10 + b % 10, a // 10 * 10 + b // 10 * 10
        reasoning = (f"{a % 10} + {b % 10} = {ones}, {a // 10 * 10} + {b // 10 * 10} = {tens}, "
                     f"so {a} + {b} = {result}.")
    brief = r.random() < 0.6 if thinking else True
    if brief:
        question += r.choice(BRIEF)
    answer = str(result) if brief else f"The answer is {result}."
    return Case(question, answer, reasoning if thinking else None)


def lists(r):
    kind, count = r.random(), r.randint(3, 6)
    if kind < 0.25:
        items = r.sample(WORDS, count)
        return Case("Copy this list: " + ", ".join(items), ", ".join(items))
    if kind < 0.5:
        items = r.sample(WORDS, count)
        return Case("Reverse this list: " + ", ".join(items), ", ".join(items[::-1]))
    if kind < 0.7:
        items = r.sample(WORDS, r.randint(3, 5))
        return Case("Sort this list: " + ", ".join(items), ", ".join(sorted(items)))
    if kind < 0.85:
        items = [str(x) for x in r.sample(range(1, 100), r.randint(3, 5))]
        return Case("Sort these numbers: " + ", ".join(items), ", ".join(sorted(items, key=int)))
    if kind < 0.93:
        first = r.randint(1, 20)
        last = first + r.randint(2, 9)
        return Case(f"Count from {first} to {last}.", ", ".join(map(str, range(first, last + 1))))
    word = r.choice(WORDS)
    count = r.randint(2, 8)
    return Case(f"Repeat the word {word} {count} times.", " ".join([word] * count))


def tool_call(r):
    city = r.choice(CITIES)
    a, b, op = r.randint(100, 999), r.randint(100, 999), r.choice("+-*")
    if r.random() < 0.5:
        return Case(f"What is the weather in {city}?", "", call=("get_weather", "city", city))
    expression = f"{a}{op}{b}"
    return Case(f"Use the calculator to compute {expression}.", "", call=("calculator", "expression", expression))


def filler(r):
    n, m = r.sample(NAMES, 2)
    k = r.randint(0, 8)
    # All nine are made and one is kept: the others' random draws belong to the sequence.
    sentences = [
        f"{r.choice(TIMES)}, {n} {r.choice(VERBS)} the {r.choice(ADJECTIVES)} {r.choice(PLACES)}.",
        f"The {r.choice(ADJECTIVES)} {r.choice(THINGS)} is next to the {r.choice(ADJECTIVES)} {r.choice(THINGS)}.",
        f"{n} gave the {r.choice(THINGS)} to {m}.",
        f"There are {r.randint(2, 9)} {r.choice(ANIMALS)}s in the {r.choice(PLACES)}.",
        f"{n} and {m} {r.choice(VERBS)} the {r.choice(PLACES)}.",
        f"It was {r.choice(WEATHER)}, so {n} stayed in the {r.choice(PLACES)}.",
        f"The {r.choice(ANIMALS)} likes the {r.choice(ADJECTIVES)} {r.choice(WORDS)}.",
        f"{n} bought {r.choice(WORDS)} and {r.choice(WORDS)} at the market.",
        f"{r.choice(TIMES)}, the {r.choice(PLACES)} was {r.choice(ADJECTIVES)} and {r.choice(ADJECTIVES)}.",
    ]
    return sentences[k] + "\n"


def needle(r, tokens, count_tokens):
    """Notes of about `tokens` tokens with six codes in them, and a question for one."""
    facts = [(key, f"{r.randint(1000, 9999)}") for key in r.sample(KEYS, 6)]
    lines, length = [], 0
    while length < tokens - 110:
        line = filler(r)
        lines.append(line)
        length += count_tokens(line)
    for key, value in facts:
        lines.insert(int(r.random() * (len(lines) + 1)), f"The code of {key} is {value}.\n")
    key, value = r.choice(facts)
    notes = "Read these notes and answer the question.\n" + "".join(lines)
    return Case(notes + f"What is the code of {key}? Answer briefly.", value)


def all_cases(seed, count_tokens):
    """{task: cases}. `count_tokens` gives the number of tokens of a text under the model's tokenizer."""
    r = random.Random(seed)
    tasks = {name: [arithmetic(r, op, held=True) for _ in range(400)]
             for name, op in (("add", "+"), ("sub", "-"), ("mul", "*"))}
    tasks["trained_pairs"] = [arithmetic(r, r.choice("++--*"), held=False) for _ in range(400)]
    tasks["one_digit_sums"] = [Case(f"What is {a}+{b}? Answer briefly.", str(a + b)) for a in range(10) for b in range(10)]
    tasks["add_sub_thinking"] = [arithmetic(r, r.choice("+-"), held=True, thinking=True) for _ in range(200)]
    tasks["lists"] = [lists(r) for _ in range(200)]
    tasks["tool_calls"] = [tool_call(r) for _ in range(48)]
    for tokens, count in ((200, 32), (1000, 24), (2000, 24)):
        tasks[f"needle_{tokens}"] = [needle(r, tokens, count_tokens) for _ in range(count)]
    return tasks
