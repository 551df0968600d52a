. "$ROOT/tests/cli/common"
run
run --help
run -h
run help
run help dim
run help frob
run frob
run --frob
run "$(printf 'a\nb')"
