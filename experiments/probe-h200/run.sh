#!/bin/sh
# Probes an H200 in three dtypes, on a machine that is reached for some minutes at a time.
#
#   run.sh start FOLDER     in the background; FOLDER has gac, libgac.so, libgac_cuda.so and libunistring.so.2
#   run.sh wait SECONDS OUT until it is done, at most SECONDS; then puts what it wrote into OUT
#
# The log has the second before each line.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
work=/tmp/gac-probe-h200

case $1 in
start)
    mkdir "$work"
    export LD_LIBRARY_PATH="$2" GAC_BACKEND_PATH="$2/libgac_cuda.so" PYTHONUNBUFFERED=1
    GAC_CUDNN=$(python3 -c 'import nvidia.cudnn as x; print(list(x.__path__)[0])')/lib/libcudnn.so.9
    export GAC_CUDNN
    echo "$(date +%s.%N) started" > "$work/log.txt"
    setsid nohup sh -c "
        { '$2/gac' probe --name h200 --dtype F16,BF16,F8_E4M3 --seed 4 -o '$work/h200.json' \
            --raw '$work/raw.json' --runtime '$root/experiments/advice/runtime.h200.json' \
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
esac
