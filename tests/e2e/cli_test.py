"""Command lines that can't be honoured: each ends with the exit code of its kind and a message that names the cause.

usage: cli_test.py PLUMB MODEL
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import server as serving

RUN = ["run", "MODEL", "hi", "--max-tokens", "1"]

# arguments, exit code, a part of what is said
CASES = [
    (["serve", "MODEL", "--api-key", ""], 1, "--api-key"),
    (["serve", "MODEL", "--served-model-name", ""], 1, "--served-model-name"),
    (["serve", "MODEL", "--cors-origin", "a\r\nb: c"], 1, "--cors-origin"),
    (["serve", "MODEL", "--prefix", "llm"], 1, "--prefix"),
    (["nonsense"], 1, "'nonsense' is not a command"),
    (RUN + ["--backend", "nonsense"], 1, "--backend 'nonsense'"),
    (RUN + ["--mtp", "nonsense"], 1, "--mtp 'nonsense'"),
    (RUN + ["--max-batch-tokens", "2", "--max-running", "64"], 2, "--max-batch-tokens 65 or more"),
    (RUN + ["--max-batch-tokens", "2"], 0, ""),
    (RUN + ["--pages", "9223372036854775807"], 2, "--pages"),
    (RUN + ["--temperature", "nan"], 1, "--temperature"),
    (RUN + ["--top-p", "nan"], 1, "--top-p"),
    (RUN + ["--seed", "18446744073709551616"], 1, "--seed"),
    (RUN + ["--seed", "18446744073709551615"], 0, ""),
    (RUN + ["--raw", "--system", "x"], 2, "--system has nothing to act on"),
    (["tokenize", "MODEL"], 1, "nothing to tokenize"),
    (["tokenize", "MODEL", "--text", ""], 0, '"count":0'),
    (["tokenize", "MODEL", "--decode", "[1e9]"], 1, "is not a token id"),
    (["tokenize", "MODEL", "--decode", "[999999]"], 1, "is not a token id"),
    (["tokenize", "MODEL", "--decode", "[1]", "--plain"], 2, "--plain has nothing to act on"),
    (["render", "MODEL"], 1, "no conversation"),
    (["render", "MODEL", "--user", "x", "--kwargs", "[1]"], 1, "--kwargs is no JSON object"),
    (["synth", "MODEL", "--out", "/dev/null/x", "--experts-only"], 2, "--experts-only has nothing to act on"),
    (["kld", "MODEL", "MODEL"], 1, "--text FILE"),
    (["kld", "MODEL", "MODEL", "--text", "/dev/null"], 1, "not one token"),
    (["kld", "MODEL", "MODEL", "--text", "/dev/null", "--mtp", "on"], 2, "--mtp on has nothing to act on"),
    (["check", "MODEL", "--prompt", "a"], 1, "two tokens at least"),
    (["check", "MODEL", "--capture", "/dev/null"], 4, "/dev/null"),
    (["check", "MODEL", "--capture", "x", "--prompt", "a b"], 1, "--capture"),
    (["check", "MODEL", "--mtp", "on"], 2, "--mtp on has nothing to act on"),
    (["replay", "/dev/null", "MODEL"], 4, "/dev/null"),
    (["explain"], 0, "weight.scale"),
    (["explain", "3"], 0, "plumb check MODEL"),
    (["explain", "limits.m_max"], 0, "beyond what the kernel"),
    (["explain", "nonsense"], 1, "not a code"),
    (RUN + ["--raw", "--no-thinking"], 2, "--no-thinking has nothing to act on"),
    (RUN + ["--threads", "100000"], 1, "is not a number of threads from 1 to"),
    (RUN + ["--threads", "-1"], 1, "is not a number of threads from 1 to"),
    (["logits", "MODEL", "--prompt", "x", "--out", "/no/such/folder/x"], 1, "there is no folder /no/such/folder"),
    (["logits", "MODEL", "--prompt", "x", "--out", "/tmp"], 1, "is a folder"),
]


def run(plumb, arguments, **variables):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PLUMB_")}
    return subprocess.run([plumb, *arguments], env={**clean, **variables}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=120)


def check(ended, code, said):
    everything = ended.stdout + ended.stderr
    assert ended.returncode == code, f"exit code {ended.returncode}, expected {code}: {everything}"
    assert said in everything, f"expected '{said}' in: {everything}"


def test_cases(plumb, model):
    for arguments, code, said in CASES:
        print("plumb", *arguments)
        check(run(plumb, [model if a == "MODEL" else a for a in arguments]), code, said)


def test_backend_without_its_device(plumb, model):
    if "cuda" not in run(plumb, ["--version"]).stdout:
        check(run(plumb, ["plan", model, "--backend", "cuda"]), 2, "--backend cuda cannot be honoured")


def test_version_variable_is_not_an_option(plumb, model):
    check(run(plumb, ["tokenize", model, "--text", "a"], PLUMB_VERSION="1"), 0, "ids")


def test_incomplete_checkpoint(plumb, model):
    with tempfile.TemporaryDirectory() as folder:
        broken = pathlib.Path(folder) / "broken"
        shutil.copytree(model, broken)
        shard = sorted(broken.glob("*.safetensors"))[-1]
        shard.unlink()
        check(run(plumb, ["inspect", str(broken)]), 4, shard.name)
        os.mkfifo(shard)
        check(run(plumb, ["inspect", str(broken)]), 4, "not a regular file")
        (broken / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\n")
        check(run(plumb, ["tokenize", str(broken), "--text", "a"]), 4, "git lfs pull")


def test_a_configuration_that_is_no_file(plumb, model):
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "config.json"
        os.mkfifo(config)
        check(run(plumb, ["plan", folder]), 1, "config.json: is not a regular file")
        config.unlink()
        config.mkdir()
        check(run(plumb, ["plan", folder]), 1, "config.json: is a folder, not a file")


def flags_of(plumb, *arguments):
    ended = run(plumb, ["plan", *arguments, "--json"])
    assert ended.returncode == 0, ended.stderr
    return {flag["name"]: flag for flag in json.loads(ended.stdout)["flags"]}


def test_a_plan_shows_what_was_asked_and_what_is(plumb, model):
    flags = flags_of(plumb, model)
    assert all(flag["asked"] in ("auto", "default", "off", "transformers") for flag in flags.values()), flags
    assert flags["mtp"]["asked"] == "auto" and flags["mtp"]["effective"] == "off", flags["mtp"]
    assert flags["mtp"]["source"] == "default draft_tokens 0", flags["mtp"]
    flags = flags_of(plumb, model, "--draft-tokens", "2", "--max-running", "8", "--kv", "fp8")
    assert flags["mtp"]["asked"] == "auto" and flags["mtp"]["effective"] == "on", flags["mtp"]
    assert flags["mtp"]["source"] == "flag draft_tokens 2", flags["mtp"]
    assert flags["max_sequences"] == {"name": "max_sequences", "asked": "8", "effective": "8",
                                      "source": "flag max_running"}, flags["max_sequences"]
    assert flags["kv"]["asked"] == "fp8" and flags["kv"]["source"] == "flag", flags["kv"]


def test_the_doctor_names_a_fix_for_what_is_not_green(plumb, model):
    ended = run(plumb, ["doctor", model, "--json"])
    report = json.loads(ended.stdout)
    assert ended.returncode == (1 if report["verdict"] == "red" else 0), ended.returncode
    names = {item["name"] for item in report["checks"]}
    assert {"cpu", "memory", "control group", "ulimit files", "huge pages", "disk", "gpu driver"} <= names, names
    for item in report["checks"]:
        assert item["verdict"] in ("green", "amber", "red", "not asked") and item["found"], item
        assert item["verdict"] == "green" or item["fix"], item
    assert "GB/s" in next(item["found"] for item in report["checks"] if item["name"] == "disk")
    check(run(plumb, ["doctor", "/no/such/model"]), 1, "/no/such/model")


def test_plans_for_machines_that_are_not_here(plumb, model):
    configs = pathlib.Path(__file__).resolve().parents[1] / "data" / "configs"
    ended = run(plumb, ["plan", str(configs / "glm-5.2.json"), "--weights", "nvfp4", "--device", "rtx-pro-6000", "--tp",
                        "8", "--json"])
    plan = json.loads(ended.stdout)
    assert plan["devices"] == 8 and plan["fit"]["planned"] <= plan["fit"]["usable"], plan["fit"]
    assert any(w["verdict"] == "will fail" for w in plan["warnings"]), plan["warnings"]
    check(run(plumb, ["plan", str(configs / "glm-5.2.json"), "--weights", "nvfp4", "--device", "h200"]), 2, "--tp 4")
    check(run(plumb, ["plan", model, "--device", "h200,h100"]), 0, "2 x NVIDIA H100 80GB")
    check(run(plumb, ["plan", model, "--device", "h200,b200"]), 2, "devices of one kind")
    check(run(plumb, ["plan", model, "--device", "h200,h200", "--tp", "4"]), 1, "--device names 2 devices, --tp is 4")
    check(run(plumb, ["plan", model, "--device", "tpu"]), 1, "rtx-pro-6000")
    check(run(plumb, ["plan", model, "--memory-fraction", "1.5"]), 1, "is not a share")
    with tempfile.TemporaryDirectory() as folder:
        profile = pathlib.Path(folder) / "card.json"
        profile.write_text(json.dumps({"name": "card", "compute_capability": "9.0", "memory_bytes": 2**33,
                                       "shared_bytes": 232448}))
        check(run(plumb, ["plan", model, "--device", str(profile)]), 0, "device card")
        profile.write_text(json.dumps({"name": "card", "memory": 1}))
        check(run(plumb, ["plan", model, "--device", str(profile)]), 1, "'memory' is no part of one")


def test_check_passes_and_writes_a_page(plumb, model):
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder) / "report.html"
        check(run(plumb, ["check", model, "--prompt", "What is 2+2?", "--sequences", "2", "--report", str(page)]), 0,
              "passed: every op is within its bound")
        check(run(plumb, ["check", model, "--prompt", "2+2", "--no-drift"]), 0, "batch of 8")  # fewer tokens than sequences
        text = page.read_text()
        assert "<svg" in text and "http" not in text and text.rstrip().endswith("</html>"), text[:300]


def test_a_file_in_the_sockets_place_stays(plumb, model):
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"precious")
        file.flush()
        check(run(plumb, ["serve", model, "--port", "0", "--unix-socket", file.name]), 1, file.name)
        assert pathlib.Path(file.name).read_bytes() == b"precious"


def test_a_full_disk_is_no_success(plumb, model):
    if not os.path.exists("/dev/full"):
        return
    with open("/dev/full", "w") as full:
        ended = subprocess.run([plumb, "tokenize", model, "--text", "a"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 1 and "cannot write" in ended.stderr, f"{ended.returncode}: {ended.stderr}"


if __name__ == "__main__":
    sys.exit(serving.run_functions(globals(), sys.argv[1], sys.argv[2]))
