#!/usr/bin/env bash
# Tests on an ARM machine that is emulated: Python for arm64 with NumPy and llvmlite, under qemu.
#   tests/arm64.sh FOLDER [ARGS of pytest]
# FOLDER keeps Debian's packages and the wheels, some 600 MB, and is filled the first time, which needs
# root and Debian's debootstrap and qemu-user-static. Without ARGS: what depends on the architecture, in
# some minutes: the errors of functions, native calls, memory, transforms.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=${1:?a folder for the packages}
shift
root=$folder/root
wheels=(numpy scipy llvmlite optree ml_dtypes sympy networkx mpmath hypothesis pytest)

if [ ! -e "$folder/.filled" ]; then
    mkdir -p "$folder/wheels"
    debootstrap --arch=arm64 --foreign --variant=minbase --include=python3 bookworm "$root"
    for package in "$root"/var/cache/apt/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
    python3 -m pip download --quiet --dest "$folder/wheels" --only-binary=:all: --python-version 3.11 \
        --platform manylinux_2_28_aarch64 --platform manylinux_2_17_aarch64 "${wheels[@]}"
    for wheel in "$folder"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$folder/site"; done
    touch "$folder/.filled"
fi

if [ $# = 0 ]; then
    # Tests that start Python once more need a system that hands such programs to qemu (binfmt_misc).
    set -- tests/target/test_mathematics.py tests/runtime/test_call.py tests/runtime/test_memory.py \
        tests/test_fft.py
fi
export PYTHONPATH=$PWD:$folder/site TESSERA_CACHE_DIR=$folder/cache
exec nice qemu-aarch64-static -cpu max,sve=off -L "$root" "$root/usr/bin/python3.11" \
    -m pytest -q -p no:cacheprovider "$@"
