. "$ROOT/tests/cli/common"
make svdllm bad
make mistral other
run_json 'summary.n_misaligned_all' inspect bad --fail-on misaligned --json
"$GAC" inspect bad --fail-on misaligned >/dev/null
echo "exit $?"
"$GAC" inspect bad >/dev/null
echo "exit $?"
run_json 'summary.n_misaligned_all' inspect other --json
"$GAC" inspect other --fail-on misaligned >/dev/null
echo "exit $?"
# Aligned on one GPU, not once split.
"$GAC" inspect other --fail-on misaligned --tp 4096 >/dev/null
echo "exit $?"
