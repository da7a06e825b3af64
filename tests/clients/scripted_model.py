"""A model API in a workspace: the model makes the calls of a script, and then repeats what it saw.

``python3 scripted_model.py PORT CALLS``, where CALLS is a list of ``[namespace, tool, arguments]``
as JSON. It speaks what codex reads of OpenAI's responses, and needs nothing but Python.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CALLS = json.loads(sys.argv[2])


def next_item(body: dict[str, Any]) -> dict[str, Any]:
    """Return what the model answers to a request."""
    seen = [each for each in body["input"] if each.get("type") == "function_call_output"]
    if len(seen) < len(CALLS):
        namespace, name, arguments = CALLS[len(seen)]
        return {
            "type": "function_call",
            "id": f"fc_{len(seen)}",
            "call_id": f"call_{len(seen)}",
            "namespace": namespace,
            "name": name,
            "arguments": json.dumps(arguments),
        }
    text = "\n".join(json.dumps(each["output"]) for each in seen)
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": content}


class Handler(BaseHTTPRequestHandler):
    """Answers as the API does."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Offer neither models nor WebSockets."""
        self.send_error(426 if self.headers.get("upgrade") else 404)

    def do_POST(self) -> None:
        """Stream the next answer."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        item = next_item(body)
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": {"id": "resp_1"}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {
                "type": "response.completed",
                "response": {"id": "resp_1", "object": "response", "output": [], "usage": usage},
            },
        ]
        lines = [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events]
        content = "".join(lines).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    server.serve_forever()
