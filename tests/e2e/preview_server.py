"""The server that the tests of previews start in a workspace: one of each kind of answer."""

SERVER = r'''
import base64, hashlib, http.server, json, socket, sys, threading, time

released = threading.Event()

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def say(self, body, status=200, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def pieces(self):
        if self.headers.get("transfer-encoding") == "chunked":
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("content-length") or 0)
        while left:
            piece = self.rfile.read(min(left, 65536))
            if not piece:
                return
            left -= len(piece)
            yield piece

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        kind, _, rest = self.path.strip("/").partition("/")
        if kind == "bytes":
            piece = bytes(range(256)) * 256
            count = int(rest)
            self.send_response(200)
            self.send_header("content-length", str(count))
            self.end_headers()
            while count > 0 and self.command != "HEAD":
                self.wfile.write(piece[:count])
                count -= len(piece)
        elif kind == "chunks":
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for number in range(int(rest)):
                self.chunk(b"chunk %d\n" % number)
            self.chunk(b"")
        elif kind == "events":
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.close_connection = True
            self.wfile.write(b"data: first\n\n")
            released.wait(60)
            self.wfile.write(b"data: second\n\n")
        elif kind == "release":
            released.set()
            self.say(b"")
        elif kind == "die":
            self.send_response(200)
            self.send_header("content-length", "1000")
            self.end_headers()
            self.wfile.write(b"only this")
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif kind == "close":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif kind == "page":
            self.say(PAGE, content_type="text/html")
        elif kind == "none":
            self.send_response(204)
            self.end_headers()
        elif kind == "cookies":
            self.say(b"", set_cookie="mine=1; Domain=localhost; Path=/", alt_svc='h3=":443"')
        elif self.headers.get("upgrade", "").lower() == "websocket":
            self.echo()
        else:
            told = {"path": self.path, "headers": [[k.lower(), v] for k, v in self.headers.items()]}
            self.say(json.dumps(told).encode(), content_type="application/json")

    def do_POST(self):
        if self.path == "/early":
            self.say(b"no", status=413, connection="close")
            self.close_connection = True
            return
        digest, size = hashlib.sha256(), 0
        for piece in self.pieces():
            digest.update(piece)
            size += len(piece)
        self.say(json.dumps({"size": size, "sha256": digest.hexdigest()}).encode())

    def echo(self):
        key = self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accepted = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_response(101)
        self.send_header("upgrade", "websocket")
        self.send_header("connection", "Upgrade")
        self.send_header("sec-websocket-accept", accepted)
        self.end_headers()
        self.close_connection = True
        while head := self.rfile.read(2):
            size = head[1] & 127
            if size > 125:
                size = int.from_bytes(self.rfile.read(2 if size == 126 else 8), "big")
            mask, data = self.rfile.read(4), self.rfile.read(size)
            data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
            told = bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2, "big")
            self.wfile.write(head[:1] + told + data)
            if head[0] & 15 == 8:
                return

    def log_message(self, *_):
        pass

PAGE = b"""<!doctype html><title>mine</title><script>
(async () => {
  window.cookieSeen = document.cookie;
  window.headersSeen = await (await fetch("/headers")).json();
  const socket = new WebSocket("ws://" + location.host + "/echo");
  socket.onopen = () => socket.send("over the socket");
  socket.onmessage = (event) => { window.echoed = event.data; };
  const events = new EventSource("/events");
  events.onmessage = (event) => { window.event = event.data; };
})();
</script>"""

class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True

Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
'''
