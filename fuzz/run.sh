#!/bin/sh
# Runs every fuzz target on its seeds: fuzz/run.sh BUILD SECONDS
# BUILD holds fuzz/fuzz_*. What a target finds is kept in BUILD/fuzz/findings,
# what it learns in BUILD/fuzz/corpus. Exits 1 on a finding.
set -eu

if [ $# -ne 2 ]; then
    echo "usage: fuzz/run.sh BUILD SECONDS" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
work=$1/fuzz
seconds=$2
python3 "$here/seeds.py" "$work/seeds"

# The targets' own files, in memory where possible; a crash leaves them behind.
scratch=$(mktemp -d "$([ -d /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")/gac-fuzz-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
export TMPDIR="$scratch"

# Addresses of a finding are worth more than a core file; leaks are findings.
export ASAN_OPTIONS="detect_leaks=1:allocator_may_return_null=1:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1:${UBSAN_OPTIONS:-}"

start() { # target
    mkdir -p "$work/corpus/$1" "$work/findings/$1"
    "$work/fuzz_$1" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 -max_len=32768 \
        -dict="$here/dictionary.txt" -artifact_prefix="$work/findings/$1/" \
        -print_final_stats=1 "$work/corpus/$1" "$work/seeds/$1" >"$work/$1.log" 2>&1
}

targets="json header index config model contract experiment gguf tokenizer chat torch report"
pids=""
for target in $targets; do
    if [ ! -x "$work/fuzz_$target" ]; then
        echo "fuzz_$target: not built in $work" >&2
        exit 2
    fi
    start "$target" &
    pids="$pids $!"
done

failed=0
for target in $targets; do
    pid=${pids# }
    pid=${pid%% *}
    pids=${pids# }
    pids=${pids#"$pid"}
    if wait "$pid"; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/$target.log")
        covered=$(sed -n 's/.*cov: \([0-9]*\).*/\1/p' "$work/$target.log" | tail -n 1)
        echo "fuzz_$target: ${runs:-0} runs, ${covered:-0} edges, no findings"
    else
        failed=1
        echo "fuzz_$target: a finding, see $work/findings/$target and the end of its log:" >&2
        tail -n 40 "$work/$target.log" >&2
    fi
done
exit $failed
