"""What `cmake --install` makes runs from any folder: all but the C library and the driver's library lies beside it.

usage: install_test.py CMAKE BUILD_FOLDER
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

OF_THE_SYSTEM = re.compile(r"^(linux-vdso|ld-linux[-a-z0-9]*|lib(c|m|dl|rt|pthread|cuda))\.so")


def run(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, check=True, **more).stdout


def main():
    cmake, build = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        run(cmake, "--install", build, env={**os.environ, "DESTDIR": f"{folder}/made"})
        made = next(pathlib.Path(folder, "made").rglob("bin/plumb")).parents[1]
        home = pathlib.Path(folder, "elsewhere")
        shutil.move(made, home)
        plumb = home / "bin/plumb"
        paths = re.findall(r"\((RPATH|RUNPATH)\).*\[(.*)\]", run("readelf", "-d", plumb))
        assert paths == [("RPATH", "$ORIGIN/../lib/plumb")], paths
        checked = 0
        for file in (plumb, *(home / "lib/plumb").iterdir()):
            for line in run("ldd", plumb if file == plumb else file, env={"LD_LIBRARY_PATH": str(home / "lib/plumb")}).splitlines():
                name, _, where = line.strip().partition(" => ")
                if OF_THE_SYSTEM.match(pathlib.Path(name.split()[0]).name):
                    continue
                assert where.startswith(str(home)), f"{file.name}: {line.strip()}"
                checked += 1
        assert checked > 0, "nothing is linked at all"
        unaided = run("ldd", plumb, env={})  # by the program's own search path alone
        assert "not found" not in unaided, unaided
        print(run(plumb, "--version", env={}).strip())
        print(f"{checked} libraries are found beside the program")


if __name__ == "__main__":
    main()
