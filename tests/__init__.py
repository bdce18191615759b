"""The tests. A package by file, since one of the dependencies installs a package of the same name."""
