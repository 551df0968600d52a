#!/bin/sh
# SmolLM2-135M, factorised with ranks as they fall, before and after repair: the
# perplexity of WikiText-2 on the reference device, which must not differ in a digit.
#   experiments/published/C5/smollm2.sh GAC SMOLLM2_GGUF WIKI_TEST_RAW OUT_DIR [WINDOWS]
set -eu
cd "$(dirname "$0")/../../.."
gac=$1 gguf=$2 text=$3 out=$4 windows=${5:-0}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
limit=""
[ "$windows" = 0 ] || limit="--max-windows $windows"
"$gac" convert "$gguf" -o "$work/dense" --dtype F32 -q
build/venv/bin/python experiments/published/C5/compress_smollm2.py "$work/dense" "$work/falls"
"$gac" repair "$work/falls" -o "$work/repaired" -q
"$gac" verify "$work/falls" "$work/repaired" --forward --json -q >"$out/smollm2.verify.json"
for name in falls repaired dense; do
    # shellcheck disable=SC2086
    "$gac" eval "$work/$name" --perplexity "$text" $limit --device reference --json -q \
        >"$out/smollm2.$name.json"
done
grep -h '"value"' "$out"/smollm2.falls.json "$out"/smollm2.repaired.json | uniq | wc -l | grep -qx 1
