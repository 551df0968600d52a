. "$ROOT/tests/cli/common"
# Of bundled contracts only that they are there: their figures change.
run contract list
run contract show a100 | sed -n 2,5p
run contract show h200 | sed -n 2,5p
run contract show "$SMALL"
run contract show "$SMALL" -v | sed -n '1,12p;/^sources/,$p'
# It fits a screen.
for name in a100 h200; do
    "$GAC" contract show $name | awk '{ if (length($0) > 130) print "wide: " $0 } END { print (NR <= 50) }'
done
