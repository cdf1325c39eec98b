"""Documents about the service itself: OpenAPI, examples, the page at `/`, problems as pages, conformance."""
