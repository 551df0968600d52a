#!/bin/sh
# Runs our kernels under compute-sanitizer. Arguments: build directory, a folder
# for the full output (default: BUILD_DIR/sanitize), and a pattern of grep if not
# all runs are wanted. Prints one line per run. Exit 1 on any error, 77 without
# compute-sanitizer or a GPU.
set -eu
if [ $# -lt 1 ] || [ $# -gt 3 ]; then
    echo "usage: sanitize.sh BUILD_DIR [OUT [PATTERN]]" >&2
    exit 2
fi
build=$(cd "$1" && pwd)
out=${2:-$build/sanitize}
pattern=${3:-.}
at_once=4 # with more the tool runs out of memory
toolkit=${CUDA_HOME:-/usr/local/cuda}
sanitizer=$(command -v compute-sanitizer || echo "$toolkit/bin/compute-sanitizer")
if ! [ -x "$sanitizer" ]; then
    echo "skipped: no compute-sanitizer"
    exit 77
fi
if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    echo "skipped: no GPU"
    exit 77
fi
for program in test_kernels test_ops test_passes test_factor_gpu test_backward_gpu dump_logits; do
    if ! [ -x "$build/tests/$program" ]; then
        echo "FAIL $build/tests/$program is not built"
        exit 1
    fi
done
mkdir -p "$out"
export GAC_BACKEND_PATH="${GAC_BACKEND_PATH:-$build/libgac_cuda.so}"
n_runs=0

# run_one N TOOL PROGRAM [ARGUMENTS]: one run, one line. API errors are ignored,
# because the vendor's libraries cause and handle them. A run passes only if the
# tool itself reports that it found nothing.
run_one() {
    log=$out/$1-$2-$3.txt
    tool=$2
    program=$build/tests/$3
    shift 2
    label="$tool $*"
    options=
    # There are up to 256 barriers in each of 132 blocks. With a limit of 131072
    # the tool runs out of memory.
    [ "$tool $1" != "synccheck dump_logits" ] || options="--num-cuda-barriers 65536"
    shift
    start=$(date +%s)
    code=0
    # shellcheck disable=SC2086
    "$sanitizer" --tool "$tool" $options --error-exitcode 9 --report-api-errors no \
        --kernel-regex kns=gac_ "$program" "$@" >"$log" 2>&1 || code=$?
    verdict=$(grep 'SUMMARY:' "$log" | tail -n 1 | sed 's/^=* *//')
    took=$(($(date +%s) - start))
    if [ "$code" = 0 ] && echo "$verdict" | grep -Eq 'SUMMARY: 0 (errors|hazards)'; then
        echo "ok $label: $verdict ($took s)"
    else
        echo "FAIL $label: exit $code, ${verdict:-no summary} ($took s), see $log"
        grep -E 'FAIL|Invalid|Uninit|hazard|Barrier|Error:' "$log" | sort | uniq -c | sort -rn |
            head -n 20 || true
    fi
}

# sanitize TOOL PROGRAM [ARGUMENTS]: starts a run beside others. synccheck of a
# whole model takes the memory of the card, so it runs alone.
sanitize() {
    echo "$*" | grep -q "$pattern" || return 0
    [ $((n_runs % at_once)) != 0 ] || wait
    n_runs=$((n_runs + 1))
    [ "$1 $2" != "synccheck dump_logits" ] || wait
    run_one "$n_runs" "$@" >"$out/$n_runs.verdict" &
    [ "$1 $2" != "synccheck dump_logits" ] || wait
}

sanitize memcheck test_kernels exact
sanitize racecheck test_kernels exact
sanitize synccheck test_kernels exact
# initcheck and racecheck skip test_ops: initcheck does not see what the vendor's
# kernels write, and racecheck fails at the first cuBLAS call (CUDA 13.0).
sanitize initcheck test_kernels exact
sanitize memcheck test_ops
sanitize memcheck test_passes small 1
sanitize memcheck test_factor_gpu small 1
sanitize memcheck test_backward_gpu small 1
# Without cuDNN and cuBLAS no vendor kernel runs, so racecheck and initcheck work:
# token by token, and a few tokens at once.
sanitize racecheck test_passes few 1
sanitize initcheck test_passes few 1
ids=$(mktemp)
tiny=$(cd "$(dirname "$0")/../../models/tiny" && pwd)
for i in 1 2 3 4; do printf '\005\0\0\0\006\0\0\0\007\0\0\0\010\0\0\0'; done >"$ids"
export GAC_CUDNN=/nowhere
for n in 1 4 16; do
    sanitize racecheck dump_logits "$tiny" cuda F16 "$n" "$ids" /dev/null
    sanitize initcheck dump_logits "$tiny" cuda F16 "$n" "$ids" /dev/null
    sanitize synccheck dump_logits "$tiny" cuda F16 "$n" "$ids" /dev/null
done
# What other families compute.
golden=$(cd "$(dirname "$0")/../data/logits" && pwd)
for model in gemma2 olmo2 cohere-qk-norm gpt2; do
    for n in 1 4; do
        sanitize racecheck dump_logits "$golden/$model" cuda F16 "$n" "$ids" /dev/null
        sanitize initcheck dump_logits "$golden/$model" cuda F16 "$n" "$ids" /dev/null
    done
done
wait
rm -f "$ids"
n_ok=0
for i in $(seq "$n_runs"); do
    cat "$out/$i.verdict"
    ! grep -q '^ok ' "$out/$i.verdict" || n_ok=$((n_ok + 1))
done
[ "$n_runs" -gt 0 ] && [ "$n_ok" = "$n_runs" ]
