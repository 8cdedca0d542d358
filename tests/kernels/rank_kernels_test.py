"""Kernels that join ranks, between processes on one GPU: sums, recordings, and the loss of a rank.

usage: rank_kernels_test.py RANK_KERNELS
"""
import subprocess
import sys

RUNS = [["all_reduce.one_shot.cuda", "2"], ["all_reduce.one_shot.cuda", "4"], ["all_reduce.two_shot.cuda", "2"],
        ["all_reduce.two_shot.cuda", "3"], ["gather_columns.peer.cuda", "2"], ["gather_columns.peer.cuda", "3"],
        ["all_reduce.nccl.cuda", "1"], ["all_reduce.nccl.cuda", "2"], ["gather_columns.nccl.cuda", "2"],
        ["all_reduce.one_shot.cuda", "2", "kill"], ["all_reduce.one_shot.cuda", "2", "stop"],
        ["all_reduce.two_shot.cuda", "3", "kill"], ["all_reduce.nccl.cuda", "2", "kill"],
        ["all_reduce.nccl.cuda", "2", "stop"]]


def main():
    passed = failed = 0
    for run in RUNS:
        try:
            ended = subprocess.run([sys.argv[1], *run], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
                                   check=False)
        except subprocess.TimeoutExpired as expired:
            print(f"FAILED {' '.join(run)}: no end within 120 s: {expired.stdout}")
            failed += 1
            continue
        said = (ended.stdout + ended.stderr).strip()
        print(said if ended.returncode in (0, 77) else f"FAILED {' '.join(run)}: exit code {ended.returncode}: {said}",
              flush=True)
        if ended.returncode == 77 and "nccl" not in run[0]:
            return 77
        passed += ended.returncode == 0
        failed += ended.returncode not in (0, 77)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
