#!/usr/bin/env python3
"""A model divided over two hosts, which are two network namespaces of this machine with a cable between them: started with
torchrun-style variables and by mpirun; and what becomes of the server when the cable is cut under load.

usage: two_hosts_test.py PLUMB MODEL [MPIEXEC]      (as root)
"""
import contextlib
import http.client
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import ranks_test
import server as serving

NAMES = [f"plumb-{os.getpid()}-{side}" for side in "ab"]
ADDRESSES = ["10.231.7.1", "10.231.7.2"]
FLAGS = [*ranks_test.FLAGS, "--no-access-log", "--rank-timeout-ms", str(ranks_test.TIMEOUT_MS)]


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


def on_host(name, command):
    """The command in that namespace, with a host name of its own: MPI takes one name for one machine."""
    return ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name, *command]


@contextlib.contextmanager
def hosts():
    cables = [f"pl{os.getpid() % 100000}{side}" for side in "ab"]
    try:
        for name in NAMES:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("link", "add", cables[0], "netns", NAMES[0], "type", "veth", "peer", "name", cables[1], "netns", NAMES[1])
        for name, cable, address in zip(NAMES, cables, ADDRESSES):
            ip("-n", name, "address", "add", f"{address}/24", "dev", cable)
            ip("-n", name, "link", "set", cable, "up")
        yield cables
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


class Hosted(serving.Server):
    """A server whose rank 0 runs here, on the first host; `command` starts it, and `beside` what the second host runs."""

    def __init__(self, plumb, model, command, env, beside=None):
        self.port = serving.free_port()
        self.log_file = tempfile.TemporaryFile("w+", errors="replace")
        program = [plumb, "serve", model, "--port", str(self.port), *FLAGS]
        self.process = subprocess.Popen([*command, *program], stderr=self.log_file, stdout=self.log_file, text=True, env=env)
        self.other = beside(program) if beside else None

    def processes(self):
        """Those of plumb that serve at this port, on both hosts."""
        found = []
        for folder in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes().split(b"\0") if folder.name.isdigit() else []
                if words and words[0].endswith(b"plumb") and str(self.port).encode() in words:
                    found.append(int(folder.name))
        return [pid for pid in found if ranks_test.exists(pid)]


def with_variables(plumb, model):
    store = str(serving.free_port())

    def env(rank):
        return ranks_test.environment(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR=ADDRESSES[0], MASTER_PORT=store)

    def beside(program):
        return subprocess.Popen(on_host(NAMES[1], program), env=env(1), stderr=subprocess.DEVNULL)
    return Hosted(plumb, model, [], env(0), beside)


def with_mpirun(plumb, model, mpiexec, folder):
    agent = folder / "agent"  # what mpirun calls instead of ssh: agent HOST COMMAND
    agent.write_text("#!/bin/sh\nshift\nexec ip netns exec " + NAMES[1] + " unshare --uts sh -c 'hostname " + NAMES[1] +
                     "; exec sh -c \"$1\"' sh \"$*\"\n")
    agent.chmod(0o755)
    network = f"{ADDRESSES[0].rsplit('.', 1)[0]}.0/24"
    command = [mpiexec, "--allow-run-as-root", "--bind-to", "none", "-n", "2", "--host", ",".join(ADDRESSES),
               "--mca", "plm_rsh_agent", str(agent), "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", network,
               "--mca", "oob_tcp_if_include", network, "--mca", "mpi_yield_when_idle", "1"]
    return Hosted(plumb, model, command, ranks_test.environment())


def serves_and_ends_without_its_cable(server, cable, want):
    server.wait_until_ready()
    assert ranks_test.text_of(ranks_test.answer(server)) == want
    assert len(server.processes()) == 2, server.processes()
    load = ranks_test.Load(server)
    time.sleep(0.5)
    ip("-n", NAMES[0], "link", "set", cable, "down")
    begin, said = time.monotonic(), None
    while said is None and time.monotonic() < begin + 10:
        try:
            if server.request("GET", "/health", timeout=2)[0] == 503:
                said = time.monotonic() - begin
        except (OSError, http.client.HTTPException):
            said = time.monotonic() - begin if not server.processes() else None
        time.sleep(0.02)
    while server.processes() and time.monotonic() < begin + 20:
        time.sleep(0.05)
    ended, left = time.monotonic() - begin, server.processes()
    ip("-n", NAMES[0], "link", "set", cable, "up")  # mpirun waits for its own helper behind it
    code = server.process.wait(60)
    load.join()
    assert said is not None and said < 5, f"{said} s\n{server.log}"
    assert not left, f"left over: {left}\n{server.log}"
    assert code not in (0, None), code
    assert server.other is None or server.other.wait(5) == 5, server.other.returncode
    log = server.log  # mpirun also brings what the other host said of this one
    assert log.count("rank 1 (") == 1 and log.count("error: ") == 1 + log.count("rank 0 ("), log
    assert not any(status == 200 for when, status, _ in load.ends if when > begin + 5), load.ends[-3:]
    print(f"  503 after {said:.2f} s, both hosts' processes ended after {ended:.2f} s, exit code {code}")


def stop(server):
    for process in filter(None, (server.process, server.other)):
        if process.poll() is None:
            process.kill()
            process.wait()
    for pid in server.processes():
        os.kill(pid, 9)


def inside(way, plumb, model, mpiexec, cable):
    """On the first host."""
    alone = serving.Server(plumb, model, *ranks_test.FLAGS)
    alone.wait_until_ready()
    want = ranks_test.text_of(ranks_test.answer(alone))
    assert alone.stop() == 0
    with tempfile.TemporaryDirectory() as folder:
        server = with_mpirun(plumb, model, mpiexec, pathlib.Path(folder)) if way == "mpirun" else with_variables(plumb, model)
        try:
            serves_and_ends_without_its_cable(server, cable, want)
            return 0
        except Exception as error:  # noqa: BLE001: what the server said belongs to it
            print(f"FAILED {way}: {type(error).__name__} {error}\n{server.log[-3000:]}")
            return 1
        finally:
            stop(server)


def main():
    arguments = [*sys.argv[1:4], None][:3]
    if os.environ.get("PLUMB_TWO_HOSTS"):
        global NAMES
        *NAMES, cable, way = os.environ["PLUMB_TWO_HOSTS"].split()
        return inside(way, *arguments, cable)
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        print("two hosts are network namespaces, which need root and iproute2")
        return 77
    ways = ["torchrun_variables"] + (["mpirun"] if arguments[2] else [])
    failed = 0
    for way in ways:  # with a cable each: a peer once lost stays unreachable for seconds
        try:
            with hosts() as cables:
                env = {**os.environ, "PLUMB_TWO_HOSTS": " ".join([*NAMES, cables[0], way])}
                code = subprocess.run(on_host(NAMES[0], [sys.executable, *sys.argv]), env=env, check=False).returncode
        except subprocess.CalledProcessError as error:
            print(f"no network namespaces here: {error.stderr.decode().strip()}")
            return 77
        failed += code != 0
        print(f"{'FAILED' if code else 'PASSED'} {way}", flush=True)
    print(f"{len(ways) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
