# The front door. Every target works from a fresh machine.
#   make          build/gac and the libraries
#   make check    everything that can be tested without a GPU
#   make check-transformers   what gac makes of every architecture of transformers; PYTHON=… has torch
#   make demo     see it work on generated checkpoints
#   make package  a Debian package, in build/package
#   make bench    the benchmarks, results to bench/results
#   make fuzz     the fuzz targets for FUZZ_SECONDS each
#   make mutants  faults put into the code, which the tests must catch
#   make format   clang-format over all sources
#   make install  to PREFIX (default /usr/local)
#   make wheel    the Python package, to build/wheel/dist
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
JOBS ?= $(shell nproc)
SOURCES = $(wildcard include/gac/*.h src/*/*.[ch] src/*/*/*.[ch] src/*/*/*.cu cli/*.[ch] experiment/*.[ch] \
    tests/*/*.[ch] tests/*/*.cu fuzz/*.[ch] bench/*.c examples/*.c)

all: build/gac

build/gac: FORCE
	@tools/setup.sh build
	@cmake -G Ninja -S . -B build -DGAC_TESTS=OFF >/dev/null
	@cmake --build build -j $(JOBS)

# The release build, because some tests are about its time and memory, and one
# under the sanitizers for all others.
check-builds:
	@tools/setup.sh check
	@cmake -G Ninja -S . -B build -DGAC_TESTS=OFF >/dev/null
	@cmake --build build -j $(JOBS)
	@cmake -G Ninja -S . -B build/check -DCMAKE_BUILD_TYPE=Debug -DGAC_SANITIZE=ON >/dev/null
	@cmake --build build/check -j $(JOBS)

check: check-builds
	@CC=clang CXX=clang++ cmake -G Ninja -S . -B build/fuzz -DGAC_TESTS=OFF -DGAC_FUZZ=ON \
	    -DCMAKE_BUILD_TYPE=Debug >/dev/null
	@cmake --build build/fuzz -j $(JOBS)
	@ctest --test-dir build/check --output-on-failure --timeout 7200 -j $(JOBS)

# PYTHON: one that has torch and transformers; by default an environment of its own.
FAMILIES = experiments/validation/families
check-transformers: build/gac
	@[ -n "$(PYTHON)" ] || tools/setup.sh transformers
	@$(or $(PYTHON),build/venv-transformers/bin/python) $(FAMILIES)/matrix.py build/gac \
	    $(FAMILIES)/results.json; status=$$?; \
	    $(or $(PYTHON),build/venv-transformers/bin/python) $(FAMILIES)/nested.py build/gac \
	    $(FAMILIES)/nested.json || status=1; \
	    python3 $(FAMILIES)/supported.py --write && exit $$status

demo: build/gac
	@tools/setup.sh demo
	@tools/demo.sh build/gac

package: build/gac
	@tools/setup.sh package
	@tools/package.sh build build/package

bench: build/gac
	@tools/setup.sh bench
	@cmake --build build --target bench_solver bench_tokenizer bench_compute
	@python3 bench/bench_inspect.py --gac build/gac --python build/venv/bin/python \
	    --out bench/results/inspect.json
	@python3 bench/bench_solver.py --bench build/bench_solver --out bench/results/solver.json
	@python3 bench/bench_repair.py --gac build/gac --python build/venv/bin/python \
	    --out bench/results/repair.json
	@build/venv/bin/python bench/bench_tokenizer.py --tokenize build/bench_tokenizer \
	    --out bench/results/tokenizer.json
	@build/bench_compute > bench/results/compute.json

fuzz:
	@tools/setup.sh check
	@CC=clang CXX=clang++ cmake -G Ninja -S . -B build/fuzz -DGAC_TESTS=OFF -DGAC_FUZZ=ON \
	    -DCMAKE_BUILD_TYPE=Debug >/dev/null
	@cmake --build build/fuzz -j $(JOBS)
	@fuzz/run.sh build/fuzz $(FUZZ_SECONDS)

mutants: check-builds
	@python3 tests/mutants/run.py --build build/check --release build --jobs $(JOBS) \
	    --out build/mutants.json

format:
	@clang-format -i $(SOURCES)

install: build/gac
	@cmake --install build --prefix $(PREFIX)
	@[ "$$(id -u)" != 0 ] || [ -n "$(DESTDIR)" ] || ldconfig

# It packs the release build, which python/CMakeLists.txt brings up to date.
wheel:
	@tools/setup.sh wheel
	@build/venv-wheel/bin/python python/make_wheel.py

clean:
	@rm -rf build

FORCE:
.PHONY: all check check-builds check-transformers demo package bench fuzz mutants format install wheel clean FORCE
