# Tests, benches, checks. A test is tests/<room>/test_*.c (cmocka, one program each) or an
# executable tests/<room>/*.sh or *.py; scripts/run-tests.sh runs them and prints the total.

TEST_SRC := $(sort $(wildcard tests/*/test_*.c tests/*/*/test_*.c))
TEST_BIN := $(TEST_SRC:%.c=$(BUILD)/%)
TEST_SUPPORT := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/support/*.c))
# Programs that tests run.
TEST_HELPERS := $(BUILD)/tests/server/scripted_server
BENCH_SRC := $(sort $(wildcard bench/*.c bench/server/*.c))
BENCH_BIN := $(BENCH_SRC:%.c=$(BUILD)/%)
FUZZ_SRC := $(sort $(wildcard tests/fuzz/fuzz_*.c))
FUZZ_BIN := $(FUZZ_SRC:%.c=build/fuzz/%)
FUZZ_SECONDS ?= 60
# What bench/run.sh gets: --record, names of benchmarks.
BENCH ?=

$(TEST_BIN) $(TEST_SUPPORT:.o=): CPPFLAGS += -Itests
$(TEST_SUPPORT) $(TEST_BIN:=.o) $(TEST_HELPERS:=.o) \
    build/fuzz/tests/fuzz/fuzz_server_body.o build/fuzz/tests/support/scripted.o: CPPFLAGS += -Itests

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(TEST_SUPPORT) $(BUILD)/libdeepinfer.a
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $^ $(LDLIBS) -lcmocka -o $@

# The program's own tests take its objects too, all but main().
$(BUILD)/tests/cli/%: $(BUILD)/tests/cli/%.o $(TEST_SUPPORT) $(filter-out %/main.o,$(CLI_OBJ)) \
    $(SERVER_OBJ) $(BUILD)/libdeepinfer.a
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $^ $(SERVER_LDLIBS) $(LDLIBS) -lcmocka -o $@

# So do the server's.
$(BUILD)/tests/server/%: $(BUILD)/tests/server/%.o $(TEST_SUPPORT) $(SERVER_OBJ) \
    $(BUILD)/libdeepinfer.a
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $^ $(SERVER_LDLIBS) $(LDLIBS) -lcmocka -o $@

# The card that is none (tests/simcard/simcard.h), opened in place of the CUDA part.
SIMCARD := $(BUILD)/tests/simcard/libsimcard.so
SIMCARD_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/simcard/*.c))
$(SIMCARD_OBJ): CPPFLAGS += -Itests
$(SIMCARD): $(SIMCARD_OBJ) $(BUILD)/libdeepinfer.a
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,--exclude-libs,ALL $^ $(LDLIBS) -o $@

# The card on which everything can go wrong (tests/badcard/badcard.h): needs CUDA's headers alone.
BADCARD := $(if $(wildcard $(CUDA_DIR)/include/cuda_runtime_api.h),\
    $(BUILD)/tests/badcard/libbadcard.so)
BADCARD_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/badcard/*.c))
$(BADCARD_OBJ): CPPFLAGS += -Itests -isystem $(CUDA_DIR)/include
$(BADCARD_OBJ): CFLAGS += -Wno-unused-parameter
$(BUILD)/tests/badcard/libbadcard.so: $(BADCARD_OBJ) $(CUDA_SRC:%.c=$(BUILD)/%.o) \
    $(BUILD)/libdeepinfer.a
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,--exclude-libs,ALL $^ $(LDLIBS) -o $@

$(BUILD)/bench/server/%: $(BUILD)/bench/server/%.o $(BUILD)/tests/support/scripted.o $(SERVER_OBJ) $(BUILD)/libdeepinfer.a
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $^ $(SERVER_LDLIBS) $(LDLIBS) -o $@

# Its ceilings are to be measured by other threads than the ones it judges.
$(BUILD)/bench/ops $(BUILD)/bench/ops.o: CFLAGS += -fopenmp

# What benchmarks share among themselves, and with the tests.
$(BUILD)/bench/prefix.o $(BUILD)/bench/sched.o: CPPFLAGS += -Ibench -Itests

# A card's ops, and the model of full width on one.
BENCH_OPS := cuda cuda_state cuda_rows
BENCH_WIDE := cuda_model cuda_drafts
BENCH_CARD := $(BENCH_OPS) $(BENCH_WIDE) support/card support/wide support/synthetic
$(BENCH_OPS:%=$(BUILD)/bench/%): $(BUILD)/bench/support/card.o $(BUILD)/bench/support/synthetic.o
$(BENCH_WIDE:%=$(BUILD)/bench/%): $(BUILD)/bench/support/wide.o $(BUILD)/bench/support/synthetic.o
$(BENCH_CARD:%=$(BUILD)/bench/%.o): CPPFLAGS += -Ibench

$(BUILD)/bench/%: $(BUILD)/bench/%.o $(BUILD)/libdeepinfer.a
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(filter %.o,$^) $(filter %.a,$^) $(LDLIBS) -o $@

.PRECIOUS: $(BUILD)/%.o

# Test data that is kept compressed or made from seeds.
TESTDATA := build/testdata
include mk/testdata.mk

test: deps clients
	@$(MAKE) --no-print-directory test-run

# The official clients of the APIs, for tests/server; without them those tests are skipped.
.PHONY: clients
clients:
	@PYTHON=$(PYTHON) scripts/install-clients.sh || true

.PHONY: test-run
test-run: all $(TEST_BIN) $(TEST_HELPERS) $(SIMCARD) $(BADCARD) testdata
	@MODE=$(MODE) BUILD=$(BUILD) TESTDATA=$(TESTDATA) PYTHON=$(PYTHON) \
	    scripts/run-tests.sh $(TEST_BIN) $(sort $(wildcard tests/*/*.sh tests/*/test_*.py))

bench: deps
	@$(MAKE) --no-print-directory bench-run

.PHONY: bench-run
bench-run: all $(BENCH_BIN) $(TEST_HELPERS) testdata
	@BUILD=$(BUILD) TESTDATA=$(TESTDATA) PYTHON=$(PYTHON) bench/run.sh $(BENCH)

# The tests that walk at random, SOAK_EVENTS times as long as in `make test`. Their seeds are printed;
# SEED=n starts elsewhere.
SOAK_EVENTS ?= 50
SOAK_BIN := $(addprefix $(BUILD)/tests/,sched/test_random sample/test_rejection \
    engine/test_random_events engine/test_structured_events engine/test_drafts_law)

soak: deps
	@$(MAKE) --no-print-directory soak-run

.PHONY: soak-run
soak-run: $(SOAK_BIN) testdata
	@MODE=$(MODE) BUILD=$(BUILD) TESTDATA=$(TESTDATA) SOAK_EVENTS=$(SOAK_EVENTS) TEST_TIMEOUT=86400 \
	    scripts/run-tests.sh $(SOAK_BIN)

asan tsan:
	@$(MAKE) --no-print-directory MODE=$@ test

fuzz: deps
	@$(MAKE) --no-print-directory MODE=fuzz fuzz-run

.PHONY: fuzz-run
fuzz-run: $(FUZZ_BIN)
	@scripts/run-fuzzers.sh $(FUZZ_SECONDS) $(FUZZ_BIN)

build/fuzz/tests/fuzz/fuzz_server_%: build/fuzz/tests/fuzz/fuzz_server_%.o \
    $(SERVER_SRC:%.c=build/fuzz/%.o) build/fuzz/tests/support/scripted.o build/fuzz/libdeepinfer.a
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) -fsanitize=fuzzer $(LDFLAGS) $^ $(SERVER_LDLIBS) $(LDLIBS) -o $@

build/fuzz/tests/fuzz/%: build/fuzz/tests/fuzz/%.o build/fuzz/libdeepinfer.a
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) -fsanitize=fuzzer $(LDFLAGS) $^ $(LDLIBS) -o $@

FORMAT_SRC := $(shell git ls-files '*.c' '*.h' '*.cu' '*.cuh' 2>/dev/null)

format:
	@scripts/install-deps.sh --dev
	clang-format -i $(FORMAT_SRC)

LINT_TESTS := $(filter-out tests/badcard/%, \
    $(sort $(wildcard bench/*.c bench/*/*.c tests/*/*.c tests/*/*/*.c)))
# Where CUDA's headers are.
LINT_CUDA := $(if $(BADCARD),$(CUDA_SRC) $(wildcard tests/badcard/*.c))

lint:
	@scripts/install-deps.sh --dev
	@scripts/check-rooms.sh
	@scripts/check-layout.sh
	@clang-format --dry-run -Werror $(FORMAT_SRC)
	@printf '%s\n' $(SRC) | xargs -P 2 -n 1 scripts/tidy.sh $(CPPFLAGS)
	@printf '%s\n' $(LINT_TESTS) | xargs -P 2 -n 1 scripts/tidy.sh $(CPPFLAGS) -Ibench -Itests
	@printf '%s\n' $(LINT_CUDA) | xargs -r -P 2 -n 1 scripts/tidy.sh $(CPPFLAGS) -Itests \
	    -isystem $(CUDA_DIR)/include

-include $(TEST_BIN:=.d) $(TEST_HELPERS:=.d) $(SIMCARD_OBJ:.o=.d) $(BADCARD_OBJ:.o=.d) $(TEST_SUPPORT:.o=.d) $(BENCH_BIN:=.d) $(wildcard $(BUILD)/bench/support/*.d)
