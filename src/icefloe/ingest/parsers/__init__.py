"""One short module per file format; each turns a file into a schema, chunk references and values."""
