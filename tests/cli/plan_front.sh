. "$ROOT/tests/cli/common"
# A front with more points than lines: some are shown, all are in the file, and it says so.
make svdllm-llama3-8b m
run plan m --contract "$SMALL" --pareto --data front.dat >front.txt
grep -c '^[^#]' front.dat
# The front is drawn below.
sed -n '/points, /,$p' front.txt
run plan m --contract "$SMALL" --pareto | grep ' are shown'
python3 - <<'EOT'
points = [line.split() for line in open("front.dat") if line[0] != "#"]
lines = [line.split() for line in open("front.txt") if line.strip() and line.split()[0].isdigit() and "points" not in line]
lines = [line for line in lines if len(line) == 3]
every = {p[0]: float(p[2]) for p in points}
assert len(lines) == 40 and lines[0][0] == points[0][0] and lines[-1][0] == points[-1][0]
assert all(abs(every[b] - float(t)) < 1e-4 for b, _, t in lines)
bytes_, times = [int(x[0]) for x in lines], [float(x[2]) for x in lines]
assert bytes_ == sorted(set(bytes_))
# No part of the front is left out but where the front itself jumps.
def gaps(values):
    return max(abs(b - a) for a, b in zip(values, values[1:])) / abs(values[-1] - values[0])
assert gaps(bytes_) < gaps([int(p[0]) for p in points]) + 0.06, gaps(bytes_)
assert gaps(times) < gaps([float(p[2]) for p in points]) + 0.06, gaps(times)
print("well spread")
EOT
