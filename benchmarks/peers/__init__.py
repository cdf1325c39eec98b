"""Other products that serve tensors, each in an environment of its own, all asked for the same Tile.

    python -m benchmarks.peers install --into DIR     about 2.5 GB; one virtual environment for each
    python -m benchmarks --only small,peers --peers DIR

`serve_*` run in a product's environment and know nothing of ours; so do `ask_*`, the clients of products that are not
asked by HTTP.
"""
