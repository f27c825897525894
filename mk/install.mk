# make install: program, libraries, header, pkg-config file, man page, completion.
