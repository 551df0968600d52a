. "$ROOT/tests/cli/common"
# Every command explains itself, with an example.
commands=$("$GAC" help --commands)
echo $commands
[ "$commands" = "$("$GAC" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p')" ] || echo "the usage lists others"
for command in $commands; do
    run "$command" --help
    "$GAC" "$command" --help | grep -A 1 '^examples*:' | grep -c 'gac '"$command"
    "$GAC" "$command" -h | grep -c '^usage: gac '"$command"
    "$GAC" "$command" --help | grep -n '.\{97,\}'
done
run help --help
run help frob
run help dim plan
