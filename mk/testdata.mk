# How the files below build/testdata come to be: unpacked from tests/data, or made from a seed.

.PHONY: testdata
testdata:

# ---- golden vectors and the tiny checkpoints they were made on (tests/data/golden/README.md) ----
GOLDEN_DIR := tests/data/golden
GOLDEN_TOOLS := $(wildcard tools/golden/*.py)
GOLDEN_CHECKPOINTS := tiny wide deep
GOLDEN_VECTORS := $(patsubst $(GOLDEN_DIR)/%.xz,$(TESTDATA)/golden/%,\
    $(wildcard $(addprefix $(GOLDEN_DIR)/,$(addsuffix /*.xz,$(GOLDEN_CHECKPOINTS) demo))))
GOLDEN_REPLAY := $(patsubst $(GOLDEN_DIR)/tiny/replay/%.xz,$(TESTDATA)/golden/tiny-replay/%,\
    $(wildcard $(GOLDEN_DIR)/tiny/replay/*.xz))

testdata: $(GOLDEN_VECTORS) $(GOLDEN_REPLAY) $(GOLDEN_CHECKPOINTS:%=$(TESTDATA)/%/.made)

$(TESTDATA)/golden/tiny-replay/%: $(GOLDEN_DIR)/tiny/replay/%.xz
	@mkdir -p $(@D) && xz -dc $< > $@.part && mv $@.part $@

$(TESTDATA)/golden/%: $(GOLDEN_DIR)/%.xz
	@mkdir -p $(@D) && xz -dc $< > $@.part && mv $@.part $@

# A checkpoint that came out otherwise than when the vectors were made is no use: check its bytes.
$(GOLDEN_CHECKPOINTS:%=$(TESTDATA)/%/.made): $(TESTDATA)/%/.made: tools/golden/configs/%.json \
    $(GOLDEN_DIR)/%/checkpoint.sha256 $(GOLDEN_TOOLS)
	@mkdir -p $(@D)
	@PYTHONDONTWRITEBYTECODE=1 $(PYTHON) tools/golden/make_tiny.py --config $< --out $(@D) >/dev/null
	@cd $(@D) && sha256sum --quiet -c $(CURDIR)/$(GOLDEN_DIR)/$*/checkpoint.sha256
	@touch $@

# ---- tokenizers, their golden ids, and a piece of English (tests/data/tokenizer-v4/README.md) ----
TEXT_DATA := $(patsubst tests/data/%.xz,$(TESTDATA)/%,$(wildcard tests/data/tokenizer-*/*.xz \
    tests/data/recipe/*.xz tests/data/text/*.xz))

testdata: $(TEXT_DATA) $(TESTDATA)/tokenizer-v41/tokenizer.json

$(TEXT_DATA): $(TESTDATA)/%: tests/data/%.xz
	@mkdir -p $(@D) && xz -dc $< > $@.part && mv $@.part $@

# V4.1's file is V4's with three added tokens renamed.
$(TESTDATA)/tokenizer-v41/tokenizer.json: $(TESTDATA)/tokenizer-v4/tokenizer.json
	@mkdir -p $(@D)
	@sed -e 's/<｜place▁holder▁no▁799｜>/<｜System｜>/' \
	    -e 's/<｜image｜>/<|place_holder_mm_span_0442|>/' -e 's/<｜image2｜>/<｜image｜>/' \
	    $< > $@.part && mv $@.part $@

# ---- schemas with instances, for bench/grammar.c ----
testdata: $(TESTDATA)/grammar/schemas.jsonl

$(TESTDATA)/grammar/schemas.jsonl: tools/grammar-sample.py
	@mkdir -p $(@D) && $(PYTHON) $< > $@.part && mv $@.part $@

# ---- the full-size model as sparse files (tools/make-checkpoint) ----
testdata: $(TESTDATA)/flash/.made

$(TESTDATA)/flash/.made: tools/make-checkpoint tools/flash-config.json
	@$(PYTHON) tools/make-checkpoint $(@D) >/dev/null
	@touch $@
