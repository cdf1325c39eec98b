"""What both sides say about tensors, operations and errors: plain values, of no form of body."""
