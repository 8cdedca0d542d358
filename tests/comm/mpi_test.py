#!/usr/bin/env python3
"""Collectives over MPI with 2 and 4 ranks, and one that hangs.

usage: tests/comm/mpi_test.py MPIEXEC DRIVER
"""
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from mpirun import mpirun  # noqa: E402


def main():
    mpiexec, driver = sys.argv[1:3]
    passed = 0
    for ranks in (2, 4):
        ended = mpirun(mpiexec, ranks, [driver])
        assert ended.returncode == 0, ended.stdout + ended.stderr
        for rank in range(ranks):
            assert f"rank {rank} of {ranks}: well" in ended.stdout, ended.stdout
        passed += 1
    ended = mpirun(mpiexec, 3, [driver, "hang"])
    assert ended.returncode != 0, ended.stdout
    assert "no answer within 500 ms: rank 1" in ended.stdout, ended.stdout + ended.stderr
    passed += 1
    print(f"{passed} passed, 0 failed")


main()
