. "$ROOT/tests/cli/common"
# A page of results; without gnuplot, so that it is the same everywhere.
R="$ROOT/tests/data/results"
run report "$R/front.json"
run report -o page.html
run report "$R/front.json" nothing.json -o page.html
echo '{"schema":"gac.weather/1"}' >other.json
run report other.json -o page.html
echo '{"schema":"gac.front/1","points":[{"overhead_pct":1,"time_ms":"two"}]}' >bad.json
run report "$R/front.json" bad.json -o page.html
ls
mkdir bin
ln -s "$(command -v cat)" "$(command -v rm)" "$(command -v sed)" "$(command -v grep)" bin
PATH=$PWD/bin
run report "$R/front.json" "$R/inspect.json" -o page.html
run report "$R/front.json" -o page.html
run report "$R/front.json" -o page.html --force -q --figures figures
run report "$R/front.json" -o page.html --force -q --json | grep -E 'schema|page"|drawn'
grep -c 'No picture' page.html
run inspect "$ROOT/models/tiny" --html inspect.html --contract "$SMALL" -q --json | grep schema
grep -c 'The numbers' inspect.html
run inspect "$ROOT/models/tiny" --html inspect.html --contract "$SMALL" -q
run inspect "$ROOT/models/tiny" --force
