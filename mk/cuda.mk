# The CUDA part: libdeepinfer-cuda.so, opened by the program when a card is asked for
# (src/ops/cuda/cuda.c), so that nothing else depends on CUDA. Built when scripts/find-cuda.sh finds
# a toolkit that knows Blackwell: CUDA=0 leaves it out, CUDA=1 insists on it. Release builds only;
# the CUDA runtime is linked statically.

CUDA ?= auto

ifeq ($(filter auto 0 1,$(CUDA)),)
$(error CUDA is '$(CUDA)'; it can be auto, 0 or 1)
endif

# The toolkit's folder, or why there is none; `make CUDA_HOME=DIR` takes that of DIR or none. Tests
# take its headers with CUDA=0, too.
CUDA_FOUND := $(shell scripts/find-cuda.sh \
    $(if $(filter command,$(origin CUDA_HOME)),'$(CUDA_HOME)'))
ifeq ($(.SHELLSTATUS),0)
CUDA_DIR := $(CUDA_FOUND)
else
NO_CUDA := $(CUDA_FOUND); scripts/install-cuda.sh installs it
endif
ifeq ($(CUDA)$(CUDA_DIR),1)
$(error CUDA=1, but $(NO_CUDA))
endif
ifneq ($(CUDA),0)
CUDA_PART := $(if $(CUDA_DIR),$(if $(filter release,$(MODE)),$(BUILD)/libdeepinfer-cuda.so))
endif

# Hopper and Blackwell, in one file. -fmad=false: nothing is fused that does not say so
# (docs/numerics.md).
CUDA_ARCH  := -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_100a,code=sm_100a
NVCC_FLAGS := -std=c++17 -O3 -fmad=false $(CUDA_ARCH) -Isrc -Iinclude \
    -Xcompiler -fPIC,-fvisibility=hidden,-Wall
CUDA_SRC := $(sort $(wildcard src/ops/cuda/card/*.c))
CUDA_KERNELS := $(sort $(wildcard src/ops/cuda/card/*.cu))
CUDA_OBJ := $(CUDA_SRC:%.c=$(BUILD)/%.o) $(CUDA_KERNELS:%.cu=$(BUILD)/%.cu.o)

$(BUILD)/src/ops/cuda/card/%.o: CPPFLAGS += -isystem $(CUDA_DIR)/include
$(BUILD)/src/ops/cuda/cuda.o: CPPFLAGS += -DDI_CUDA_BUILT=$(if $(CUDA_PART),1,0)
$(BUILD)/src/ops/cuda/cuda.o: $(BUILD)/cuda-built

$(BUILD)/cuda-built: FORCE
	@mkdir -p $(@D); echo '$(CUDA_PART)' | cmp -s - $@ || echo '$(CUDA_PART)' > $@

$(BUILD)/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(Q)$(CUDA_DIR)/bin/nvcc $(NVCC_FLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@

# What it needs of the base room is linked in, hidden.
CUDA_BASE := $(patsubst %,$(BUILD)/src/base/%.o,alloc error tensor utf8 version)

$(BUILD)/libdeepinfer-cuda.so: $(CUDA_OBJ) $(CUDA_BASE)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(@F) -Wl,--exclude-libs,ALL \
	    -Wl,--no-undefined $^ -L$(CUDA_DIR)/lib64 -L$(CUDA_DIR)/lib -lcudart_static -lstdc++ \
	    -lm -lpthread -ldl -lrt -o $@

.PHONY: cuda
cuda: $(CUDA_PART)
ifeq ($(CUDA_PART)$(filter-out release,$(MODE)),)
	@echo '  skip  libdeepinfer-cuda.so ($(if $(filter 0,$(CUDA)),CUDA=0,$(NO_CUDA)))'
endif

-include $(CUDA_OBJ:.o=.d)
