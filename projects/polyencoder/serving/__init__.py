"""`polyencoder serve`: rerank, search and chat over HTTP. The extra `serve`: FastAPI, uvicorn, prometheus_client."""
