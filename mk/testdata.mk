# How the files below build/testdata come to be: unpacked from tests/data, or made from a seed.

.PHONY: testdata
testdata:
