# make install: program, libraries, headers, pkg-config file, man page, completion. The man page and
# the completion are printed by the program itself, from its table of options.

DESTDIR    ?=
BINDIR     ?= $(PREFIX)/bin
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR    ?= $(PREFIX)/share
MANDIR     ?= $(DATADIR)/man
COMPDIR    ?= $(DATADIR)/bash-completion/completions
INSTALL    ?= install

HEADERS := $(sort $(wildcard include/deepinfer/*.h))
INSTALLED = $(BINDIR)/deepinfer $(LIBDIR)/libdeepinfer.a $(LIBDIR)/libdeepinfer.so \
    $(LIBDIR)/libdeepinfer.so.$(SOVERSION) $(LIBDIR)/libdeepinfer.so.$(VERSION) \
    $(LIBDIR)/libdeepinfer-cuda.so \
    $(HEADERS:include/%=$(INCLUDEDIR)/%) $(LIBDIR)/pkgconfig/deepinfer.pc \
    $(MANDIR)/man1/deepinfer.1 $(COMPDIR)/deepinfer

$(BUILD)/deepinfer.1: $(BUILD)/deepinfer
	@$< help --man > $@.part && mv $@.part $@

$(BUILD)/deepinfer.bash: $(BUILD)/deepinfer
	@$< help --bash > $@.part && mv $@.part $@

# Not a file rule: PREFIX may differ from one call to the next.
.PHONY: pkgconfig-file
pkgconfig-file:
	@mkdir -p $(BUILD)
	@sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' \
	    -e 's|@VERSION@|$(VERSION)|' -e 's|@PKGS@|$(PKGS)|' mk/deepinfer.pc.in > $(BUILD)/deepinfer.pc

install: all $(BUILD)/deepinfer.1 $(BUILD)/deepinfer.bash pkgconfig-file
	$(INSTALL) -d $(addprefix '$(DESTDIR)',$(BINDIR) $(LIBDIR)/pkgconfig $(INCLUDEDIR)/deepinfer \
	    $(MANDIR)/man1 $(COMPDIR))
	$(INSTALL) -m 755 $(BUILD)/deepinfer '$(DESTDIR)$(BINDIR)/deepinfer'
	$(INSTALL) -m 644 $(BUILD)/libdeepinfer.a '$(DESTDIR)$(LIBDIR)/libdeepinfer.a'
	$(INSTALL) -m 755 $(BUILD)/libdeepinfer.so '$(DESTDIR)$(LIBDIR)/libdeepinfer.so.$(VERSION)'
	$(if $(CUDA_PART),$(INSTALL) -m 755 $(CUDA_PART) '$(DESTDIR)$(LIBDIR)/libdeepinfer-cuda.so')
	ln -sf libdeepinfer.so.$(VERSION) '$(DESTDIR)$(LIBDIR)/libdeepinfer.so.$(SOVERSION)'
	ln -sf libdeepinfer.so.$(SOVERSION) '$(DESTDIR)$(LIBDIR)/libdeepinfer.so'
	$(INSTALL) -m 644 $(HEADERS) '$(DESTDIR)$(INCLUDEDIR)/deepinfer'
	$(INSTALL) -m 644 $(BUILD)/deepinfer.pc '$(DESTDIR)$(LIBDIR)/pkgconfig/deepinfer.pc'
	$(INSTALL) -m 644 $(BUILD)/deepinfer.1 '$(DESTDIR)$(MANDIR)/man1/deepinfer.1'
	$(INSTALL) -m 644 $(BUILD)/deepinfer.bash '$(DESTDIR)$(COMPDIR)/deepinfer'

# Takes away what install put there, and the one folder that is ours alone.
uninstall:
	rm -f $(addprefix '$(DESTDIR)',$(INSTALLED))
	-rmdir '$(DESTDIR)$(INCLUDEDIR)/deepinfer' 2>/dev/null || true
