"""The model APIs of the harnesses, played by a local server: ask for one command, then finish.

Anthropic's messages, OpenAI's responses and OpenAI's chat completions, each as a stream of
server-sent events, with just what the command-line programs read of it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Event = tuple[str, dict[str, Any]]


class ModelApi(ThreadingHTTPServer):
    """Has a model run ``command`` once; ``asked`` has the bodies of all requests."""

    daemon_threads = True

    def __init__(self, command: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.command = command
        self.asked: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def model_api(command: str) -> Iterator[ModelApi]:
    """Serve during the block."""
    server = ModelApi(command)
    thread = threading.Thread(target=server.serve_forever, args=[0.05])
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: ModelApi
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""

    def do_GET(self) -> None:
        """Answer what is asked beside the model with nothing; WebSockets are not offered."""
        if self.headers.get("upgrade"):
            self.send_error(426)
            return
        self._answer("application/json", b'{"data": [], "object": "list"}')

    def do_HEAD(self) -> None:
        """Answer as for GET, without the content."""
        self.do_GET()

    def do_POST(self) -> None:
        """Answer as the API of the path would."""
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        path = self.path.partition("?")[0]
        self.server.asked.append({"path": path, **body})
        if path.endswith("/messages"):
            self._stream(_messages(body, self.server.command))
        elif path.endswith("/responses"):
            self._stream(_responses(body, self.server.command))
        elif path.endswith("/chat/completions"):
            self._stream(
                [("", chunk) for chunk in _completions(body, self.server.command)], "[DONE]"
            )
        else:
            self._answer("application/json", b'{"input_tokens": 1}')

    def _stream(self, events: list[Event], last: str = "") -> None:
        lines = []
        for name, data in events:
            lines += [f"event: {name}"] if name else []
            lines += [f"data: {json.dumps(data)}", ""]
        lines += [f"data: {last}", ""] if last else []
        self._answer("text/event-stream", ("\n".join(lines) + "\n").encode())

    def _answer(self, content_type: str, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def names_of_tools(body: dict[str, Any]) -> list[str | None]:
    """Return the names of the tools that a request offers to the model."""
    return [
        tool.get("name") or tool.get("function", {}).get("name") for tool in body.get("tools", [])
    ]


def _tool(body: dict[str, Any], *names: str) -> str | None:
    """Return which of these tools the request offers."""
    offered = names_of_tools(body)
    return next((name for name in names if name in offered), None)


def _messages(body: dict[str, Any], command: str) -> list[Event]:
    tool = _tool(body, "Bash")
    done = '"tool_result"' in json.dumps(body["messages"])
    uses = tool is not None and not done
    block: dict[str, Any]
    delta: dict[str, Any]
    if uses:
        block = {"type": "tool_use", "id": "toolu_1", "name": tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps({"command": command})}
    else:
        block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": "Finished."}
    usage = {"input_tokens": 1, "output_tokens": 1}
    message: dict[str, Any] = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": body.get("model"),
        "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    reason = "tool_use" if uses else "end_turn"
    return [
        ("message_start", {"type": "message_start", "message": message}),
        (
            "content_block_start",
            {"type": "content_block_start", "index": 0, "content_block": block},
        ),
        ("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}),
        ("content_block_stop", {"type": "content_block_stop", "index": 0}),
        (
            "message_delta",
            {
                "type": "message_delta",
                "delta": {"stop_reason": reason, "stop_sequence": None},
                "usage": usage,
            },
        ),
        ("message_stop", {"type": "message_stop"}),
    ]


def _responses(body: dict[str, Any], command: str) -> list[Event]:
    done = "function_call_output" in json.dumps(body["input"])
    tool = _tool(body, "exec_command", "shell_command", "shell")
    item: dict[str, Any]
    if tool is not None and not done:
        arguments: dict[str, dict[str, Any]] = {
            "exec_command": {"cmd": command},
            "shell_command": {"command": command},
            "shell": {"command": ["bash", "-c", command]},
        }
        item = {
            "type": "function_call", "id": "fc_1", "call_id": "call_1", "name": tool,
            "arguments": json.dumps(arguments[tool]),
        }  # fmt: skip
    else:
        text: dict[str, Any] = {"type": "output_text", "text": "Finished.", "annotations": []}
        item = {"type": "message", "id": "msg_1", "role": "assistant", "content": [text]}
    usage = {
        "input_tokens": 1, "input_tokens_details": None, "output_tokens": 1,
        "output_tokens_details": None, "total_tokens": 2,
    }  # fmt: skip
    response = {"id": "resp_1", "object": "response", "output": [item], "usage": usage}
    return [
        ("response.created", {"type": "response.created", "response": {"id": "resp_1"}}),
        (
            "response.output_item.done",
            {"type": "response.output_item.done", "output_index": 0, "item": item},
        ),
        ("response.completed", {"type": "response.completed", "response": response}),
    ]


def _completions(body: dict[str, Any], command: str) -> list[dict[str, Any]]:
    done = any(message.get("role") == "tool" for message in body["messages"])
    tool = _tool(body, "bash")
    delta: dict[str, Any] = {"role": "assistant", "content": "Finished."}
    reason = "stop"
    if tool is not None and not done:
        arguments = json.dumps({"command": command, "description": "Writes the file"})
        function = {"name": tool, "arguments": arguments}
        delta = {
            "role": "assistant",
            "tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}],
        }
        reason = "tool_calls"
    base = {"id": "chat_1", "object": "chat.completion.chunk", "created": 1, "model": "fake"}
    return [
        {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
        {
            **base,
            "choices": [],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        },
    ]
