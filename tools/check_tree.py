#!/usr/bin/env python3
"""Checks what a clone gets: tracked files below 45 MiB in all, source files of at most 500 lines (kernels 800), and a
README.md of at most 30 lines in every library folder of src/.

usage: tools/check_tree.py
"""
import pathlib
import subprocess
import sys

LIMIT_BYTES = 45 << 20
MAX_LINES, MAX_KERNEL_LINES, MAX_README_LINES = 500, 800, 30
SOURCES = {".h", ".cpp", ".cuh", ".cu", ".py"}


def lines_of(path):
    return path.read_text(encoding="utf-8").count("\n")


def library_folder(name):
    """src/X or src/kernels/X that a source file belongs to; None for other files."""
    depth = 3 if name.parts[:2] == ("src", "kernels") else 2
    if name.parts[0] != "src" or name.suffix not in {".cpp", ".cu"} or len(name.parts) <= depth:
        return None
    return pathlib.PurePath(*name.parts[:depth])


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], check=True, stdout=subprocess.PIPE).stdout
    files = [root / name for name in listed.decode().split("\0") if name]
    files = [path for path in files if path.is_file()]
    complaints = []

    size = sum(path.stat().st_size for path in files)
    if size >= LIMIT_BYTES:
        largest = sorted(files, key=lambda path: -path.stat().st_size)[:10]
        complaints.append(f"tracked files take {size / 2**20:.1f} MiB, the limit is {LIMIT_BYTES >> 20} MiB; the largest: "
                          + ", ".join(f"{path.relative_to(root)} {path.stat().st_size / 2**20:.1f}" for path in largest))
    for path in files:
        name = path.relative_to(root).as_posix()
        limit = MAX_KERNEL_LINES if name.startswith("src/kernels/") else MAX_LINES
        if path.suffix in SOURCES and lines_of(path) > limit:
            complaints.append(f"{name}: {lines_of(path)} lines, at most {limit}")

    folders = {folder for path in files if (folder := library_folder(path.relative_to(root))) is not None}
    for folder in sorted(root / folder for folder in folders):
        readme = folder / "README.md"
        if not readme.is_file():
            complaints.append(f"{folder.relative_to(root)}: no README.md")
        elif lines_of(readme) > MAX_README_LINES:
            complaints.append(f"{readme.relative_to(root)}: {lines_of(readme)} lines, at most {MAX_README_LINES}")

    for line in complaints:
        print(line)
    print(f"{len(files)} tracked files, {size / 2**20:.1f} MiB")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
