#!/usr/bin/env python3
"""Checks that every include in src/ points to a lower storey (or stays in its folder), as ARCHITECTURE.md has it.

usage: tools/check_layers.py [SOURCE_ROOT]
Prints each arrow that points elsewhere and ends with exit code 1 if there is one.
"""
import pathlib
import re
import sys

# Folders of one storey don't see each other.
STOREYS = [
    ["base"],
    ["tensor"],
    ["device"],
    ["ops", "checkpoint", "comm", "text"],
    ["grammar"],
    ["kernels/reference", "kernels/cpu", "kernels/cuda", "kernels/collective"],
    ["model"],
    ["guard"],
    ["engine"],
    ["serve"],
    ["cli"],
]
STOREY = {folder: storey for storey, folders in enumerate(STOREYS) for folder in folders}
# text and grammar work on strings: tensors and devices are none of their business.
ONLY = {"text": {"base"}, "grammar": {"base", "text"}}
# Kernels reach the program through one list; nobody includes them.
HIDDEN = {folder for folder in STOREY if folder.startswith("kernels/")}
# The exceptions: probe.h measures the machine and computes no op; the CUDA backend samples with the CPU's portable kernel
# until it has one of its own.
OPEN = {"kernels/cpu/probe.h": "cli", "kernels/cpu/op_kernels.h": "kernels/cuda"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
SUFFIXES = {".h", ".cpp", ".cuh", ".cu", ".inl"}


def folder_of(path):
    """Folder of a path below src/: two names for kernels, one for the others."""
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] == "kernels" and len(parts) > 2 else parts[0]


def complaint(folder, target):
    if target == folder or folder == "kernels":  # kernels/all_kernels.cpp is that one list
        return None
    if target not in STOREY and target != "kernels":
        return "no such folder"
    if target in HIDDEN:
        return "nothing includes kernels; they are joined by kernels/all_kernels.cpp"
    if folder in ONLY and target not in ONLY[folder]:
        return f"{folder} may use {', '.join(sorted(ONLY[folder]))} only"
    if target != "kernels" and STOREY[target] >= STOREY[folder]:
        return f"{target} is on storey {STOREY[target]}, {folder} on {STOREY[folder]}"
    if target == "kernels" and folder != "cli":
        return "the list of kernels is handed out by cli"
    return None


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent) / "src"
    files = sorted(path for path in root.rglob("*") if path.suffix in SUFFIXES)
    bad = 0
    for path in files:
        name = path.relative_to(root).as_posix()
        folder = folder_of(name)
        if folder not in STOREY and folder != "kernels":
            print(f"src/{name}: its folder is on no storey")
            bad += 1
            continue
        for target in INCLUDE.findall(path.read_text(encoding="utf-8")):
            if OPEN.get(target) == folder:
                continue
            why = complaint(folder, folder_of(target)) if "/" in target else "an include names its folder"
            if why:
                print(f'src/{name}: includes "{target}": {why}')
                bad += 1
    if not files:
        print(f"{root}: no source files")
    return 1 if bad or not files else 0


if __name__ == "__main__":
    sys.exit(main())
