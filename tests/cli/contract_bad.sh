. "$ROOT/tests/cli/common"
run contract
run contract list h200
run contract show
run contract show h200 a100
run contract frob
run contract show b200
run contract show missing.json
run contract show ./
echo '{"schema":' >cut.json
run contract show cut.json
echo '{}' >empty.json
run contract show empty.json
echo '[]' >list.json
run contract show list.json
echo '{"schema":"gac.plan/1"}' >plan.json
run contract show plan.json
sed 's/"name":"small"/"name":7/' "$SMALL" >name.json
run contract show name.json
# Accuracy that is none is not shown.
"$GAC" contract show "$SMALL" --json |
    sed 's/"median_pct": [0-9.]*/"median_pct": "x"/; s/"right_pct": [0-9.]*/"right_pct": null/' >odd.json
"$GAC" contract show odd.json | grep -c 'predictions\|faster one' || true
