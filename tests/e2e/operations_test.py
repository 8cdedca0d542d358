"""What operators rely on: configuration and its sources, TLS, sockets, logs, crash reports, draining; and that the tables
of options and metrics in docs/serving.md are those of the binary.

usage: operations_test.py PLUMB MODEL
"""
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time

import server as serving

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "serving.md"
QUESTION = {"messages": [{"role": "user", "content": "What is 2+2? Answer briefly."}], "temperature": 0, "max_tokens": 8}


def clean_environment(**variables):
    return {**{k: v for k, v in os.environ.items() if not k.startswith("PLUMB_")}, **variables}


def run(plumb, *arguments, **variables):
    return subprocess.run([plumb, *arguments], env=clean_environment(**variables), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=120)


def configuration(plumb, *arguments, **variables):
    ended = run(plumb, "serve", *arguments, "--print-config=json", **variables)
    assert ended.returncode == 0, ended.stderr
    return {entry["key"]: entry for entry in json.loads(ended.stdout)}


@contextlib.contextmanager
def folder():
    with tempfile.TemporaryDirectory() as name:
        yield pathlib.Path(name)


@contextlib.contextmanager
def started(plumb, model, *flags):
    server = serving.Server(plumb, model, *flags)
    try:
        server.wait_until_ready()
        yield server
    finally:
        if server.process.poll() is None:
            assert server.stop() == 0, server.log


# ---- configuration ----

def test_sources_and_their_order(plumb, model):
    with folder() as here:
        file = here / "plumb.conf"
        file.write_text('# a comment\nmodel = ' + model + '\nmax_running = 3\nqueue = 5\nport = 1234\nhost = "::1"\n'
                        'kernel = a=b\nkernel = c=d\nno-web = true\n')
        found = configuration(plumb, "--config", str(file), "--port", "99", PLUMB_QUEUE="7")
        assert (found["port"]["value"], found["port"]["source"]) == ("99", "flag")
        assert (found["queue"]["value"], found["queue"]["source"]) == ("7", "PLUMB_QUEUE")
        assert (found["max-running"]["value"], found["max-running"]["source"]) == ("3", f"{file}:3")
        assert (found["model"]["value"], found["model"]["source"]) == (model, f"{file}:2")
        assert found["host"]["value"] == "::1" and found["kernel"]["value"] == "a=b c=d"
        assert found["chunk-tokens"]["source"] == "default" and found["chunk-tokens"]["value"] == "512"
        by_variable = configuration(plumb, PLUMB_CONFIG=str(file))
        assert by_variable["max-running"]["source"] == f"{file}:3"
        assert configuration(plumb, "other", "--config", str(file))["model"]["source"] == "flag"


def test_mistakes_in_the_file_are_named(plumb, model):
    with folder() as here:
        file = here / "plumb.conf"
        for text, said in [("max-runing = 3", "plumb.conf:1: 'max-runing' is no option"), ("port", "plumb.conf:1"),
                           ("port = 1\nport = 2", "given twice"), ("port = abc", "--port"),
                           ("nothing = 1", "'nothing' is no option")]:
            file.write_text(text)
            ended = run(plumb, "serve", model, "--config", str(file))
            assert ended.returncode == 1 and said in ended.stderr, (text, ended.stderr)
        assert "max-running" in run(plumb, "serve", model, "--config", str(file), PLUMB_MAX_RUNING="1").stderr.lower() \
            .replace("_", "-")
    assert run(plumb, "serve", model, "--config", "/nowhere").returncode == 1


def test_foreign_variables_are_explained(plumb, model):
    ended = run(plumb, "serve", model, "--print-config", PLUMB_PORT="tcp://10.96.0.7:8000",
                PLUMB_SERVICE_HOST="10.96.0.7", PLUMB_PORT_8000_TCP_ADDR="10.96.0.7", PLUMB_NOBODYS="1")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("Kubernetes") == 3 and "PLUMB_NOBODYS" in ended.stderr, ended.stderr
    assert re.search(r"^port +8000 +default$", ended.stdout, re.M), ended.stdout
    near = run(plumb, "serve", model, PLUMB_API_KEYS="secret")
    assert near.returncode == 1 and "PLUMB_API_KEY" in near.stderr, near.stderr
    empty = run(plumb, "serve", model, PLUMB_API_KEY="")
    assert empty.returncode == 1 and "PLUMB_API_KEY is empty" in empty.stderr, empty.stderr


def test_secrets_are_not_printed(plumb, model):
    ended = run(plumb, "serve", model, "--print-config", "--admin-key", "hunter2", PLUMB_API_KEY="hunter3")
    assert ended.returncode == 0 and "hunter" not in ended.stdout, ended.stdout


def table(heading):
    """Rows of the table below a heading of docs/serving.md, cells without backticks."""
    text = DOCS.read_text()
    assert f"## {heading}\n" in text, f"docs/serving.md has no '{heading}'"
    lines = text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0].splitlines()
    rows = [[cell.strip().replace("`", "") for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("|")]
    return rows[2:]


def test_every_option_is_documented_as_it_is(plumb, model):
    real = {e["key"]: (e["flag"], e["variable"], e["default"]) for e in configuration(plumb).values()}
    documented = {key: (flag, variable, default) for flag, key, variable, default, *_ in table("Every option")}
    assert documented == real, f"docs/serving.md and the binary differ: {sorted(set(documented.items()) ^ set(real.items()))}"


def families(text):
    return {line.split()[2]: line.split()[3] for line in text.splitlines() if line.startswith("# TYPE")}


def test_every_metric_is_documented_and_the_dashboard_knows_only_real_ones(plumb, model):
    with started(plumb, model, "--vllm-metrics") as server:
        assert server.request("POST", "/v1/chat/completions", QUESTION)[0] == 200
        text = server.request("GET", "/metrics")[2]
    real = families(text)
    documented = {name: kind for name, kind, *_ in table("Every metric")}
    assert documented == real, f"docs/serving.md and the binary differ: {sorted(set(documented.items()) ^ set(real.items()))}"
    board = (ROOT / "deploy" / "grafana-plumb.json").read_text()
    asked = set(re.findall(r"plumb_[a-z_]+", board))
    series = {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}
    assert asked and asked <= series, f"the dashboard asks for {sorted(asked - series)}, which do not exist"


def test_promtool_has_no_complaint(plumb, model):
    if not shutil.which("promtool"):
        raise serving.Skipped("promtool is not installed (package prometheus)")
    with started(plumb, model) as server:
        server.request("POST", "/v1/chat/completions", QUESTION)
        text = server.request("GET", "/metrics")[2]
    ended = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_test_that_the_table_of_faults_names_exists(plumb, model):
    sources = "".join(path.read_text() for suffix in ("cpp", "py") for path in (ROOT / "tests").rglob(f"*.{suffix}"))
    page = (ROOT / "docs" / "field-faults.md").read_text()

    def exists(test):
        file, _, function = test.rpartition(":")
        return f"def {function}(" in ((ROOT / "tests" / "e2e" / f"{file}.py").read_text() if file else sources)

    named = re.findall(r"`([A-Z]\w+)\.(\w+)`", page)
    missing = [f"{suite}.{test}" for suite, test in named if not re.search(rf"TEST(_F|_P)?\({suite}, {test}\)", sources)]
    missing += [test for test in re.findall(r"`(test_\w+|[a-z]\w+_test:\w+)`", page) if not exists(test)]
    assert len(named) > 60 and not missing, missing


# ---- reaching it ----

def certificate(here):
    if not shutil.which("openssl"):
        raise serving.Skipped("openssl is not installed")
    cert, key = here / "cert.pem", here / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days",
                    "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out",
                    cert], check=True, capture_output=True)
    return cert, key


def https(port, context):
    return http.client.HTTPSConnection("localhost", port, timeout=60, context=context)


def wait_for_https(port, context):
    end = time.monotonic() + serving.READY_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = https(port, context)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        time.sleep(0.05)
    raise AssertionError("not ready in time")


def test_tls(plumb, model):
    with folder() as here:
        cert, key = certificate(here)
        port = serving.free_port()
        log = (here / "log").open("w")  # a pipe that nobody reads would fill while it starts, and stop the server
        process = subprocess.Popen([plumb, "serve", model, "--port", str(port), "--host", "localhost", "--tls-cert", cert,
                                    "--tls-key", key], stderr=log, text=True, env=clean_environment())
        try:
            context = ssl.create_default_context(cafile=str(cert))
            wait_for_https(port, context)
            connection = https(port, context)
            for _ in range(3):  # one connection, several requests
                connection.request("POST", "/v1/chat/completions", json.dumps({**QUESTION, "stream": True}),
                                   {"Content-Type": "application/json"})
                answer = connection.getresponse().read().decode()
                assert answer.endswith("data: [DONE]\n\n"), answer
            with socket.create_connection(("localhost", port)) as plain:  # no TLS at all
                plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert not plain.recv(100).startswith(b"HTTP")
            idle = socket.create_connection(("localhost", port))  # must not hold up the end
            old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
            old.maximum_version = ssl.TLSVersion.TLSv1_1
            try:
                with socket.create_connection(("localhost", port)) as s, old.wrap_socket(s):
                    raise AssertionError("TLS 1.1 was accepted")
            except (ssl.SSLError, OSError):
                pass
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
            idle.close()
        finally:
            process.kill()
            process.communicate()
            log.close()
        other = here / "other.pem"
        other.write_text("no key")
        ended = run(plumb, "serve", model, "--port", "0", "--tls-cert", str(cert), "--tls-key", str(other))
        assert ended.returncode == 1 and "--tls-key" in ended.stderr, ended.stderr
        assert run(plumb, "serve", model, "--port", "0", "--tls-cert", str(cert)).returncode == 1


def test_unix_socket(plumb, model):
    with folder() as here, started(plumb, model, "--unix-socket", str(here / "s")):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(here / "s"))
            client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(1000).startswith(b"HTTP/1.1 200")


def test_many_connections_beyond_the_limit_of_files_are_named(plumb, model):
    port = serving.free_port()
    command = f"ulimit -n 256; exec {plumb} serve {model} --port {port} --max-connections 4096"
    process = subprocess.Popen(["bash", "-c", command], stderr=subprocess.PIPE, text=True, env=clean_environment())
    line = ""
    while "file descriptors" not in line and process.poll() is None:
        line = process.stderr.readline()
    process.terminate()
    process.communicate()
    assert "limited to 256" in line and "at most 128 connections" in line, line


def test_salts_keep_prefixes_apart(plumb, model):
    with started(plumb, model) as server:
        def cached(**fields):
            body = {"prompt": "The stone in the river is older than the bridge. " * 20, "max_tokens": 1, **fields}
            status, _, text = server.request("POST", "/v1/completions", body)
            assert status == 200, text
            return json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert [cached(), cached(cache_salt="a"), cached(cache_salt="b")] == [0, 0, 0]
        assert all(n > 0 for n in (cached(), cached(cache_salt="a"), cached(cache_salt="b")))


# ---- what it says ----

def test_one_line_for_each_request_and_no_text_of_prompts(plumb, model):
    with started(plumb, model, "--log-format", "json") as server:
        secret = {**QUESTION, "messages": [{"role": "user", "content": "tangerine"}]}
        assert server.request("POST", "/v1/chat/completions", secret, {"x-request-id": "my-id"})[0] == 200
        assert server.request("POST", "/v1/chat/completions", {"messages": "tangerine"})[0] == 400
    lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    asked = [line for line in lines if line["message"] == "request" and line["path"] == "/v1/chat/completions"]
    assert len(asked) == 2 and asked[0]["id"] == "my-id" and asked[0]["status"] == 200, asked
    assert asked[0]["completion_tokens"] > 0 and asked[0]["finish"] in ("stop", "length"), asked
    assert asked[0]["first_token_ms"] <= asked[0]["ms"] and asked[1]["status"] == 400, asked
    assert "tangerine" not in server.log


def test_a_crash_leaves_a_report(plumb, model):
    with folder() as here:
        server = serving.Server(plumb, model, "--crash-dir", str(here / "crashes"), "--api-key", "hunter2")
        server.wait_until_ready()
        server.request("POST", "/v1/chat/completions", {**QUESTION, "messages": [{"role": "user", "content": "tangerine"}]},
                       {"Authorization": "Bearer hunter2"})
        server.process.send_signal(signal.SIGSEGV)
        assert server.process.wait(30) == -signal.SIGSEGV, server.process.returncode
        reports = list((here / "crashes").iterdir())
        assert len(reports) == 1 and "crash report written" in server.log, (reports, server.log)
        text = reports[0].read_text()
        for part in ("Segmentation fault", "frames", "ready:", "fingerprint", "max-running", "linear"):
            assert part in text, part
        assert "hunter2" not in text and "tangerine" not in text
    assert run(plumb, "serve", model, "--port", "0", "--crash-dir", "/dev/null/x").returncode == 1


def test_a_second_signal_ends_at_once(plumb, model):
    server = serving.Server(plumb, model, "--drain-ms", "60000", "--backend", "reference")
    server.wait_until_ready()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        body = json.dumps({**QUESTION, "max_tokens": 2000, "ignore_eos": True, "stream": True})
        client.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                       f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        server.process.send_signal(signal.SIGTERM)
        server.wait_for(lambda: "draining" in server.request("GET", "/health")[2])
        status, headers, text = server.request("POST", "/v1/chat/completions", QUESTION)
        assert status == 503 and "Retry-After" in headers, text
        time.sleep(0.2)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 1


def test_a_signal_while_loading_ends_it_well(plumb, model):
    server = serving.Server(plumb, model)
    server.wait_for(lambda: "listening" in server.log)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) == 0, server.log
    assert "stopped" in server.log


if __name__ == "__main__":
    sys.exit(serving.run_functions(globals(), sys.argv[1], sys.argv[2]))
