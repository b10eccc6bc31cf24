"""Small changes of meaning, kept as data, that the tests are held to notice: `make mutants`."""
