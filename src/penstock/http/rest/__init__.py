"""The versioned REST API under /v1: routes, the OpenAPI document made from them, and the operations behind them."""
