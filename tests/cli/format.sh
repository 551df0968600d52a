. "$ROOT/tests/cli/common"
# --format: the same result as a document, as CSV and as Markdown.
make svdllm-llama3-8b m
run dim 107 --contract "$SMALL" --format md
run dim 107 --contract "$SMALL" --format csv
run plan m --contract "$SMALL" --format md
run inspect m --contract "$SMALL" --format md
run contract show "$SMALL" --format csv
run contract list --format md | sed -n 1,6p
run verify "$ROOT/models/tiny" "$ROOT/models/tiny" --format csv | sed -n 1,4p
run dim 107 --format yaml
run dim 107 --json --format csv
run dim 107 --json --format json | sed -n 3p
# Every command that prints a table: its CSV has what its document has.
cat >same.py <<'END'
import csv, json, subprocess, sys, os
def value(row, key):
    for part in key.split("."):
        row = row.get(part) if isinstance(row, dict) else None
    return row
def text(v):
    return "" if v is None else ("no", "yes")[v] if isinstance(v, bool) else \
        " ".join(v) if isinstance(v, list) else v if isinstance(v, str) else f"{v:.9g}"
key, command = sys.argv[1], [os.environ["GAC"], *sys.argv[2:]]
out = lambda how: subprocess.run([*command, "--format", how], capture_output=True, text=True).stdout
document = json.loads(out("json"))
rows = list(csv.DictReader(out("csv").splitlines()))
wanted = document if key == "." else value(document, key)
wanted = wanted if isinstance(wanted, list) else [wanted]
assert len(rows) == len(wanted) > 0, (len(rows), len(wanted))
compared = 0
for row, entry in zip(rows, wanted):
    for column, cell in row.items():
        entry_value = value(entry, column)
        if entry_value is not None and not isinstance(entry_value, (dict, float)):
            assert cell == text(entry_value), (column, cell, entry_value)
            compared += 1
        elif isinstance(entry_value, float):
            assert abs(float(cell) - entry_value) <= 1e-6 * abs(entry_value), (column, cell)
            compared += 1
assert compared >= len(rows)
lines = out("md").splitlines()
assert sum(set(line) <= set("| -") and "-" in line for line in lines) >= 1
assert all(line.startswith("|") or line.startswith("**") or not line for line in lines)
print("same:", sys.argv[2])
END
S1=$ROOT/experiments/published/S1/h200.native.json
tiny=$ROOT/models/tiny
head -c 3000 "$tiny/heldout.txt" >text.txt
python3 "$ROOT/tools/cut_mlp.py" "$tiny" cut >/dev/null
python3 same.py dims inspect m --contract "$SMALL"
python3 same.py dims plan m --contract "$SMALL"
python3 same.py points plan m --contract "$SMALL" --pareto
python3 same.py places dim 107 --contract "$SMALL"
python3 same.py . dim 107
python3 same.py candidates dim 4096x14336 --keep 0.8 --contract "$SMALL"
python3 same.py contracts contract list
python3 same.py dims repair cut -o fit --dry-run
python3 same.py table compress "$tiny" -o small --ratio 0.3 --text text.txt --dry-run -q
python3 same.py . eval "$tiny" --perplexity text.txt -q
python3 same.py experiments experiment --list
python3 same.py claims experiment --judge "$S1"
# A name cannot break a table.
cp -r "$tiny" 'a|b,"c'
for how in csv md; do
    "$GAC" eval 'a|b,"c' --perplexity text.txt -q --format $how >$how.txt
done
python3 - <<'END'
import csv, re
rows = list(csv.reader(open("csv.txt")))
assert len(rows) == 2 and len(rows[0]) == len(rows[1]) and rows[1][0] == 'a|b,"c', rows
md = [re.split(r"(?<!\\)\|", line) for line in open("md.txt") if line[0] == "|"]
assert len(md) == 3 and len({len(cells) for cells in md}) == 1 and md[2][1].strip() == 'a\\|b,"c', md
print("whole")
END
