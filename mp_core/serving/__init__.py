"""Encoders, rerankers, classifiers and generators over HTTP: the server of ``mp-core serve``. See docs/serving.md.

It imports models and the rooms below it; cli may import it.

Its modules, except `limits` and this one, need the extra ``serve``: starlette and uvicorn. A request passes through
`server` (sockets, signals), `front` (keys, log, metrics), `service` and `schema` (the body), `routes` (inputs and
answers of each path), `models` (tokens) and `batching` (the queue and the compute thread). Requests for completions
take `completions` (prompts, answers, events) and `decoding` (a thread for each decoder) instead of the last two.
"""
