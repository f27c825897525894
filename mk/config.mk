# Compiler, flags and packages of each build mode.

ARCH := $(shell uname -m)
PKGS := jansson libpcre2-8 libutf8proc libxxhash
# Of the program only: the library does not hold the server.
SERVER_PKGS := libmicrohttpd gnutls libsodium

ifneq ($(filter tsan fuzz,$(MODE)),)
# libFuzzer is clang's, and its ThreadSanitizer is the newer one.
CC := clang
else ifeq ($(origin CC),default)
CC := gcc
endif

WARN := -Wall -Wextra -Werror -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes \
        -Wwrite-strings -Wvla -Wformat=2 -Wno-missing-field-initializers

# -ffp-contract=off: where a product is rounded is part of the numerics (docs/numerics.md).
OPT_release := -O3 -g
OPT_asan    := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined \
               -fno-omit-frame-pointer -DDI_FAULTS -DDI_DEBUG
OPT_tsan    := -O1 -g -fsanitize=thread -fno-omit-frame-pointer -DDI_DEBUG
OPT_fuzz    := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined \
               -DDI_DEBUG

VERSION := $(shell cat VERSION)
SOVERSION := $(firstword $(subst ., ,$(VERSION)))
# As root in another's checkout (sudo make install) git would refuse to say.
GIT_REV := $(shell git -c safe.directory='*' describe --always --dirty 2>/dev/null || echo unknown)

CPPFLAGS += -D_GNU_SOURCE -Isrc -Iinclude \
    $(shell pkg-config --cflags $(PKGS) $(SERVER_PKGS) 2>/dev/null)
CFLAGS   += -std=c17 -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno \
            $(WARN) $(OPT_$(MODE))
LDFLAGS  += $(filter -fsanitize=address% -fsanitize=thread,$(OPT_$(MODE)))
LDLIBS   += $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lm -lpthread
SERVER_LDLIBS := $(shell pkg-config --libs $(SERVER_PKGS) 2>/dev/null)

ifeq ($(ARCH),x86_64)
CFLAGS_avx2   := -mavx2 -mfma -mf16c
CFLAGS_avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c \
                 -mprefer-vector-width=512
endif
