#!/bin/sh
# Installs what building and testing GAC needs and this machine lacks. Asks for
# nothing, and says nothing when nothing is missing.
#   tools/setup.sh build    compiler, CMake, jansson, PCRE2, libunistring, xxHash, OpenBLAS
#   tools/setup.sh demo     also Python, for the scripts that make checkpoints, and gnuplot
#   tools/setup.sh wheel    also Python and what makes a wheel
#   tools/setup.sh check    also the test tools, Open MPI, gnuplot, Chromium and the Python environment
#   tools/setup.sh package  also dpkg's tools
#   tools/setup.sh bench    also the peers that benchmarks compare with
#   tools/setup.sh transformers   an environment with torch and transformers
set -eu
cd "$(dirname "$0")/.."

packages="gcc g++ cmake ninja-build pkg-config libjansson-dev libpcre2-dev\
 libunistring-dev libxxhash-dev libopenblas-dev"
if [ "${1:-build}" = demo ]; then
    packages="$packages python3"
elif [ "${1:-build}" = package ]; then
    packages="$packages dpkg-dev"
elif [ "${1:-build}" = wheel ] || [ "${1:-build}" = transformers ]; then
    packages="$packages python3 python3-venv"
elif [ "${1:-build}" = check ] || [ "$1" = bench ]; then
    packages="$packages libcmocka-dev clang clang-format llvm libclang-rt-dev patch python3 python3-venv\
 openmpi-bin libopenmpi-dev dpkg-dev"
fi

if [ "${1:-build}" = bench ]; then
    packages="$packages glpk-utils coinor-cbc"
fi

# What is worth having and may be missing: without it pages have no pictures, and tests are skipped.
optional=""
case "${1:-build}" in
demo) optional="gnuplot-nox" ;;
check) optional="gnuplot-nox chromium" ;;
esac

installed() {
    dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'install ok installed'
}

# A tool that is on the PATH serves, whoever put it there.
present() {
    case "$1" in
    ninja-build) command -v ninja >/dev/null || installed "$1" ;;
    python3-venv) python3 -c 'import ensurepip, venv' 2>/dev/null ;;
    openmpi-bin) command -v mpirun >/dev/null ;;
    libopenmpi-dev) command -v mpicc >/dev/null || installed "$1" ;;
    dpkg-dev) command -v dpkg-shlibdeps >/dev/null ;;
    *-dev) installed "$1" || installed "$(echo "$1" | sed 's/libclang-rt-dev/libclang-rt-14-dev/')" ;;
    glpk-utils) command -v glpsol >/dev/null ;;
    coinor-cbc) command -v cbc >/dev/null ;;
    gnuplot-nox) command -v gnuplot >/dev/null ;;
    llvm) command -v llvm-symbolizer >/dev/null || ls /usr/bin/llvm-symbolizer-* >/dev/null 2>&1 ;;
    *) command -v "$1" >/dev/null || installed "$1" ;;
    esac
}

missing=""
for package in $packages; do
    present "$package" || missing="$missing $package"
done
if [ -n "$missing" ]; then
    if ! command -v apt-get >/dev/null; then
        echo "setup: please install:$missing" >&2
        exit 1
    fi
    sudo=""
    [ "$(id -u)" = 0 ] || sudo="sudo -n"
    if [ -n "$sudo" ] && ! $sudo true 2>/dev/null; then
        echo "setup: not root and no sudo without a password; please run:" >&2
        echo "  apt-get install -y --no-install-recommends$missing" >&2
        exit 1
    fi
    echo "setup: installing$missing" >&2
    export DEBIAN_FRONTEND=noninteractive
    $sudo apt-get update -qq >&2
    # shellcheck disable=SC2086
    $sudo apt-get install -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends $missing >/dev/null
fi

# One by one, because a distribution may lack one: Ubuntu has Chromium as a snap only.
for package in $optional; do
    present "$package" && continue
    sudo=""
    [ "$(id -u)" = 0 ] || sudo="sudo -n"
    echo "setup: installing $package" >&2
    { [ -n "$missing" ] || $sudo apt-get update -qq; } >&2 &&
        DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq -o Dpkg::Use-Pty=0 \
            --no-install-recommends "$package" >/dev/null 2>&1 ||
        echo "setup: no $package; what needs it is left out" >&2
done

# Makes the Python environment $1 of the requirements $2.
environment() {
    cmp -s "$2" "$1/requirements.txt" && return 0
    echo "setup: making $1" >&2
    mkdir -p build
    python3 -m venv --clear "$1" &&
        "$1/bin/pip" install -q --disable-pip-version-check -r "$2" >&2 &&
        cp "$2" "$1/requirements.txt"
}

case "${1:-build}" in
wheel) environment build/venv-wheel python/requirements.txt ;;
# The reference implementation that the tests compare with, and what makes and tests the wheel.
check)
    environment build/venv tests/requirements.txt
    environment build/venv-wheel python/requirements.txt ||
        echo "setup: no build/venv-wheel: the tests of the Python package will be skipped" >&2
    ;;
bench) environment build/venv tests/requirements.txt ;;
transformers) environment build/venv-transformers experiments/validation/families/requirements.txt ;;
esac
