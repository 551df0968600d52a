. "$ROOT/tests/cli/common"
# Of bundled contracts only that they are there: their figures change.
run contract list
run contract show a100 | grep '^how many'
run contract show h200 | grep '^how many'
run contract show "$SMALL"
run contract show "$SMALL" -v | sed -n '1,12p;/^sources/,$p'
# It fits a screen.
for name in a100 h200; do
    "$GAC" contract show $name | awk '{ if (length($0) > 102) print "wide: " $0 } END { print (NR <= 50) }'
done
