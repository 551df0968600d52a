. "$ROOT/tests/cli/common"
echo "the parent is this shell, and lives"
export GAC_PARENT=$$
run dim 107
echo "the parent has ended, and another process took its place"
export GAC_PARENT=1
sh -c '"$GAC" dim 107; echo "exit $?"' 2>/dev/null
