"""Implements the REST API under /v1: the routes, their OpenAPI document, and the operations that they call."""
