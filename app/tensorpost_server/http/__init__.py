"""HTTP in, HTTP out: one file per noun. Operators are computed elsewhere; pictures get their bytes here."""
