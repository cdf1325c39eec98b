"""The Open Inference Protocol (KServe v2, with Triton's extensions): operators as models, for clients that exist."""
