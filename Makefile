# The front door: make, make test, make install. CMakeLists.txt is the build itself.
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

install: all
	cmake --install $(BUILD) --prefix $(PREFIX)

# The packages that the build and the tests need, on Debian; nothing is done when all are there.
setup:
	scripts/setup.sh

clean:
	cmake --build $(BUILD) --target clean

.PHONY: all test install setup clean
