"""What deploy/ holds is tried: the proxies in front of a server, the unit, the rules and the dashboard,
and the Dockerfile's own commands. Programs that are not here are skipped (Debian: nginx-light, caddy,
systemd, prometheus; buildah and debootstrap for CONTAINER=1)."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import warnings
from pathlib import Path

sys.path[:0] = ["tests/support"]
from cli import DEMO, MODE, PATIENCE, PROGRAM, Skip, deepinfer, environment, main, succeeds, test  # noqa: E402
from serving import chat, demo, raw_post, read_response, scripted, stream_text  # noqa: E402

PATH = "/v1/chat/completions"


def need(*programs):
    for p in programs:
        if not shutil.which(p):
            raise Skip(f"no {p} here")


def run(*words, **more):
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=PATIENCE, **more)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Proxy:
    """A proxy that runs until the end of `with`."""

    def __init__(self, words, port, context=None):
        self.port, self.context = port, context
        self.process = subprocess.Popen([str(w) for w in words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                        text=True)

    def connect(self):
        s = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        return self.context.wrap_socket(s, server_hostname="localhost") if self.context else s

    def __enter__(self):
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self.connect().close()
                return self
            except OSError:
                assert self.process.poll() is None and time.monotonic() < end, self.process.stderr.read()
                time.sleep(0.05)

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate(timeout=PATIENCE)


def check_proxy(s, proxy, host):
    """What the page asks of one: streams as they come, errors and ids as they are, and a client that
    leaves is seen by the server."""
    head = raw_post(PATH, chat("@say whole")).replace(b"Host: localhost", b"Host: " + host)
    with proxy.connect() as c:
        c.sendall(head)
        status, headers, body = read_response(c.makefile("rb"))
        assert status == 200 and json.loads(body)["choices"][0]["message"]["content"] == "whole", body
        assert headers["x-request-id"]
        c.sendall(raw_post(PATH, "{").replace(b"Host: localhost", b"Host: " + host))
        assert read_response(c.makefile("rb"))[0] == 400
    with proxy.connect() as c:
        c.sendall(raw_post(PATH, chat("@hold", stream=True)).replace(b"Host: localhost", b"Host: " + host))
        s.settled(running=1)
        cancelled = s.stats()["cancelled"]
    s.settled(running=0, cancelled=cancelled + 1)  # in the prompt
    with proxy.connect() as c:
        c.sendall(raw_post(PATH, chat("@delay=20 @count=3000", stream=True, max_tokens=3000))
                  .replace(b"Host: localhost", b"Host: " + host))
        data = b""
        while data.count(b"data: ") < 3:  # it comes through while the answer goes on
            data += c.recv(4096)
        assert s.stats()["running"] == 1 and data.count(b"data: ") < 1000
    s.settled(running=0, cancelled=cancelled + 2)  # in the answer
    text = "all of it, " * 200
    with proxy.connect() as c:
        c.sendall(raw_post(PATH, chat("@say " + text, stream=True, max_tokens=3000))
                  .replace(b"Host: localhost", b"Host: " + host))
        status, _, body = read_response(c.makefile("rb"))
        assert status == 200 and stream_text(body) == text, len(body)


def make_certificate(folder):
    need("openssl")
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
        "-keyout", folder / "key.pem", "-out", folder / "cert.pem", check=True)
    os.chmod(folder / "key.pem", 0o600)
    context = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    context.check_hostname = False
    return context


class Direct:
    """The server itself behind its own TLS."""

    def __init__(self, s, context):
        self.s, self.context = s, context

    def connect(self):
        return self.context.wrap_socket(self.s.connect(), server_hostname="localhost")


@test
def test_the_server_speaks_tls_itself(folder):
    context = make_certificate(folder)
    for threads in (1, 2):
        with scripted(max_stream=1 << 28, tls_cert=folder / "cert.pem", tls_key=folder / "key.pem",
                      threads=threads) as s:
            check_proxy(s, Direct(s, context), b"localhost")
            with s.connect() as c:  # no TLS, garbage, half a handshake: nobody else is disturbed
                c.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert not c.recv(1000).startswith(b"HTTP")
            half = s.connect()
            half.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
            check_proxy(s, Direct(s, context), b"localhost")
            half.close()
            warnings.simplefilter("ignore", DeprecationWarning)
            old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
            try:
                old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
                old.wrap_socket(s.connect()).close()
                raise AssertionError("TLS 1.1 is spoken")
            except (ssl.SSLError, OSError):
                pass
    with demo("--tls-cert", folder / "cert.pem", "--tls-key", folder / "key.pem") as s:
        with Direct(s, context).connect() as c:
            c.sendall(raw_post(PATH, chat("Who wrote Dracula?", temperature=0)))
            assert b"Stoker" in read_response(c.makefile("rb"))[2]
    for words, told in [(["--tls-cert", folder / "cert.pem"], "--tls-key"),
                        (["--tls-cert", folder / "cert.pem", "--tls-key", folder / "cert.pem"], "can be read by others"),
                        (["--tls-cert", folder / "key.pem", "--tls-key", folder / "key.pem"], "PEM"),
                        (["--tls-cert", folder / "none", "--tls-key", folder / "key.pem"], "none")]:
        r = deepinfer("serve", "-m", DEMO, "--port", 0, "-q", *words)
        assert r.status in (1, 2) and told in r.err and len(r.err.splitlines()) == 1, r


def replace_certificate(folder, kind):
    """Another pair in place of the one that is there, and a context that trusts it."""
    run("openssl", "req", "-x509", *kind, "-nodes", "-days", "2", "-subj", "/CN=localhost",
        "-keyout", folder / "new-key.pem", "-out", folder / "new-cert.pem", check=True)
    os.chmod(folder / "new-key.pem", 0o600)
    os.rename(folder / "new-key.pem", folder / "key.pem")
    os.rename(folder / "new-cert.pem", folder / "cert.pem")
    context = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    context.check_hostname = False
    return context


def hang_up(server):
    """SIGHUP; the line that tells what came of it."""
    server.process.send_signal(signal.SIGHUP)
    return server.process.stderr.readline()


def ask(connection):
    connection.sendall(raw_post(PATH, chat("@say whole")))
    return read_response(connection.makefile("rb"))[0]


@test
def test_a_new_certificate_is_taken_without_a_restart(folder):
    first = make_certificate(folder)
    rsa, ec = ["-newkey", "rsa:2048"], ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    with scripted(tls_cert=folder / "cert.pem", tls_key=folder / "key.pem", threads=2) as s:
        with Direct(s, first).connect() as held, Direct(s, first).connect() as streaming:
            assert ask(held) == 200
            streaming.sendall(raw_post(PATH, chat("@delay=10 @count=100", stream=True)))
            asking = s.connect()  # its handshake is still to come
            second = replace_certificate(folder, ec)
            assert hang_up(s) == "reloaded\n"
            either = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            either.check_hostname, either.verify_mode = False, ssl.CERT_NONE
            with either.wrap_socket(asking) as c:
                assert ask(c) == 200
            with Direct(s, second).connect() as c:
                assert ask(c) == 200
            try:
                Direct(s, first).connect()
                raise AssertionError("the old certificate is shown")
            except ssl.SSLCertVerificationError:
                pass
            assert ask(held) == 200
            status, _, body = read_response(streaming.makefile("rb"))
            assert status == 200 and b"[DONE]" in body
        # files that are no good: the old certificate stays, and the log says what is wrong
        cert, key = (folder / "cert.pem").read_bytes(), (folder / "key.pem").read_bytes()
        for name, content, mode, told in [("cert.pem", b"no PEM\n", 0o600, "PEM"), ("cert.pem", b"", 0o600, "cert.pem"),
                                          ("key.pem", cert, 0o600, "PEM"),
                                          ("key.pem", key, 0o644, "can be read by others")]:
            (folder / name).write_bytes(content)
            os.chmod(folder / name, mode)
            line = hang_up(s)
            assert told in line, line
            with Direct(s, second).connect() as c:
                assert ask(c) == 200
            (folder / "cert.pem").write_bytes(cert)
            (folder / "key.pem").write_bytes(key)
            os.chmod(folder / "key.pem", 0o600)
        replace_certificate(folder, rsa)
        os.rename(folder / "key.pem", folder / "other.pem")
        (folder / "key.pem").write_bytes(key)  # of the other certificate
        os.chmod(folder / "key.pem", 0o600)
        assert "its own key" in hang_up(s)
        with Direct(s, second).connect() as c:
            assert ask(c) == 200
        os.remove(folder / "key.pem")
        assert "key.pem" in hang_up(s)
        # what is right again is taken; asking for the same again and again costs no memory
        third = replace_certificate(folder, rsa)
        assert hang_up(s) == "reloaded\n"
        with Direct(s, third).connect() as c:
            assert ask(c) == 200
        before = s.memory()
        for _ in range(300):
            assert hang_up(s) == "reloaded\n"
        assert s.memory() - before < 1 << 20 or MODE != "release", s.memory() - before
        with Direct(s, third).connect() as c:
            assert ask(c) == 200


@test
def test_nginx_passes_streams_and_leaving_clients_on(folder):
    need("nginx")
    port, context = free_port(), make_certificate(folder)
    with scripted(max_stream=1 << 28) as s:
        conf = Path("deploy/proxy/nginx.conf").read_text()
        for old, new in [("listen 443 ssl http2;", f"listen 127.0.0.1:{port} ssl;"),
                         ("    listen [::]:443 ssl http2;\n", ""), ("server 127.0.0.1:8000;", f"server {s.address};"),
                         ("/etc/letsencrypt/live/llm.example.com/fullchain.pem", str(folder / "cert.pem")),
                         ("/etc/letsencrypt/live/llm.example.com/privkey.pem", str(folder / "key.pem"))]:
            assert old in conf, old
            conf = conf.replace(old, new)
        user = "user root;\n" if os.geteuid() == 0 else ""
        paths = "".join(f"  {k}_temp_path {folder}/{k};\n" for k in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        (folder / "nginx.conf").write_text(
            f"{user}daemon off;\npid {folder}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\n  access_log off;\n"
            f"{paths}{conf}}}\n")
        checked = run("nginx", "-t", "-e", "stderr", "-c", folder / "nginx.conf")
        assert checked.returncode == 0 and "warn" not in checked.stderr, checked.stderr
        with Proxy(["nginx", "-e", "stderr", "-c", folder / "nginx.conf"], port, context) as proxy:
            check_proxy(s, proxy, b"localhost")


@test
def test_caddy_passes_streams_and_leaving_clients_on(folder):
    need("caddy")
    source = "deploy/proxy/Caddyfile"
    env = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    checked = run("caddy", "validate", "--config", source, "--adapter", "caddyfile", env=env)
    assert checked.returncode == 0, checked.stderr
    port = free_port()
    with scripted(max_stream=1 << 28) as s:
        conf = Path(source).read_text()
        for old, new in [("llm.example.com {", f"http://localhost:{port} {{"), ("127.0.0.1:8000", s.address)]:
            assert old in conf, old
            conf = conf.replace(old, new)
        (folder / "Caddyfile").write_text("{\n\tadmin off\n}\n" + conf)
        words = ["env", f"HOME={folder}", f"XDG_DATA_HOME={folder}", f"XDG_CONFIG_HOME={folder}", "caddy", "run",
                 "--config", folder / "Caddyfile", "--adapter", "caddyfile"]
        with Proxy(words, port) as proxy:
            check_proxy(s, proxy, b"localhost:%d" % port)


@test
def test_the_unit_is_one_and_closed(folder):
    need("systemd-analyze")
    unit = Path("deploy/systemd/deepinfer.service").read_text()
    assert "ExecStart=/usr/local/bin/deepinfer serve" in unit
    (folder / "deepinfer.service").write_text(unit.replace("/usr/local/bin/deepinfer", str(PROGRAM)))
    checked = run("systemd-analyze", "verify", folder / "deepinfer.service")
    said = [line for line in checked.stderr.splitlines() if "man deepinfer" not in line]  # is installed or not
    assert not said, said
    rated = run("systemd-analyze", "security", "--offline=true", folder / "deepinfer.service")
    level = re.search(r"exposure level for deepinfer.service: ([\d.]+)", rated.stdout)
    assert level and float(level[1]) <= 1.5, rated.stdout[-300:]
    print(f"# exposure {level[1]}")
    if shutil.which("systemd-sysusers"):
        made = run("systemd-sysusers", "--dry-run", Path("deploy/systemd/deepinfer.sysusers").resolve())
        assert made.returncode == 0, made.stderr
    # the page names the same files
    page = Path("docs/serving-operations.md").read_text()
    for name in ("deepinfer.sysusers", "deepinfer.service", "deepinfer.env"):
        assert f"deploy/systemd/{name}" in page


def known_variables():
    return set(re.findall(r"`(DEEPINFER_\w+)`", succeeds(deepinfer("help", "--markdown")).out))


def start_with(variables, folder):
    """The server as the unit or the container starts it: by its environment alone."""
    keys = folder / "keys"
    key = succeeds(deepinfer("key", "new", "alice", "--api-key-file", keys)).out.strip()
    port = free_port()
    values = {**variables, "DEEPINFER_MODEL": str(DEMO), "DEEPINFER_PORT": str(port),
              "DEEPINFER_API_KEY_FILE": str(keys), "DEEPINFER_QUOTA_JOURNAL": str(folder / "quota"),
              "DEEPINFER_ACCESS_LOG": "none", "DEEPINFER_KV_MEMORY": "200M"}
    process = subprocess.Popen([str(PROGRAM), "serve"], env=environment(**values), stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "serving" in line:
            return process, port, key
    raise AssertionError(process.wait())


@test
def test_the_units_environment_starts_the_server(folder):
    lines = [x for x in Path("deploy/systemd/deepinfer.env").read_text().splitlines() if x and x[0] != "#"]
    variables = dict(x.split("=", 1) for x in lines)
    assert set(variables) <= known_variables() and len(variables) >= 4, variables
    process, port, key = start_with(variables, folder)
    try:
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        c.request("GET", "/v1/models", headers={"X-Api-Key": key})
        assert c.getresponse().status == 200
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0


@test
def test_alerts_and_dashboard_name_metrics_that_there_are(folder):
    rules = Path("deploy/prometheus/alerts.yml")
    if shutil.which("promtool"):
        checked = run("promtool", "check", "rules", rules)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    dashboard = json.loads(Path("deploy/grafana/deepinfer.json").read_text())
    queries = [t["expr"] for p in dashboard["panels"] for t in p.get("targets", [])]
    assert len(queries) > 20
    with demo() as s:
        s.post(PATH, chat("x", max_tokens=2))
        text = s.request("GET", "/metrics")[2].decode()
    there = {m for line in text.splitlines() if line.startswith("# TYPE ") for m in [line.split()[2]]}
    asked = set(re.findall(r"(?:vllm|deepinfer):\w+", rules.read_text() + " ".join(queries)))
    assert len(asked) > 30
    wrong = [m for m in asked if re.sub(r"_(bucket|sum|count)$", "", m) not in there and m not in there]
    assert not wrong, wrong


# ---- the Dockerfile -----------------------------------------------------------------------------


def dockerfile():
    """[[instruction, rest], ...] for each stage, lines joined."""
    text = re.sub(r"\\\n\s*", "", Path("deploy/Dockerfile").read_text())
    stages = []
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            stages.append([])
        if word.isupper() and stages:
            stages[-1].append((word, rest.strip()))
    return stages


@test
def test_the_dockerfile_copies_what_its_build_needs(folder):
    build, final = dockerfile()
    ignored = [x[1:] for x in Path("deploy/Dockerfile.dockerignore").read_text().splitlines() if x.startswith("!")]
    for word, rest in build:
        if word == "COPY":
            *sources, target = rest.split()
            for source in sources:
                assert any(source == x or x.startswith(source.rstrip("/") + "/") for x in ignored), (source, ignored)
                to = folder / target if len(sources) == 1 and not target.endswith("/") else folder / target / source
                if len(sources) == 1 and target.endswith("/"):
                    to = folder / target / Path(source).name
                to.parent.mkdir(parents=True, exist_ok=True)
                if Path(source).is_dir():
                    shutil.copytree(source, to)
                else:
                    shutil.copy(source, to)
    make = [rest for word, rest in build if word == "RUN" and rest.startswith("make")]
    assert len(make) == 1, make
    # its own command, without doing it: every file that a rule needs must be there
    tried = run("sh", "-c", make[0].replace("make ", "make -n ", 1), cwd=folder)
    assert tried.returncode == 0 and "deepinfer" in tried.stdout, tried.stderr[-2000:]
    assert ("COPY", "--from=build /out/usr/bin/deepinfer /usr/bin/deepinfer") in final


@test
def test_the_dockerfile_installs_the_libraries_that_the_program_needs(folder):
    need("ldd", "dpkg")
    install = next(rest for word, rest in dockerfile()[1] if word == "RUN")
    packages = set(re.search(r"--no-install-recommends (.*?)(&&|$)", install)[1].split())
    assert len(packages) >= 5, install
    for path in re.findall(r"=> (/\S+)", run("ldd", PROGRAM).stdout):
        owner = run("dpkg", "-S", os.path.realpath(path)).stdout or \
            run("dpkg", "-S", re.sub("^/lib", "/usr/lib", os.path.realpath(path))).stdout or \
            run("dpkg", "-S", re.sub("^/usr", "", os.path.realpath(path))).stdout
        package = owner.split(":")[0]
        if not package or "asan" in path or "tsan" in path or "ubsan" in path:
            continue  # not a Debian's
        needed = {package} | {"libc6"} if package == "libc6" else {package}
        base = {"libc6", "libgcc-s1", "libstdc++6", "libpcre2-8-0", "libgmp10", "zlib1g"}  # in the image
        follows = run("apt-cache", "depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts",
                      "--no-breaks", "--no-replaces", "--no-enhances", *packages).stdout
        assert needed <= packages | base or f"\n{package}\n" in "\n" + follows, (path, package)


@test
def test_the_containers_environment_and_health_check(folder):
    final = dockerfile()[1]
    variables = dict(x.split("=", 1) for word, rest in final if word == "ENV" for x in rest.split())
    assert set(variables) <= known_variables() and len(variables) >= 5, variables
    assert ("ENTRYPOINT", '["deepinfer", "serve"]') in final
    check = json.loads(re.search(r"CMD (\[.*\])", dict(final)["HEALTHCHECK"])[1])
    process, port, _ = start_with(variables, folder)
    try:
        here = {**os.environ, "DEEPINFER_PORT": str(port)}
        assert run(*check, env=here).returncode == 0
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0
    assert run(*check, env=here).returncode != 0


@test
def test_the_container_itself(folder):
    """Built by buildah on a base that debootstrap makes, and run. Takes minutes and a Debian mirror."""
    if not os.environ.get("CONTAINER"):
        raise Skip("CONTAINER=1 builds it")
    need("buildah", "debootstrap")
    base = folder / "base"
    store = ["--root", folder / "root", "--runroot", folder / "run", "--storage-driver", "vfs"]

    def buildah(*words):
        done = subprocess.run([str(w) for w in ("buildah", *store, *words)], capture_output=True, text=True)
        assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-3000:])
        return done.stdout.strip()
    made = subprocess.run(["debootstrap", "--variant=minbase", "bookworm", str(base)], capture_output=True, text=True)
    assert made.returncode == 0, made.stdout[-2000:]
    first = buildah("from", "scratch")
    buildah("copy", first, base, "/")
    buildah("commit", first, "docker.io/library/debian:bookworm-slim")
    buildah("bud", "--isolation", "chroot", "--pull-never", "--network", "host", "-f", "deploy/Dockerfile", "-t",
            "deepinfer", ".")
    made = buildah("from", "--pull-never", "deepinfer")
    said = buildah("run", "--isolation", "chroot", made, "--", "/bin/sh", "-c", "id -u; deepinfer version")
    assert said.splitlines()[0] == "10001" and "0.1" in said, said
    print("# " + said.splitlines()[1])


if __name__ == "__main__":
    main()
