"""What the processes of one server share (`tensorpost serve --workers`): counts, quotas, and lists of what is kept.

Everything lies in one folder, in memory where the system has a file system for that. A process that ends, however it
ends, leaves no lock behind, and the supervisor takes out what it had counted.
"""
