"""`python -m openapi` writes the document in its one form, as `make format` does."""

from openapi.document import PATH, canonical, read

PATH.write_text(canonical(read()))
