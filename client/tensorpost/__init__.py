"""tensorpost: POST a DirectML operator and a tensor, get the result back as raw bytes."""
