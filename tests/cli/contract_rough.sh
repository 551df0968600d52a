. "$ROOT/tests/cli/common"
make svdllm m
cat "$SMALL" | python3 -c '
import json, sys
c = json.load(sys.stdin)
c["name"] = "mine"
c["accuracy"]["gemm"]["F16"].update(median_pct=12.5, p95_pct=20)
c["accuracy"]["sdpa"]["F16"].update(median_pct=1, p95_pct=40.25)
json.dump(c, open("mine.json", "w"))'
run contract show mine.json | grep rough
run inspect m --dtype F16 --contract mine.json | grep note
run_json notes inspect m --dtype F16 --contract mine.json --json
run plan m --dtype F16 --contract mine.json | grep -v '^ \|^$\|^bytes'
run plan m --dtype F16 --contract mine.json -q | grep -c rough
# Of other dtypes nothing bad is stated, and of the bundled one.
run inspect m --dtype BF16 --contract mine.json | grep -c note
run plan m --dtype BF16 --contract mine.json | grep -c rough
run contract show "$SMALL" | grep -c rough
run inspect m --dtype F16 --contract "$SMALL" | grep -c note || true
