# How the files below build/testdata come to be: unpacked from tests/data, or made from a seed.

.PHONY: testdata
testdata:

# ---- golden vectors and the tiny checkpoints they were made on (tests/data/golden/README.md) ----
GOLDEN_DIR := tests/data/golden
GOLDEN_TOOLS := $(wildcard tools/golden/*.py)
GOLDEN_CHECKPOINTS := tiny wide deep
GOLDEN_VECTORS := $(patsubst $(GOLDEN_DIR)/%.xz,$(TESTDATA)/golden/%,\
    $(wildcard $(addprefix $(GOLDEN_DIR)/,$(addsuffix /*.xz,$(GOLDEN_CHECKPOINTS)))))
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
