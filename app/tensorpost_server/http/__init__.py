"""HTTP in, HTTP out: one file per noun. No arrays are computed here."""
