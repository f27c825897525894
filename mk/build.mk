# Objects, libraries and the program. V=1 shows the commands themselves.

Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-5s %s\n' $(1) $(patsubst $(BUILD)/%,%,$@))

SRC := $(sort $(wildcard src/*/*.c src/*/*/*.c))
ifneq ($(ARCH),x86_64)
SRC := $(filter-out %_avx2.c %_avx512.c,$(SRC))
endif
CLI_SRC := $(filter src/cli/%,$(SRC))
SERVER_SRC := $(filter src/server/%,$(SRC))
LIB_SRC := $(filter-out src/cli/% src/server/%,$(SRC))
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o)
CLI_OBJ := $(CLI_SRC:%.c=$(BUILD)/%.o)
SERVER_OBJ := $(SERVER_SRC:%.c=$(BUILD)/%.o)

$(BUILD)/%_avx2.o: CFLAGS += $(CFLAGS_avx2)
$(BUILD)/%_avx512.o: CFLAGS += $(CFLAGS_avx512)
# Sanitizers' tests spend their time in kernels: half of it with these optimised.
ifneq ($(filter asan tsan,$(MODE)),)
$(BUILD)/src/ops/cpu/%.o: CFLAGS += -O3
endif
# Only these files know the version, so that a new commit rebuilds only them.
$(BUILD)/src/base/version.o: CPPFLAGS += -DDI_VERSION='"$(VERSION)"' -DDI_GIT_REV='"$(GIT_REV)"' \
    -DDI_BUILD_MODE='"$(MODE)"'
$(BUILD)/src/base/version.o: $(BUILD)/git-rev

# The page's files are taken in by the assembler (.incbin), which writes no dependencies.
$(BUILD)/src/server/page.o: $(wildcard src/server/web/*)

$(BUILD)/git-rev: FORCE
	@mkdir -p $(@D); echo '$(VERSION) $(GIT_REV)' | cmp -s - $@ || echo '$(VERSION) $(GIT_REV)' > $@
.PHONY: FORCE

$(BUILD)/%.o: %.c | have-packages
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/libdeepinfer.a: $(LIB_OBJ)
	$(call say,AR)
	@rm -f $@
	$(Q)$(AR) rcs $@ $^

$(BUILD)/libdeepinfer.so: $(LIB_OBJ)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,libdeepinfer.so.$(SOVERSION) $^ $(LDLIBS) -o $@

$(BUILD)/deepinfer: $(CLI_OBJ) $(SERVER_OBJ) $(BUILD)/libdeepinfer.a
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $^ $(SERVER_LDLIBS) $(LDLIBS) -o $@

.PHONY: have-packages
have-packages:
	@pkg-config --exists $(PKGS) $(SERVER_PKGS) || { \
	    echo 'make: missing packages ($(PKGS) $(SERVER_PKGS)); run scripts/install-deps.sh' >&2; exit 1; }

-include $(LIB_OBJ:.o=.d) $(CLI_OBJ:.o=.d) $(SERVER_OBJ:.o=.d)
