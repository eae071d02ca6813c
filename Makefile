# The front door: make, make test, make bench, make install. CMakeLists.txt is the build itself.
BUILD ?= build
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
GENERATOR := $(if $(shell command -v ninja),Ninja,Unix Makefiles)

all: $(BUILD)/CMakeCache.txt
	cmake --build $(BUILD) -j $(JOBS)

$(BUILD)/CMakeCache.txt:
	cmake -S . -B $(BUILD) -G "$(GENERATOR)"

test: all
	ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

# Ours beside PyTorch eager on this machine; writes a model of 500 MB once.
bench: all
	scripts/venv.sh
	build/venv/bin/python bench/bench.py --command $(BUILD)/deepwell

install: all
	cmake --install $(BUILD) --prefix $(PREFIX)

# The packages that the build and the tests need, on Debian; nothing is done when all are there.
setup:
	scripts/setup.sh

clean:
	cmake --build $(BUILD) --target clean

.PHONY: all test bench install setup clean
