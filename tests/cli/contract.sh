. "$ROOT/tests/cli/common"
# Of bundled contracts only that they are there: their figures change.
run contract list
run contract show a100 | sed -n 2,5p
run contract show h200 | sed -n 2,5p
run contract show "$SMALL"
# Costs of cache lines are shown where a contract has them, and nowhere else.
python3 - "$SMALL" <<'END'
import json, sys
c = json.load(open(sys.argv[1]))
del c["gemm"]["F16"]["lines"], c["gemm"]["F16"]["dense_part"]
json.dump(c, open("no_lines.json", "w"))
END
run contract show no_lines.json | sed '/^BF16/q' | grep -c 'whole lines'
run contract show a100 | grep -c 'whole lines' || true
