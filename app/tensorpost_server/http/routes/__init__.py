"""The endpoints that FastAPI routes; for those that compute something the routes stand for the OpenAPI document only."""
