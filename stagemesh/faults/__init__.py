"""The fault proxy: delays, stalls and cuts connections for tests of a mesh."""
