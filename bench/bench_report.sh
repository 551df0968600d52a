#!/bin/sh
# Size of the page of all published experiments, and the time to make it: the best of five.
#   bench/bench_report.sh build/gac > bench/results/report.txt
set -eu
cd "$(dirname "$0")/.."
gac=${1:-build/gac}
page=$(mktemp -d)
trap 'rm -rf "$page"' EXIT
echo "\$ gac report experiments/published/*/h200.native.json experiments/published/*/h200.pytorch.json -o page.html"
python3 - "$gac" "$page/page.html" experiments/published/*/h200.native.json \
    experiments/published/*/h200.pytorch.json <<'END'
import os, subprocess, sys, time
gac, page, *results = sys.argv[1:]
seconds = []
for _ in range(5):
    start = time.monotonic()
    subprocess.run([gac, "report", *results, "-o", page, "--force"], check=True, stdout=subprocess.DEVNULL)
    seconds.append(time.monotonic() - start)
text = open(page, encoding="utf-8").read()
print(f"{len(results)} results, {text.count('<figure>')} figures, {text.count('<svg class')} drawn")
print(f"page {os.path.getsize(page)} bytes (aim: under 3 MB)")
print(f"made in {min(seconds):.2f} s, at worst {max(seconds):.2f} s of five (aim: under 2 s)")
END
echo "machine: $(uname -m), $(nproc) cores, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1); $(gnuplot --version)"
echo "date: $(date -u +%F), commit $(git rev-parse --short HEAD)"
