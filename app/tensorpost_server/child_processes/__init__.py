"""Child processes, in which libraries that others wrote work on what callers sent.

A library that fails there ends its process and not the server's. `process_pool.py` starts the processes ahead and
starts new ones when they end; `process.py` is one of them as the server sees it; `child.py` is its main program, and
calls the functions of `onnx_functions.py`. `messages.py` is what travels between the two, and `segment.py` the memory
that they share. `libraries.py` has the pools that there are. Nothing is imported here: every process would import it.
"""
