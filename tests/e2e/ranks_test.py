"""A model divided over ranks: started by plumb itself, by mpirun, and with torchrun-style variables; served; and what
becomes of a server that loses a rank.

usage: ranks_test.py PLUMB MODEL [MPIEXEC]
"""
import contextlib
import http.client
import json
import os
import pathlib
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

import server as serving

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import mpirun  # noqa: E402

QUESTION = {"messages": [{"role": "user", "content": "What is 2+2? Answer briefly."}], "temperature": 0}
PROMPT = "The quick brown fox jumps over the lazy dog. " * 8
FLAGS = ["--threads", "1", "--max-running", "4", "--max-batch-tokens", "128", "--context", "1024"]
TIMEOUT_MS = 2500


def logits_of(path):
    """[rows * vocab] of the file that plumb logits wrote."""
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(length))
        begin, end = header["logits"]["data_offsets"]
        file.seek(8 + length + begin)
        data = file.read(end - begin)
    return struct.unpack(f"<{len(data) // 4}f", data)


def environment(**more):
    dropped = ("PLUMB_", "RANK", "WORLD_SIZE", "MASTER_", "OMPI_", "SLURM_")
    return {**{k: v for k, v in os.environ.items() if not k.startswith(dropped)}, **more}


def run(command, env=None, timeout=300):
    return subprocess.run(command, env=env or environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=timeout, check=False)


class Context:
    def __init__(self, plumb, model, mpiexec):
        self.plumb, self.model, self.mpiexec = plumb, model, mpiexec
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.one = None

    def logits(self, name):
        return [self.plumb, "logits", self.model, "--prompt", PROMPT, "--backend", "reference", "--threads", "1", "--out",
                str(self.folder / name)]

    def reference(self):
        if self.one is None:
            ended = run(self.logits("one"))
            assert ended.returncode == 0, ended.stderr
            self.one = logits_of(self.folder / "one")
        return self.one

    def compare(self, name, ended):
        assert ended.returncode == 0, ended.stdout + ended.stderr
        want, got = self.reference(), logits_of(self.folder / name)
        assert len(want) == len(got)
        scale = max(abs(x) for x in want)
        worst = max(abs(a - b) for a, b in zip(want, got))
        print(f"  {name}: within {worst / scale:.2g} of the largest logit")
        assert worst <= 1e-5 * scale, worst / scale


def test_plumb_starts_its_ranks(c):
    for name, flags in {"tp2": ["--tp", "2"], "tp4": ["--tp", "4"], "ep2": ["--tp", "2", "--expert-parallel"]}.items():
        c.compare(name, run(c.logits(name) + flags))


def test_mpirun_starts_the_ranks(c):
    if not c.mpiexec:
        print("  this build has no MPI")
        return
    for ranks, flags in ((2, []), (4, ["--expert-parallel"])):
        ended = mpirun.mpirun(c.mpiexec, ranks, c.logits(f"mpi{ranks}") + flags)
        c.compare(f"mpi{ranks}", ended)
    ended = mpirun.mpirun(c.mpiexec, 2, c.logits("wrong") + ["--tp", "4"])
    assert ended.returncode != 0 and "--tp 4, and 2 processes were started" in ended.stderr, ended.stderr


def test_variables_of_torchrun(c):
    port = str(serving.free_port())
    ranks = [subprocess.Popen(c.logits("torch"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True,
                              env=environment(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="localhost",
                                              MASTER_PORT=port)) for rank in (1, 0)]
    for rank in ranks:
        out, err = rank.communicate(timeout=300)
        assert rank.returncode == 0, out + err
    c.compare("torch", run(["true"]))


def test_ranks_that_do_not_come_are_named(c):
    env = environment(RANK="0", WORLD_SIZE="3", MASTER_ADDR="localhost", MASTER_PORT=str(serving.free_port()))
    ended = run(c.logits("none") + ["--rank-wait", "1"], env)
    assert ended.returncode == 5, ended.stderr
    assert "have not come within 1 s: 1, 2 of 3" in ended.stderr, ended.stderr


def test_refusals(c):
    for flags, said in [(["--tp", "3"], "num_attention_heads 4 cannot be divided by 3"),
                        (["--tp", "8"], "works instead: --tp 1, --tp 2, --tp 4")]:
        ended = run(c.logits("none") + flags)
        assert ended.returncode == 2 and said in ended.stderr, f"{ended.returncode} {ended.stderr}"
        assert ended.stderr.count("error:") == 1, ended.stderr
    ended = run([c.plumb, "run", c.model, "hello", "--tp", "2"])
    assert ended.returncode == 2 and "this command runs one rank" in ended.stderr, ended.stderr


def ranks_of(server):
    """Process ids, rank 0 first: the children of what was started, in the order of their numbers."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(server.process.pid)], capture_output=True, text=True,
                            check=False)
    return sorted(int(pid) for pid in listed.stdout.split())


def exists(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def started(c, *flags):
    server = serving.Server(c.plumb, c.model, *FLAGS, *flags)
    try:
        server.wait_until_ready()
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            server.process.kill()
        server.process.wait()


def answer(server, **more):
    status, _, body = server.request("POST", "/v1/chat/completions", {**QUESTION, "max_tokens": 32, **more})
    assert status == 200, body
    return json.loads(body)


def text_of(reply):
    message = reply["choices"][0]["message"]
    return (message.get("reasoning_content") or "") + "|" + (message.get("content") or "")


def test_served_text_is_that_of_one_rank(c):
    features = ["--draft-tokens", "2", "--pages", "16"]  # few pages: sequences are preempted
    texts = {}
    for name, flags in {"one": [], "tp2": ["--tp", "2"], "ep2": ["--tp", "2", "--expert-parallel"]}.items():
        with started(c, *features, *flags) as server:
            texts[name] = [text_of(answer(server)), text_of(answer(server))]  # the second from the prefix cache
            more = {"max_tokens": 400, "temperature": 1, "ignore_eos": True}
            many = [threading.Thread(target=answer, args=(server,), kwargs={**more, "seed": i}) for i in range(6)]
            for thread in many:
                thread.start()
            aborted = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            aborted.request("POST", "/v1/chat/completions", json.dumps({**QUESTION, "max_tokens": 300, "stream": True}),
                            {"Content-Type": "application/json"})
            aborted.getresponse().read(64)
            aborted.close()
            for thread in many:
                thread.join()
            texts[name].append(text_of(answer(server)))
            used = {m: server.metric(f"plumb_{m}_total") for m in ("drafts_accepted", "preemptions", "aborts")}
            assert all(used.values()), used
            verification = json.loads(server.request("GET", "/verification")[2])
            assert verification.get("passed", True), verification
            pids = ranks_of(server)
            assert server.stop() == 0, server.log
            assert not any(exists(pid) for pid in pids), pids
    for name, said in texts.items():
        assert set(said) == {texts["one"][0]}, f"{name}: {said}"


class Load:
    """Requests that follow one another until the server is gone; how each ended."""

    def __init__(self, server, streams=3):
        self.server, self.ends, self.stop = server, [], False
        self.threads = [threading.Thread(target=self.ask) for _ in range(streams)]
        for thread in self.threads:
            thread.start()

    def ask(self):
        while not self.stop:
            try:
                status, _, body = self.server.request(
                    "POST", "/v1/chat/completions", {**QUESTION, "max_tokens": 200, "temperature": 1}, timeout=30)
                self.ends.append((time.monotonic(), status, body))
            except (OSError, http.client.HTTPException) as error:
                self.ends.append((time.monotonic(), 0, str(error)))
                time.sleep(0.05)

    def join(self):
        self.stop = True
        for thread in self.threads:
            thread.join()


def lose(c, rank, what, ranks=2, moment=0.5):
    """Does `what` to a rank under load and checks what must follow. Returns the seconds until the server said so, and
    until all processes had ended."""
    with started(c, "--tp", str(ranks), "--verify", "off", "--rank-timeout-ms", str(TIMEOUT_MS)) as server:
        pids = ranks_of(server)
        assert len(pids) == ranks, pids
        load = Load(server)
        time.sleep(moment)
        begin = time.monotonic()
        os.kill(pids[rank], what)
        said = None
        while said is None and time.monotonic() < begin + 10:
            try:
                if server.request("GET", "/health", timeout=2)[0] == 503:
                    said = time.monotonic() - begin
            except ConnectionRefusedError:  # rank 0 has answered those who waited and is gone
                said = time.monotonic() - begin
            except (OSError, http.client.HTTPException):
                if rank == 0 or server.process.poll() is not None:
                    said = time.monotonic() - begin
            time.sleep(0.02)
        code = server.process.wait(20)
        ended = time.monotonic() - begin
        load.join()
        log = server.log
        assert said is not None and said < 5, f"{said} s\n{log}"
        assert code not in (0, None), code
        assert not any(exists(pid) for pid in pids), f"left over: {pids}\n{log}"
        after = [status for when, status, _ in load.ends if when > begin + 5]
        assert not any(status == 200 for status in after), after
        assert code == 5, f"{code}\n{log}"
        assert log.count("error: rank") + log.count("error: no answer within") == 1, log
        answered = [body for _, status, body in load.ends if status == 503]
        assert rank == 0 or any("rank" in body for body in answered), load.ends[-3:]
        return said, ended


def test_a_rank_that_is_killed(c):
    for rank in (1, 0):
        print("  rank %d killed: 503 after %.2f s, all ended after %.2f s" % (rank, *lose(c, rank, signal.SIGKILL)))


def test_a_rank_that_is_stopped(c):
    for rank in (1, 0):
        print("  rank %d stopped: 503 after %.2f s, all ended after %.2f s" % (rank, *lose(c, rank, signal.SIGSTOP)))


def bounded(plumb):
    """Sanitizers map terabytes: their builds cannot be told how much memory there is by a bound on the address space."""
    program = pathlib.Path(plumb).read_bytes()
    return b"__tsan_init" not in program and b"__asan_init" not in program


def test_a_rank_that_runs_out_of_memory(c):
    if not bounded(c.plumb):
        return
    with started(c, "--tp", "2", "--verify", "off", "--rank-timeout-ms", str(TIMEOUT_MS)) as server:
        pids = ranks_of(server)
        resource.prlimit(pids[1], resource.RLIMIT_AS, (1 << 20, 1 << 20))  # it keeps what it has, and gets no more
        begin = time.monotonic()
        status, _, body = server.request("POST", "/v1/chat/completions",
                                         {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4})
        said = time.monotonic() - begin
        code = server.process.wait(20)
        assert status == 503 and "is out of memory" in body, f"{status} {body}"
        assert said < 5 and code == 5, f"{said} s, exit code {code}\n{server.log}"
        assert server.log.count("error: rank 1") == 1 and server.log.count("is out of memory") == 1, server.log
        assert not any(exists(pid) for pid in pids), pids


def test_a_rank_without_memory_for_its_weights(c):
    if not bounded(c.plumb):
        return
    port = str(serving.free_port())
    limits = {0: resource.RLIM_INFINITY, 1: 150 << 20}
    ranks = [subprocess.Popen([c.plumb, "serve", c.model, *FLAGS, "--port", str(serving.free_port())],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=environment(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="localhost",
                                              MASTER_PORT=port)) for rank in limits]
    for rank, process in enumerate(ranks):
        resource.prlimit(process.pid, resource.RLIMIT_AS, (limits[rank], limits[rank]))
    said = [process.communicate(timeout=60)[0] for process in ranks]
    assert "memory" in said[1] and ranks[1].returncode == 1, f"{ranks[1].returncode} {said[1]}"
    assert "error: rank 1" in said[0] and ranks[0].returncode == 5, f"{ranks[0].returncode} {said[0]}"


def test_no_rank_outlives_the_process_that_started_it(c):
    with started(c, "--tp", "2", "--verify", "off") as server:
        pids = ranks_of(server)
        server.process.kill()
        server.process.wait()
        end = time.monotonic() + 10
        while any(exists(pid) for pid in pids):
            assert time.monotonic() < end, pids
            time.sleep(0.05)


def main():
    context = Context(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
    only = sys.argv[4:]
    passed = failed = 0
    for name, test in list(globals().items()):
        if not name.startswith("test_") or (only and name not in only):
            continue
        begin = time.monotonic()
        try:
            test(context)
            passed += 1
        except Exception as error:  # noqa: BLE001: a failed test must not end the others
            failed += 1
            print(f"FAILED {name}: {type(error).__name__} {error}")
        print(f"{name}: {time.monotonic() - begin:.1f} s", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
