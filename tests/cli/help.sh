. "$ROOT/tests/cli/common"
# Every command that the usage lists explains itself, with an example.
commands=$("$GAC" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p')
echo $commands
for command in $commands; do
    run "$command" --help
    "$GAC" "$command" --help | grep -c '^example: gac '"$command"
    "$GAC" "$command" -h | grep -c '^usage: gac '"$command"
done
