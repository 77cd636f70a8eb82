"""Servers of files over HTTP: nginx, and one of this process that fails on purpose."""
import contextlib
import hashlib
import http.server
import pathlib
import socket
import ssl
import struct
import subprocess
import threading

HERE = "127.0.0.1"
DEADLINE_S = 60


def certificate_of(folder, names="IP:127.0.0.1"):
    """A certificate that signed itself, and its key."""
    paths = folder / "web.crt", folder / "web.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-days", "2",
                    "-subj", "/CN=web", "-addext", f"subjectAltName={names}", "-keyout", paths[1], "-out", paths[0]],
                   check=True, capture_output=True)
    return paths


class Nginx:
    """Serves `folder` by http and by https. Logs each request: the method, the path with its query, the status, the range."""

    def __init__(self, folder, place):
        self.log = place / "requests"
        self.certificate, self.key = certificate_of(place)
        while not self._start(folder, place):  # somebody else has got one of the ports meanwhile
            pass

    def _start(self, folder, place):
        with contextlib.ExitStack() as stack:  # free ports, of which nginx cannot report what it was given
            ports = [stack.enter_context(socket.create_server((HERE, 0))).getsockname()[1] for _ in range(2)]
        self.http, self.https = f"http://{HERE}:{ports[0]}", f"https://{HERE}:{ports[1]}"
        config = place / "nginx.conf"
        config.write_text(f"""
            daemon off; master_process off; pid {place}/pid; error_log {place}/errors;
            events {{ worker_connections 128; }}
            http {{
                log_format request '$request_method $request_uri $status $http_range $connection';
                access_log {self.log} request;
                {"".join(f"{what}_temp_path {place}/{what};" for what in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))}
                server {{
                    listen {HERE}:{ports[0]}; listen {HERE}:{ports[1]} ssl;
                    ssl_certificate {self.certificate}; ssl_certificate_key {self.key};
                    location /moved/ {{ rewrite ^/moved/(.*) /$1?leads=here redirect; }}
                    location /downgraded/ {{ return 302 {self.http}/model.safetensors; }}
                    location / {{ root {folder}; }}
                }}
            }}""")
        self.proc = subprocess.Popen(["nginx", "-c", config], stderr=subprocess.PIPE, text=True)
        return self._listens(ports[1])

    def _listens(self, port):
        """nginx reports by nothing that it listens; it ends if it cannot."""
        while self.proc.poll() is None:
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection((HERE, port), timeout=DEADLINE_S):
                return True
        with self.proc.stderr as errors:
            text = errors.read()
        assert "Address already in use" in text, text
        return False

    def requests(self):
        return [line.split() for line in self.log.read_text().splitlines()]

    def close(self):
        self.proc.terminate()
        self.proc.wait(DEADLINE_S)
        self.proc.stderr.close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        web = self.server.web
        range_ = self.headers.get("Range", "")
        with web.lock:
            web.requests.append((self.path, range_))
            number = len(web.requests)
        fault = web.fault(number, self.path.partition("?")[0])
        data = web.files.get(self.path.partition("?")[0])
        if data is None:
            return self.reply(404, b"no such file")
        if isinstance(fault, int):
            return self.reply(fault, b"not now", {"Retry-After": "0"})
        if fault and fault.startswith("to "):
            return self.reply(302, b"elsewhere", {"Location": fault[3:]})
        first, last = (int(n) for n in range_.removeprefix("bytes=").split("-"))
        body = data[first:last + 1]
        headers = {"ETag": web.etag(data), "Content-Range": f"bytes {first}-{first + len(body) - 1}/{len(data)}"}
        headers |= {"changed": {"ETag": '"other"'}, "unmarked": {"ETag": None}, "encoded": {"Content-Encoding": "gzip"},
                    "elsewhere": {"Content-Range": f"bytes {first + 1}-{first + len(body) - 1}/{len(data)}"},
                    "grown": {"Content-Range": f"bytes {first}-{first + len(body) - 1}/{len(data) + 1}"},
                    "unsaid": {"Content-Range": None}, "nonsense": {"Content-Range": "bytes 18446744073709551617-2/-1"}}.get(fault, {})
        if fault == "whole":
            return self.reply(200, data, {"ETag": web.etag(data)})
        if fault == "long":
            body += b"x"
        if fault in ("cut", "reset", "stall"):
            return self.part_of(body, headers, fault)
        return self.reply(206, body, headers)

    def head(self, status, size, headers):
        self.send_response(status)
        for name, value in ({"Content-Length": str(size)} | headers).items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()

    def reply(self, status, body, headers={}):
        self.head(status, len(body), headers)
        with contextlib.suppress(ConnectionError):  # a client that had enough
            self.wfile.write(body)

    def part_of(self, body, headers, fault):
        """Half of the body, and then an end, another end, or none."""
        self.head(206, len(body), headers)
        self.wfile.write(body[:len(body) // 2])
        self.close_connection = True
        if fault == "stall":
            self.server.web.stalled.set()
            self.server.web.released.wait(DEADLINE_S)
        if fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def log_message(self, *_):
        pass


class Web:
    """Serves `files`, {path: bytes}. `fault(number, path)` is the fault of a request, or None."""

    def __init__(self, files, certificate=None):
        self.files, self.requests, self.lock = files, [], threading.Lock()
        self.fault = lambda number, path: None
        self.stalled, self.released = threading.Event(), threading.Event()
        self.server = http.server.ThreadingHTTPServer((HERE, 0), Handler)
        self.server.web, self.server.handle_error = self, lambda *_: None
        self.url = f"http://{HERE}:{self.server.server_port}"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.url = self.url.replace("http", "https")
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def etag(self, data):
        return f'"{hashlib.sha256(data).hexdigest()}"'

    def begin(self, fault=lambda number, path: None):
        """Forgets the requests so far, and fails as `fault` says from now on."""
        with self.lock:
            self.requests.clear()
            self.fault = fault

    def stop(self):
        """Nothing listens any more. Connections stay."""
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def close(self):
        self.released.set()
        self.stop()
