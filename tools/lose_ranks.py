#!/usr/bin/env python3
"""Kills or stops a rank of a server under load, again and again, and checks each time what docs/scaling.md promises: 503
within 5 s, an error for running requests, exit code 5, the cause named once, no process and no shared memory left.

usage: tools/lose_ranks.py PLUMB MODEL [--times 50] [--ranks 4] [--seed 1]

Prints a line each time, and at the end how long it took at most; exit code 1 when it was not as promised.
"""
import argparse
import os
import pathlib
import random
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "e2e"))
import ranks_test  # noqa: E402


def shared_memory():
    return set(os.listdir("/dev/shm"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plumb")
    parser.add_argument("model")
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    context = ranks_test.Context(asked.plumb, asked.model, None)
    before, slowest, wrong = shared_memory(), {}, 0
    for turn in range(asked.times):
        what = chance.choice([signal.SIGKILL, signal.SIGSTOP])
        rank = chance.randrange(asked.ranks)
        moment = chance.uniform(0.0, 2.0)
        name = f"{signal.Signals(what).name} of rank {'0' if rank == 0 else '1 to ' + str(asked.ranks - 1)}"
        try:
            said, ended = ranks_test.lose(context, rank, what, ranks=asked.ranks, moment=moment)
            slowest[name] = max(slowest.get(name, (0, 0)), (said, ended))
            print(f"{turn + 1:3} {signal.Signals(what).name} of rank {rank} after {moment:.2f} s: "
                  f"503 after {said:.2f} s, all ended after {ended:.2f} s", flush=True)
        except Exception as error:  # noqa: BLE001: counted, and the next one tried
            wrong += 1
            print(f"{turn + 1:3} {signal.Signals(what).name} of rank {rank}: WRONG: {error}", flush=True)
    left = shared_memory() - before
    for name, (said, ended) in sorted(slowest.items()):
        print(f"{name}: at most {said:.2f} s to 503, {ended:.2f} s to the end")
    print(f"{asked.times - wrong} of {asked.times} as promised; shared memory left: {sorted(left) or 'none'}")
    return 1 if wrong or left else 0


if __name__ == "__main__":
    sys.exit(main())
