"""The endpoints that FastAPI routes. For those that compute something, routes stand for the OpenAPI document only."""
