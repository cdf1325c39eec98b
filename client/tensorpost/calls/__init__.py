"""What a call is for a caller: arrays in, arrays out."""
