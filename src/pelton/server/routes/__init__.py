"""The routes: one file each. `ROUTE_MODULES` lists them; `app.create_app` includes what they define.

To add one, write `routes/<name>.py` with a `router` (a FastAPI `APIRouter`), its schema in `schema/<name>.py`, and add
a line here. A handler reads its body with `bodies.read_body`, makes an `Ask`, and answers with `JsonAnswer` or an
`sse.EventStream`. If its protocol has its own error body, the module also defines `make_error_body(ErrorInfo)`, which
then serves all paths of its router, and unknown paths below its `PREFIXES`. Proof: success, stream and each error in
`tests/server/`.
"""

ROUTE_MODULES = (
    "pelton.server.routes.chat_completions",
    "pelton.server.routes.completions",
    "pelton.server.routes.embeddings",
    "pelton.server.routes.engine_info",
    "pelton.server.routes.explain",
    "pelton.server.routes.messages",
    "pelton.server.routes.models",
    "pelton.server.routes.ollama",
    "pelton.server.routes.operations",
    "pelton.server.routes.responses",
    "pelton.server.routes.tgi",
    "pelton.server.routes.tokens",
    "pelton.server.routes.traces",
    "pelton.web.page",
)
