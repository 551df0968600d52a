#!/bin/sh
# Shows what gac does, on checkpoints generated as sparse files: they have the
# shapes and headers of real models and take no disk.
#   tools/demo.sh path/to/gac
set -eu
cd "$(dirname "$0")/.."
gac=${1:-build/gac}
out=build/demo
mkdir -p "$out"

make_one() { # recipe
    if [ ! -d "$out/$1" ]; then
        python3 tools/make_checkpoint.py "$1" "$out/$1" >/dev/null
    fi
}

show() { # command
    echo
    echo "\$ gac $*"
    "$gac" "$@"
}

echo "--- One size: what 107 costs on an H200, and what to use instead"
show dim 107 --gpu h200

echo
echo "--- Llama-3-8B by PaLU: per-head ranks 114 to 125, 512 of them"
make_one palu-llama3-8b
show inspect "$out/palu-llama3-8b" --gpu h200

echo
echo "--- Llama-3-8B by SVD-LLM, 15 % smaller: ranks as they fall"
make_one svdllm-llama3-8b
show inspect "$out/svdllm-llama3-8b" --gpu h200

echo
echo "--- Plan, repair, verify, undo: a small SVD-LLM model with real bytes in it"
small="$out/svdllm"
rm -rf "$small" "$small-fit" "$small-back" "$out/plan.json"
python3 tools/make_checkpoint.py svdllm "$small" --fill 1 >/dev/null
show plan "$small" --strategy solve --max-overhead 10 -o "$out/plan.json"
show repair "$small" -o "$small-fit" --plan "$out/plan.json"
show verify "$small" "$small-fit"
show repair "$small-fit" -o "$small-back" --undo
show verify "$small" "$small-back"
cmp "$small/config.json" "$small-back/config.json"

echo
echo "--- In your CI: exit 5 when a size is misaligned"
status=0
"$gac" inspect "$out/svdllm-llama3-8b" --fail-on misaligned >/dev/null || status=$?
echo "exit status $status"
[ "$status" = 5 ]
