# DeepInfer in C: the build. `make help` lists what can be asked of it.
#
# MODE picks the build that every target works on: release (default), asan, tsan or fuzz; each has
# its own folder below build/. Packages are found by pkg-config; scripts/install-deps.sh installs
# what is missing.

MODE   ?= release
PREFIX ?= /usr/local
PYTHON ?= /usr/bin/python3
BUILD  := build/$(MODE)

.DEFAULT_GOAL := all

include mk/config.mk
include mk/build.mk
include mk/cuda.mk
include mk/test.mk
include mk/install.mk

.PHONY: all demo test soak bench format lint asan tsan fuzz install uninstall clean help deps

all: $(BUILD)/deepinfer $(BUILD)/libdeepinfer.a $(BUILD)/libdeepinfer.so cuda

help:
	@echo 'make            build build/release/deepinfer and the library'
	@echo 'make CUDA=0|1    leave the CUDA part out, or insist on it (default: built if nvcc is there)'
	@echo 'make demo       install what is missing, build, and let the bundled model answer'
	@echo 'make test       install what is missing, build and run every test'
	@echo 'make soak       run the random tests SOAK_EVENTS (50) times as long'
	@echo 'make bench      run the benchmarks in bench/'
	@echo 'make asan tsan  run the tests in a build with sanitizers'
	@echo 'make fuzz       run every fuzzer for FUZZ_SECONDS (60)'
	@echo 'make format     rewrite the sources in the project'"'"'s layout'
	@echo 'make lint       layout, clang-tidy, and includes that climb from a room to one above'
	@echo 'make install    into PREFIX (/usr/local), honours DESTDIR; make uninstall takes it away'
	@echo 'make clean      remove build/'

deps:
	@scripts/install-deps.sh $(if $(filter tsan fuzz,$(MODE)),--dev)

DEMO_PROMPT ?= Who wrote Dracula?

demo: deps
	@$(MAKE) --no-print-directory all
	$(BUILD)/deepinfer run -m models/demo -p '$(DEMO_PROMPT)' --temperature 0

clean:
	rm -rf build
