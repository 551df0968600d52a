. "$ROOT/tests/cli/common"
run_json '. schema contracts.0. contracts.0.name contracts.1.name' contract list --json
run_json '. schema name' contract show h200 --json
# What show prints is a contract again.
"$GAC" contract show h200 --json >own.json
run_json 'schema name' contract show ./own.json --json
