#!/bin/sh
# Runs all tests and timings that need a GPU. Arguments: build directory, output
# folder. Writes OUT_DIR/gpu-tests.txt, and the sanitizer's full output beside
# it. Exit 1 if anything failed, 77 without a GPU.
set -eu
if [ $# != 2 ]; then
    echo "usage: run.sh BUILD_DIR OUT_DIR" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
report=$out/gpu-tests.txt
export GAC_BACKEND_PATH="${GAC_BACKEND_PATH:-$build/libgac_cuda.so}"
if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    echo "skipped: no GPU"
    exit 77
fi
n_failed=0

# step COMMAND...: writes its output to the report and its verdict to both.
step() {
    echo "== $*" >>"$report"
    start=$(date +%s)
    code=0
    "$@" >>"$report" 2>&1 || code=$?
    took=$(($(date +%s) - start))
    case $code in
    0) verdict=ok ;;
    77) verdict=skipped ;;
    *)
        verdict="FAIL (exit $code)"
        n_failed=$((n_failed + 1))
        ;;
    esac
    echo "$verdict $* ($took s)" | tee -a "$report"
}

{
    date -u +%Y-%m-%dT%H:%M:%SZ
    nvidia-smi --format=csv,noheader \
        --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,ecc.mode.current
} >"$report"
cat "$report"
step "$build/tests/test_ops"
step "$build/tests/test_passes" check
step "$build/tests/test_factor_gpu" check
step "$build/tests/test_backward_gpu" check
step "$build/tests/test_kernels" check
step python3 "$here/test_compress_gpu.py" --gac "$build/gac"
step sh "$here/sanitize.sh" "$build" "$out/sanitize"
step "$build/tests/test_kernels" time
step "$build/tests/test_passes" time
echo "$n_failed failed" | tee -a "$report"
[ "$n_failed" = 0 ]
