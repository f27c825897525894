# The CUDA part: libdeepinfer-cuda.so, opened by the program when a card is asked for
# (src/ops/cuda/cuda.c), so that nothing else depends on CUDA. Built when nvcc is there and knows
# Blackwell (CUDA 12.8): CUDA=0 leaves it out, CUDA=1 insists on it. Release builds only; the CUDA
# runtime is linked statically.

CUDA      ?= auto
CUDA_HOME ?= $(if $(wildcard /usr/local/cuda/bin/nvcc),/usr/local/cuda,$(patsubst \
    %/bin/nvcc,%,$(realpath $(shell command -v nvcc 2>/dev/null))))
NVCC      ?= $(wildcard $(CUDA_HOME)/bin/nvcc)

ifeq ($(filter auto 0 1,$(CUDA)),)
$(error CUDA is '$(CUDA)'; it can be auto, 0 or 1)
endif
ifeq ($(CUDA)$(NVCC),1)
$(error CUDA=1, but there is no nvcc on PATH nor in /usr/local/cuda/bin; set CUDA_HOME)
endif
ifneq ($(CUDA),0)
ifneq ($(NVCC),)
ifneq ($(filter compute_100,$(shell $(NVCC) --list-gpu-arch 2>/dev/null)),)
CUDA_PART := $(if $(filter release,$(MODE)),$(BUILD)/libdeepinfer-cuda.so)
else
NVCC_OLD := $(NVCC) is too old for Blackwell, CUDA 12.8 or later is needed
endif
endif
endif
ifeq ($(CUDA)$(if $(NVCC_OLD),old),1old)
$(error CUDA=1, but $(NVCC_OLD))
endif

# Hopper and Blackwell, in one file. -fmad=false: nothing is fused that does not say so
# (docs/numerics.md).
CUDA_ARCH  := -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_100a,code=sm_100a
NVCC_FLAGS := -std=c++17 -O3 -fmad=false $(CUDA_ARCH) -Isrc -Iinclude \
    -Xcompiler -fPIC,-fvisibility=hidden,-Wall
CUDA_SRC := $(sort $(wildcard src/ops/cuda/card/*.c))
CUDA_KERNELS := $(sort $(wildcard src/ops/cuda/card/*.cu))
CUDA_OBJ := $(CUDA_SRC:%.c=$(BUILD)/%.o) $(CUDA_KERNELS:%.cu=$(BUILD)/%.cu.o)

$(BUILD)/src/ops/cuda/card/%.o: CPPFLAGS += -isystem $(CUDA_HOME)/include
$(BUILD)/src/ops/cuda/cuda.o: CPPFLAGS += -DDI_CUDA_BUILT=$(if $(CUDA_PART),1,0)
$(BUILD)/src/ops/cuda/cuda.o: $(BUILD)/cuda-built

$(BUILD)/cuda-built: FORCE
	@mkdir -p $(@D); echo '$(CUDA_PART)' | cmp -s - $@ || echo '$(CUDA_PART)' > $@

$(BUILD)/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(Q)$(NVCC) $(NVCC_FLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@

# What it needs of the base room is linked in, hidden.
CUDA_BASE := $(patsubst %,$(BUILD)/src/base/%.o,alloc error tensor utf8 version)

$(BUILD)/libdeepinfer-cuda.so: $(CUDA_OBJ) $(CUDA_BASE)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(@F) -Wl,--exclude-libs,ALL \
	    -Wl,--no-undefined $^ -L$(CUDA_HOME)/lib64 -lcudart_static -lstdc++ -lm -lpthread -ldl \
	    -lrt -o $@

.PHONY: cuda
cuda: $(CUDA_PART)
ifeq ($(CUDA_PART)$(filter-out release,$(MODE)),)
	@echo '  skip  libdeepinfer-cuda.so ($(if $(filter 0,$(CUDA)),CUDA=0,$(or $(NVCC_OLD),no nvcc)))'
endif

-include $(CUDA_OBJ:.o=.d)
