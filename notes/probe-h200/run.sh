#!/bin/sh
# Probes an H200 in three dtypes, on a machine that is reached for some minutes at a time.
#
#   run.sh start FOLDER     in the background; FOLDER has gac, libgac.so, libgac_cuda.so and libunistring.so.2
#   run.sh wait SECONDS OUT until it is done, at most SECONDS; then puts what it wrote into OUT
#   run.sh model FOLDER OUT with its contract, Llama-3-8B by SVD-LLM at 85 %
#
# The log has the second before each line. --max-time is above the program's own 255 s: a slow host drops no points.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
work=/tmp/gac-probe-h200

use() {
    export LD_LIBRARY_PATH="$1" GAC_BACKEND_PATH="$1/libgac_cuda.so" PYTHONUNBUFFERED=1
    GAC_CUDNN=$(python3 -c 'import nvidia.cudnn as x; print(list(x.__path__)[0])')/lib/libcudnn.so.9
    export GAC_CUDNN
}

case $1 in
start)
    mkdir "$work"
    use "$2"
    echo "$(date +%s.%N) on $(nvidia-smi -L | head -n 1)" > "$work/log.txt" # the very card
    echo "$(date +%s.%N) started" >> "$work/log.txt"
    setsid nohup sh -c "
        { '$2/gac' probe --name h200 --dtype F16,BF16,F8_E4M3 --seed 17 --max-time 290 -o '$work/h200.json' \
            --raw '$work/raw.json' --runtime '$root/experiments/validation/advice/runtime.h200.json' \
            --attention pytorch -v 2>&1; echo \"ended \$?\"; } |
        while IFS= read -r line; do echo \"\$(date +%s.%N) \$line\"; done >> '$work/log.txt'" \
        > /dev/null 2>&1 < /dev/null &
    ;;
wait)
    end=$(($(date +%s) + $2))
    [ -f "$work/log.txt" ] || { echo "nothing was started on this machine"; exit 1; }
    while ! grep -q ' ended ' "$work/log.txt" && [ "$(date +%s)" -lt "$end" ]; do sleep 1; done
    grep -v ' of ' "$work/log.txt" | tail -n 40
    grep -q ' ended 0' "$work/log.txt" || exit 0
    cp "$work/log.txt" "$work/h200.json" "$3"
    gzip -9nc "$work/raw.json" > "$3/raw.json.gz"
    ;;
model)
    use "$2"
    [ -f "$work/h200.json" ] || { echo "there is no contract on this machine"; exit 1; }
    rm -rf "$work/ck"
    python3 "$root/tools/make_checkpoint.py" svdllm-llama3-8b "$work/ck"
    "$2/gac" probe --model "$work/ck" --workload prefill:1x2048,decode:1@2048 --contract "$work/h200.json" \
        --raw "$work/model.raw.json" -o "$work/model.json" --force -v 2>&1 | tee "$3/model.log.txt"
    gzip -9nc "$work/model.raw.json" > "$3/model.raw.json.gz"
    ;;
esac
