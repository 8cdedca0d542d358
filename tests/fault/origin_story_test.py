"""The fault this project began with, piece by piece: each is refused or found, and what is said leads to a model that works.

usage: origin_story_test.py PLUMB SOURCE_ROOT
PLUMB is a build with planted faults.
"""
import contextlib
import http.client
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
from server import Server  # noqa: E402

QUICK = ["--no-drift", "--no-caches", "--rows", "2", "--threads", "1"]  # of each launch two rows, other ones each time


class Story:
    def __init__(self, plumb, root):
        self.plumb = plumb
        self.nvfp4 = root / "models/tiny-glm-dsa-nvfp4"
        self.folder = tempfile.TemporaryDirectory()
        self.fp8 = pathlib.Path(self.folder.name) / "fp8"  # block scales in f32
        config = root / "tests/data/golden/random/base"
        self.ended(0, "", "synth", config, "--out", self.fp8, "--format", "fp8")

    def run(self, *arguments):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PLUMB_")}
        return subprocess.run([self.plumb, *map(str, arguments)], env=clean, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=300)

    def ended(self, code, said, *arguments):
        result = self.run(*arguments)
        everything = result.stdout + result.stderr
        assert result.returncode == code, f"{arguments}: exit code {result.returncode}, expected {code}: {everything}"
        assert re.search(said, everything), f"{arguments}: expected '{said}' in: {everything}"
        return everything

    def kernel_at(self, place, rows):
        """The kernel planned at a place for so many rows."""
        plan = json.loads(self.ended(0, "", "plan", self.nvfp4, "--json"))
        folded = re.sub(r"layers\.\d+", "layers.*", place)
        for site in plan["sites"]:
            if site["name"] in (place, folded):
                for choice in site["choices"]:
                    if rows <= int(choice["rows"].split("-")[-1]):
                        return choice["kernel"]
        raise AssertionError(place)


def follow(said):
    """What a newcomer does: takes the first flag offered, or leaves out the one that was asked for."""
    flags = re.search(r"works instead: (?:(--[^\s,]+ [^\s,]+)|no --kernel \S+ at all)", said)
    assert flags, f"nothing is offered in: {said}"
    return (flags.group(1) or "").split()


def never_ready(story, *arguments):
    """What a start says that must not become ready: exit code 3, and until then no answer but 503."""
    server = Server(story.plumb, str(story.nvfp4), "--max-running", "8", "--threads", "1", *map(str, arguments))
    seen = set()
    while server.process.poll() is None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            seen.add(server.request("GET", "/health")[0])
        time.sleep(0.2)
    assert server.process.returncode == 3, f"{arguments}: exit code {server.process.returncode}: {server.log}"
    assert seen == {503}, f"{arguments}: /health answered {seen}"
    return server.log


def serves(story, *arguments):
    """The server becomes ready with these flags, and answers."""
    server = Server(story.plumb, str(story.nvfp4), "--max-running", "8", "--threads", "1", *map(str, arguments))
    try:
        server.wait_until_ready()
        body = {"messages": [{"role": "user", "content": "What is 2+2? Answer briefly."}], "temperature": 0,
                "max_tokens": 40, "chat_template_kwargs": {"enable_thinking": False}}
        status, _, answer = server.request("POST", "/v1/chat/completions", body)
        assert status == 200 and "4" in json.loads(answer)["choices"][0]["message"]["content"], answer
    finally:
        server.stop()


def test_f32_scales_are_never_read_as_ue8m0(story):
    said = story.ended(2, r"weight\.scale.*f32", "plan", story.fp8, "--kernel", "linear=linear.wants_ue8m0")
    story.ended(0, "", "plan", story.fp8, *follow(said))
    story.ended(0, "f32 scales are never read as ue8m0", "explain", "weight.scale")


def test_no_kv_type_is_forced(story):
    plan = json.loads(story.ended(0, "", "plan", story.nvfp4, "--json"))
    flags = {flag["name"]: flag for flag in plan["flags"]}
    assert flags["kv"]["asked"] == "auto" and flags["kv"]["effective"] == "bf16", flags["kv"]
    assert any("KV cache" in note and "--kv fp8" in note for note in plan["notes"]), plan["notes"]
    asked = {flag["name"]: flag for flag in json.loads(story.ended(0, "", "plan", story.nvfp4, "--json", "--kv",
                                                                   "fp8"))["flags"]}
    assert asked["kv"]["effective"] == "fp8_tile128", asked["kv"]


def found(story, fault, place, rows=1):
    """In the kernel planned there. Check names the place, the server never becomes ready, and each of their messages
    offers a flag that leads to a model which passes, and to a server which answers. Returns what the server said."""
    fault += f",kernel={story.kernel_at(place, rows)}"
    planted = ["--fault", fault]
    said = story.ended(3, r"(?s)FAILED.*" + re.escape(place), "check", story.nvfp4, *QUICK, *planted)
    story.ended(0, "passed: every op", "check", story.nvfp4, *QUICK, *planted, *follow(said))
    said = never_ready(story, *planted)
    assert f"first op out of bound: {place} (" in said, said
    serves(story, *planted, *follow(said))
    return said


def test_only_on_decode(story):
    said = found(story, "nan@layers.2.self_attn.attend,phase=decode", "layers.2.self_attn.attend")
    assert "out[0, 0]: nan in place of" in said and "in a launch of 1 row" in said, said


def test_finite_garbage_only_on_decode(story):
    found(story, "nibble_order@layers.3.mlp.experts,phase=decode", "layers.3.mlp.experts")


def test_only_above_temperature_0(story):
    found(story, "nan@sample,hot=1", "sample")


def test_only_in_batches_of_5(story):
    found(story, "missing_fence@layers.4.self_attn.q_b_proj,phase=decode,rows=5", "layers.4.self_attn.q_b_proj", rows=5)


def test_only_past_index_topk(story):
    found(story, "topk_off_by_one@layers.5.self_attn.attend,from=64", "layers.5.self_attn.attend")


def test_only_on_one_rank(story):
    place = "layers.3.post_attention_layernorm"
    said = never_ready(story, "--tp", "2", "--fault", f"rank_skew@{place},phase=decode")
    assert re.search(r"rank 1 .*has other bits than rank 0 .*at " + re.escape(place), said), said
    serves(story, "--tp", "2")


def test_a_captured_incident_is_judged_first(story):
    place = "layers.3.self_attn.o_proj"
    with tempfile.TemporaryDirectory() as folder:
        server = Server(story.plumb, str(story.nvfp4), "--max-running", "8", "--threads", "1", "--verify", "off",
                        "--capture-dir", folder, "--capture-prompts", "--fault", f"nan@{place},phase=decode")
        try:
            server.wait_until_ready()
            body = {"prompt": "Once upon a time", "max_tokens": 5}
            status, _, answer = server.request("POST", "/v1/completions", body)
            assert status == 500 and "numerical_fault" in answer and place in answer, answer
            server.wait_for(lambda: list(pathlib.Path(folder).glob("*.capture.safetensors")))
        finally:
            server.stop()
        capture = next(pathlib.Path(folder).glob("*.capture.safetensors"))
        said = story.ended(3, "FAILED: " + re.escape(place), "check", story.nvfp4, *QUICK, "--capture", capture)
        assert "in the capture" in said and "decode, batch of 8" not in said.split("FAILED")[1], said
        story.ended(3, re.escape(place), "replay", capture, story.nvfp4)


def main():
    story = Story(sys.argv[1], pathlib.Path(sys.argv[2]))
    passed = failed = 0
    for name, test in list(globals().items()):
        if not name.startswith("test_"):
            continue
        try:
            test(story)
            passed += 1
        except Exception as error:  # noqa: BLE001: a failed test must not end the others
            failed += 1
            print(f"FAILED {name}: {error}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
