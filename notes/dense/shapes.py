#!/usr/bin/env python3
"""The shapes that were timed, in the order they were timed in: python3 shapes.py FOLDER"""
import math
import pathlib
import random
import sys

ROWS = [1, 1, 1, 2, 3, 4, 5, 8, 13, 16, 24, 31, 48, 64, 100, 128, 200, 256, 384, 512, 777, 800, 1024, 1500,
        2048, 3000, 4096, 6000, 8192]
SIZES = [1024, 1741, 2048, 4096, 5120, 11008, 14336]
WIDTHS = [576, 1024, 2048, 3072, 4096, 5120, 8192, 11008, 14336]
DENSE = range(192, 4097, 8)


def product(ms, ns, ks):
    return [(m, n, k) for m in ms for n in ns for k in ks]


def draw_size(draw, unit=None):
    while True:
        about = draw.choice(SIZES) * draw.uniform(.85, 1.15) if draw.random() < .5 else \
            math.exp(draw.uniform(math.log(192), math.log(16384)))
        step = unit or (128 if draw.random() < .4 else 8)
        size = int(about) // step * step
        if size >= step:
            return size


def main():
    folder = pathlib.Path(sys.argv[1])

    def write(name, shapes, draw):
        draw.shuffle(shapes)
        (folder / name).write_text("".join(f"F16 {m} {n} {k}\n" for m, n, k in shapes))

    lines = product([16, 64, 256, 512, 1024, 2048, 4096, 1], DENSE, [1024, 4096, 8192]) + \
        product([2048, 256, 1], range(4104, 14337, 8), [4096]) + \
        product([1, 16, 256, 2048], [4096], range(512, 4609, 8)) + \
        product([1, 256, 2048], [1024], range(512, 4609, 8)) + \
        product([256, 1024, 2048], range(512, 1025, 8), [512, 1536, 2048, 3072, 5120, 6144, 11008, 14336])
    write("f16.1.txt", sorted(set(lines)), random.Random(1))
    draw = random.Random(5)
    more = product([256, 512, 1024, 2048, 4096], DENSE, [512, 2048, 14336]) + \
        product([128], DENSE, [512, 1024, 2048, 4096, 8192, 14336])
    write("f16.2.txt", more, draw)
    held = []
    while len(held) < 900:
        shape = (draw.choice(ROWS), draw_size(draw), draw_size(draw))
        if math.prod(shape) < 4e11:
            held.append(shape)
    groups = []
    for _ in range(150):
        m = draw.choice([1, 16, 128, 256, 512, 1024, 2048, 4096])
        width = draw_size(draw, 8) if draw.random() < .5 else draw.choice(WIDTHS)
        size, is_n = draw_size(draw, 8), draw.random() < .5
        near = {size + x for x in (0, 8, 16, 24, 32, 48, 64)} | {-(-size // x) * x for x in (64, 128)}
        groups += [(m, x, width) if is_n else (m, width, x) for x in near]
    write("held.txt", sorted(set(held)), draw)
    write("groups.txt", sorted(set(groups)), draw)
    mix = draw.sample(more, 800)
    for m in (1, 2, 4, 8, 16, 32, 64, 96, 192, 384, 768, 1536, 3072, 8192, 16384):
        for _ in range(80):
            shape = (m, draw_size(draw, draw.choice([8, 2, 1])), draw_size(draw, draw.choice([8, 2, 1])))
            if math.prod(shape) < 1e12:
                mix.append(shape)
    write("mix.txt", mix, draw)
    wide, draw = range(4104, 16385, 8), random.Random(11)
    small = product([256, 1024, 4096], wide, [512])
    others = product([1024, 4096], wide, [1024]) + product([2048], wide, [512]) + product([256], wide, [8192])
    draw.shuffle(small)
    draw.shuffle(others)
    (folder / "wide.txt").write_text("".join(f"F16 {m} {n} {k}\n" for m, n, k in small + others))


if __name__ == "__main__":
    main()
