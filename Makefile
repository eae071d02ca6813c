# The front door: make, make demo, make test, make bench, make install. CMakeLists.txt is the build itself.
BUILD ?= build
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
CTEST = ctest --output-on-failure --no-tests=error -j $(JOBS)

# The compiler of GPU code, where it is named: make DEEPWELL_NVCC=/path/to/nvcc; DEEPWELL_NVCC= builds without GPU code.
NVCC = $(if $(filter undefined,$(origin DEEPWELL_NVCC)),,-DDEEPWELL_NVCC=$(DEEPWELL_NVCC))

# Configures the build folder of the target with the options given, unless that was done. cmake --build then notices new files itself.
CONFIGURE = if [ ! -f $(1)/CMakeCache.txt ]; then cmake -S . -B $(1) -G "$$(command -v ninja >/dev/null && echo Ninja || echo 'Unix Makefiles')" $(NVCC) $(2); \
    $(if $(NVCC),else cmake $(NVCC) $(2) $(1) >/dev/null;) fi

all:
	@command -v cmake >/dev/null || { echo "make: cmake is missing; 'make setup' installs what is needed" >&2; exit 1; }
	@$(call CONFIGURE,$(BUILD),$(if $(DEEPWELL_ASSEMBLE),-DDEEPWELL_ASSEMBLE=$(DEEPWELL_ASSEMBLE)))
	@cmake --build $(BUILD) -j $(JOBS)

# Installs what is missing, builds, and runs the main job on the carried model.
demo:
	$(MAKE) setup
	$(MAKE) all
	$(BUILD)/examples/demo models/kjv.pt2 models/kjv.heldout.txt

# What each commit has to pass, without a GPU: all tests with gcc; all that is C again with clang under the address and undefined-behaviour sanitizers; what runs on
# threads under the thread sanitizer. Of what is long, another part for each commit (CONTRIBUTING.md, "Tests"). Where all with gcc took longer than LONG seconds, as on a slow machine that has compiled all of
# it, every second test under the sanitizers is left to another commit: which ones changes with every second commit, as the turns below change with each.
LONG = 2400
test:
	$(MAKE) setup
	@mkdir -p $(BUILD) && date +%s >$(BUILD)/tests-began
	scripts/fixtures.sh & fixtures=$$!; $(MAKE) all; built=$$?; wait $$fixtures && exit $$built    # one process, beside the compilers
	$(CTEST) --test-dir $(BUILD)
	took=$$(($$(date +%s) - $$(cat $(BUILD)/tests-began))) part=$$(scripts/part.sh 4); every=1,,1; \
	[ $$took -le $(LONG) ] || { echo "make test: $$took s so far, so of the tests under the sanitizers every second one" && every=$$(($${part%/*} / 2 + 1)),,2; }; \
	$(MAKE) -j 2 test-sanitized test-threads EVERY=$$every

# Not again: what tests text, headers, documents and what is installed, and what spends its time in Python; and of the longest, in turns, a half.
TURNS_0 = oom_scenarios|engine_packed|graphs_commit|models_step|train_train
TURNS_1 = serve_schedules|engine_chain|serve_same|sim_counts|serve_machine
EVERY = 1,,1
LEFT = $(TURNS_$(firstword $(subst /, ,$(shell scripts/part.sh 2))))
test-sanitized:
	@$(call CONFIGURE,$(BUILD)/sanitized,-DCMAKE_C_COMPILER=clang-19 -DDEEPWELL_SANITIZE=address$(comma)undefined -DDEEPWELL_FATBINS=$(BUILD)/images)
	@cmake --build $(BUILD)/sanitized -j $(JOBS)
	$(CTEST) --test-dir $(BUILD)/sanitized -LE 'project|docs|install' -E '^(num_oracle|$(LEFT))$$' -I $(EVERY)

test-threads:
	@$(call CONFIGURE,$(BUILD)/threads,-DCMAKE_C_COMPILER=clang-19 -DDEEPWELL_SANITIZE=thread -DDEEPWELL_NVCC=)
	@cmake --build $(BUILD)/threads -j $(JOBS) --target test_base_pool test_comm_comm test_comm_ranks test_conform_kernels test_serve_ranks test_serve_ranks_fail test_serve_service
	$(CTEST) --test-dir $(BUILD)/threads -R '^(base_pool|comm_comm|comm_ranks|conform_kernels|serve_ranks|serve_ranks_fail|serve_service)$$'

# Before a release, by hand: all of what each commit takes a part of. Hours. GPU names a device (cuda), where there is one.
test-release: LONG = 1000000
test-release: test
	for part in 0 1 2 3 4 5 6 7 8 9; do DEEPWELL_PART=$$part $(CTEST) --test-dir $(BUILD)/sanitized -R '^(capture_models|conform_kernels|models_models|sim_model)$$' || exit 1; done
	for part in 0 1 2 3 4 5 6 7 8 9; do DEEPWELL_PART=$$part $(CTEST) --test-dir $(BUILD) -R '^(conform_cuda|project_other_family)$$' || exit 1; done
	for part in 0 1 2 3 4 5 6 7 8 9; do DEEPWELL_PART=$$part $(CTEST) --test-dir $(BUILD)/threads -R '^conform_kernels$$' || exit 1; done
	$(CTEST) --test-dir $(BUILD)/sanitized -R '^($(LEFT))$$'
	for part in 0 1; do DEEPWELL_PART=$$part $(CTEST) --test-dir $(BUILD) -R '^sim_tiles$$' || exit 1; done
	$(BUILD)/tests/test_conform_kernels
	scripts/nvcc.sh disassembler && python3 scripts/audit.py
	sh tests/python/wheel.sh --part 0/1
	for device in sim:h200 sim:b200 sim:rtx5090 $(GPU); do scripts/sweep.sh $$device || exit 1; done
	for device in $(GPU); do $(BUILD)/tests/test_serve_same --device $$device --large && $(BUILD)/tests/test_serve_invariant --device $$device --large || exit 1; done
	DEEPWELL_BUILD=$(BUILD) bash tests/sim/test_conform.sh --all
	DEEPWELL_BUILD=$(BUILD) python3 tests/sim/test_chips.py --all
	python3 tests/sim/mutants/run.py
	DEEPWELL_PART=0 $(CTEST) --test-dir $(BUILD) -R '^install_nvcc$$'
	$(if $(GPU),$(BUILD)/tests/test_conform_kernels --device $(GPU))
	scripts/fuzz.sh 1000000

comma := ,

# Ours beside PyTorch on this machine: whole models on a GPU, where there is one, an hour or so, and broken off it goes on where it was; whole models on the CPU; GPT-2 there, which writes 500 MB once.
bench: all
	scripts/python.sh
	if $(BUILD)/python/bin/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then \
	    mkdir -p $(BUILD)/bench && $(BUILD)/python/bin/python bench/models.py --warm 4 --rows $(BUILD)/bench/models.jsonl --continue; fi
	$(BUILD)/python/bin/python bench/cpu_models.py
	build/venv/bin/python bench/bench.py --command $(BUILD)/deepwell

# Every architecture of the catalogue through PyTorch's front door; the table goes to docs/zoo.md. An hour or so; broken off, it goes on where it was.
zoo:
	$(MAKE) setup
	scripts/python.sh
	build/python/bin/python models/zoo.py --jobs $(JOBS) --rows build/zoo.jsonl --write docs/zoo.md

# A Debian package, in the build folder.
package: all
	cd $(BUILD) && cpack -G DEB

# A wheel for other machines, in dist: with the GPU code and the libraries that it needs inside.
wheel: all
	scripts/wheel.sh dist

install: all
	cmake --install $(BUILD) --prefix $(PREFIX)

# The packages that the build and the tests need, on Debian, and the compiler of GPU code from PyPI; nothing is done when all are there.
setup:
	@scripts/setup.sh
	@$(if $(NVCC),,scripts/nvcc.sh find >/dev/null || scripts/nvcc.sh get)

clean:
	cmake --build $(BUILD) --target clean

.PHONY: all demo test test-sanitized test-threads test-release bench zoo wheel install package setup clean
