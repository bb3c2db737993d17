"""Encoders, rerankers and classifiers over HTTP: what ``mp-core serve`` runs. docs/serving.md is for its users.

It imports models and the rooms below it; cli may import it.

Its modules need the extra ``serve``, starlette and uvicorn; `limits` and this one do not. A request goes through them
in turn: `server` (sockets, signals), `front` (keys, log, metrics), `service` and `schema` (the body), `routes` (what is
asked and answered), `models` (tokens), `batching` (the queue, and the thread that computes).
"""
