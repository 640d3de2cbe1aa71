"""A server that speaks OpenAI's protocol, and whose generations are watched by the probes of a spec.

`desk` decides who is decoded when; `api` and `answers` are the protocol's words; `app` is the HTTP side, `gate` what stands before it;
`running` binds, drains and leaves. fastapi, uvicorn and prometheus-client are imported here and nowhere else.
"""
