. "$ROOT/tests/cli/common"
run contract
run contract list h200
run contract show
run contract show h200 a100
run contract frob
run contract show nonesuch
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
# Accuracy that is none is refused.
sed 's/"median_pct":[0-9.]*/"median_pct":"x"/' "$SMALL" >odd.json
run contract show odd.json
