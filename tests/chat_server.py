"""A real HTTP server that answers chat completions with a model, the slow way (`plain`), and fails when told."""

import json
import threading
import time
from collections import deque
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ChatServer:
    """with ChatServer(plain) as server: ... server.url"""

    def __init__(self, plain):
        self.plain = plain
        self.faults = deque()  # one a request: (status, headers, body), seconds to wait, or None for an answer
        self.always: Any = None  # the fault of all further ones
        self.requests = []  # bodies, as they came
        self.texts = deque()  # what it writes when asked for words
        self._one_at_a_time = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=lambda: self._http.serve_forever(poll_interval=0.01))

    @property
    def url(self):
        return f"http://127.0.0.1:{self._http.server_port}/v1"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def answer(self, body):
        if "logprobs" not in body:
            return {"choices": [{"message": {"role": "assistant", "content": self.texts.popleft()}}]}
        with self._one_at_a_time:
            said = self.plain.logprobs(body["messages"])
        best = said.topk(body["top_logprobs"])
        words = self.plain.tokenizer.batch_decode([[token] for token in best.indices.tolist()])
        listed = [{"token": word, "logprob": value} for word, value in zip(words, best.values.tolist())]
        content = [{**listed[0], "top_logprobs": listed}]
        message = {"role": "assistant", "content": words[0]}
        return {"choices": [{"index": 0, "message": message, "logprobs": {"content": content}}]}

    def _handler(self):
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.requests.append((self.path, self.headers["Authorization"], body))
                fault = server.faults.popleft() if server.faults else server.always
                if isinstance(fault, tuple):
                    return self.reply(*fault)
                if fault is not None:
                    time.sleep(fault)
                return self.reply(200, {}, json.dumps(server.answer(body)))

            def reply(self, status, headers, text):
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", "Content-Length": len(text), **headers}.items():
                    self.send_header(name, str(value))
                self.end_headers()
                self.wfile.write(text.encode())

            def handle(self):
                with suppress(BrokenPipeError, ConnectionResetError):  # who asked has gone
                    super().handle()

            def log_message(self, *_):
                pass

        return Handler
