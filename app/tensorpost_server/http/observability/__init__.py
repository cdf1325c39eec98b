"""What is recorded of each request: access log lines and metrics."""
