#!/bin/sh
# Shows what gac does, on checkpoints generated as sparse files, which have the
# shapes and headers of real models and take no disk, and on a small real model.
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
    printf '$ gac'
    for word in "$@"; do
        case $word in
        *" "*) printf ' "%s"' "$word" ;;
        *) printf ' %s' "$word" ;;
        esac
    done
    echo
    "$gac" "$@"
}

echo "--- One size: what 107 costs on an H200, and what to use instead"
show dim 107 --gpu h200

echo
echo "--- Llama-3-8B by PaLU: per-head ranks 114 to 125, 512 of them"
make_one palu-llama3-8b
show inspect "$out/palu-llama3-8b" --gpu h200

echo
echo "--- Llama-3-8B by SVD-LLM, 13.1 % smaller (linear layers at 85 %): ranks as they fall"
make_one svdllm-llama3-8b
show inspect "$out/svdllm-llama3-8b" --gpu h200

echo
echo "--- Plan, repair, verify, undo: a trained model whose MLPs were cut"
small="$out/tiny-cut"
rm -rf "$small" "$small-fit" "$small-back" "$out/plan.json"
python3 tools/cut_mlp.py models/tiny "$small"
show plan "$small" --strategy minimal -o "$out/plan.json"
show repair "$small" -o "$small-fit" --plan "$out/plan.json"
show verify "$small" "$small-fit" --forward
show repair "$small-fit" -o "$small-back" --undo
show verify "$small" "$small-back"
cmp "$small/config.json" "$small-back/config.json"

echo
echo "--- Still the same model: perplexity to the last digit, and what it says"
text=models/tiny/heldout.txt
show eval "$small" --perplexity "$text" --max-windows 8 --device reference -q
show eval "$small-fit" --perplexity "$text" --max-windows 8 --device reference -q
show generate "$small-fit" "The file system" --max-tokens 40 --temperature 0.7 --seed 1 -q
echo

echo
echo "--- Compress: 30 % of the linear weights removed, every size aligned, beside SVD-LLM"
rm -rf "$out/smaller" "$out/svd-llm"
half=$(($(wc -c <"$text") / 2))
head -c "$half" "$text" >"$out/calibration.txt"
tail -c "$half" "$text" >"$out/test.txt"
show compress models/tiny -o "$out/smaller" --ratio 0.3 --text "$out/calibration.txt" \
    --test "$out/test.txt" -q
show compress models/tiny -o "$out/svd-llm" --ratio 0.3 --method svd-llm --align none \
    --text "$out/calibration.txt" --test "$out/test.txt" -q

echo
echo "--- In your CI: exit 5 when a size is misaligned"
status=0
"$gac" inspect "$out/svdllm-llama3-8b" --fail-on misaligned >/dev/null || status=$?
echo "exit status $status"
[ "$status" = 5 ]

echo
echo "--- What all this looks like: one page"
results="$out/results"
rm -rf "$results"
mkdir "$results"
for model in palu-llama3-8b svdllm-llama3-8b; do
    "$gac" inspect "$out/$model" --gpu h200 --json >"$results/$model.json"
done
"$gac" plan "$out/palu-llama3-8b" --gpu h200 --pareto --json >"$results/front.json"
"$gac" plan "$out/palu-llama3-8b" --gpu h200 --json >"$results/minimal.json"
"$gac" repair "$small" -o "$out/unwritten" --plan "$out/plan.json" --dry-run --json >"$results/repair.json"
# Again, for the document of the result.
rm -rf "$out/again"
"$gac" compress models/tiny -o "$out/again" --ratio 0.3 --text "$out/calibration.txt" \
    --test "$out/test.txt" -q --json >"$results/compress.json"
rm -rf "$out/again"
"$gac" eval "$out/svd-llm" --perplexity "$out/test.txt" -q --json >"$results/svd-llm.json"
for experiment in S1 G3; do
    cp "experiments/published/$experiment/h200.pytorch.json" "$results/$experiment.json"
done
if ! command -v gnuplot >/dev/null; then
    echo "(gnuplot draws the figures: apt-get install gnuplot-nox)"
fi
show report "$results/svdllm-llama3-8b.json" "$results/palu-llama3-8b.json" \
    "$results/minimal.json" "$results/front.json" "$results/repair.json" "$results/compress.json" \
    "$results/svd-llm.json" "$results/S1.json" "$results/G3.json" -o "$out/report.html" --title "What gac found" --force
echo
echo "Open this page in a browser: $PWD/$out/report.html"
