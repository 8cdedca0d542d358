#!/usr/bin/env bash
# Installs what building and testing needs, from the distribution's packages (Debian 12, Ubuntu 24.04), and a Python
# environment for the tests that compare with other programs. Does nothing that is already done.
#
# usage: tools/install_deps.sh [--ci] [--python]
#   --ci      also the linters and clang for fuzzing
#   --python  also build/venv with the packages of tools/requirements.txt; a package index out of reach is no error,
#             the tests that need it are skipped by name
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  g++ cmake ninja-build ccache git pkg-config python3 python3-venv
  libboost-dev nlohmann-json3-dev libspdlog-dev libfmt-dev libcli11-dev prometheus-cpp-dev libpcre2-dev
  libutf8proc-dev libhwy-dev libgtest-dev libgmock-dev libbenchmark-dev libnuma-dev libssl-dev
  libopenmpi-dev openmpi-bin
)
with_python=false
for argument in "$@"; do
  case "$argument" in
    --ci) packages+=(chromium chromium-driver openssl iproute2 clang-14 clang-tidy-14 clang-format-14 libclang-rt-14-dev llvm-14 shellcheck) ;;
    --python) with_python=true ;;
    *) echo "unknown argument $argument" >&2; exit 1 ;;
  esac
done

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
list_missing() {
  missing=()
  for package in "${packages[@]}"; do
    installed "$package" || missing+=("$package")
  done
}

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "This script knows Debian and Ubuntu only. Elsewhere install the equivalents of: ${packages[*]}" >&2
  exit 1
fi
list_missing
if [ ${#missing[@]} -gt 0 ]; then
  echo "Missing packages: ${missing[*]}"
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "Not root and no sudo: install them yourself, then start again" >&2; exit 1; }
    as_root=(sudo)
  fi
  # One line each: with sudo, variables are given behind it or they are dropped.
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
  list_missing
  if [ ${#missing[@]} -gt 0 ]; then
    echo "Still missing: ${missing[*]}" >&2
    exit 1
  fi
fi
echo "Packages: all ${#packages[@]} are there"

if $with_python; then
  venv=build/venv
  wanted=$(sha256sum tools/requirements.txt)
  if [ "$(cat $venv/installed 2>/dev/null)" != "$wanted" ]; then
    mkdir -p build
    [ -x $venv/bin/python ] || /usr/bin/python3 -m venv $venv
    if timeout 300 $venv/bin/python -m pip install -q --disable-pip-version-check -r tools/requirements.txt; then
      echo "$wanted" > $venv/installed
    else
      echo "Python packages could not be installed: tests that need them will be skipped"
    fi
  fi
  echo "Python: $venv/bin/python"
fi
