"""What deploy/ and docs/serving-operations.md say holds: the unit, the proxy, the container's
packages, the dashboard, and the commands of the page."""

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

sys.path[:0] = ["tests/support", "tests/server"]
from cli import MODE, PROGRAM, Skip, deepinfer, environment, main, succeeds, test  # noqa: E402
from serving import chat, demo  # noqa: E402

PAGE = Path("docs/serving-operations.md")


def need(program):
    found = shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    if not found:
        raise Skip(f"{program} is not installed")
    return found


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@test
def test_the_unit_is_valid_and_takes_away_what_it_can(folder):
    analyze = need("systemd-analyze")
    text = Path("deploy/systemd/deepinfer.service").read_text()
    unit = folder / "deepinfer.service"
    unit.write_text(text.replace("/usr/local/bin/deepinfer", str(PROGRAM))
                    .replace("Documentation=man:deepinfer(1)\n", ""))
    done = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr.strip(), done.stderr
    done = subprocess.run([analyze, "security", "--offline=true", unit], capture_output=True,
                          text=True, timeout=60)
    exposure = re.search(r"Overall exposure level.*?: ([\d.]+)", done.stdout)
    if not exposure:
        raise Skip("this systemd-analyze cannot look at files")
    assert float(exposure[1]) <= float(re.search(r"is ([\d.]+) of 10", PAGE.read_text())[1]), exposure[0]


@test
def test_the_units_environment_names_options_of_serve(_):
    options = succeeds(deepinfer("help", "serve")).out
    words = re.findall(r"^(?:Environment=)?(DEEPINFER_[A-Z_]+)=", "\n".join(
        Path(p).read_text() for p in ("deploy/systemd/deepinfer.env",
                                      "deploy/systemd/deepinfer.service")), re.M)
    words += re.findall(r"^(?:ENV|   ) *(DEEPINFER_[A-Z_]+)=", Path("deploy/Dockerfile").read_text(), re.M)
    assert len(words) >= 9
    for word in words:
        assert word in options, word


@test
def test_nginx_passes_streams_on_as_they_come_and_hangs_up(folder):
    nginx, openssl = need("nginx"), need("openssl")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    subprocess.run([openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out",
                    certificate, "-days", "2", "-subj", "/CN=llm.example.com"], check=True,
                   capture_output=True)
    with demo() as server:
        port = free_port()
        site = Path("deploy/proxy/nginx.conf").read_text()
        site = re.sub(r"ssl_certificate .*;", f"ssl_certificate {certificate};", site)
        site = re.sub(r"ssl_certificate_key .*;", f"ssl_certificate_key {key};", site)
        site = site.replace("127.0.0.1:8000", server.address).replace(
            "listen 443", f"listen 127.0.0.1:{port}").replace("    listen [::]:443 ssl http2;\n", "")
        # Requests come to this server by another name than its own; without keys it minds.
        site = site.replace("proxy_set_header Host $host;", "proxy_set_header Host localhost;")
        (folder / "nginx.conf").write_text(f"""
            pid {folder}/pid; error_log {folder}/log; daemon off; worker_processes 1; user root;
            events {{ worker_connections 256; }}
            http {{ access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;
                fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
                {site} }}""")
        process = subprocess.Popen([nginx, "-e", folder / "log", "-c", folder / "nginx.conf"],
                                   stderr=subprocess.PIPE)
        try:
            context = ssl.create_default_context(cafile=str(certificate))
            end = time.monotonic() + 20
            while True:
                try:
                    raw = socket.create_connection(("127.0.0.1", port), 30)
                    break
                except OSError:
                    assert process.poll() is None, process.stderr.read()
                    assert time.monotonic() < end
                    time.sleep(0.05)
            # An answer far longer than the test waits for: its beginning comes at once.
            body = json.dumps(chat("Count", stream=True, ignore_eos=True, max_tokens=3500)).encode()
            with context.wrap_socket(raw, server_hostname="llm.example.com") as s:
                s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: llm.example.com\r\n"
                          b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
                          + body)
                text = b""
                while text.count(b"data: ") < 5:
                    piece = s.recv(65536)
                    assert piece, text
                    text += piece
                assert b"HTTP/1.1 200" in text and b"[DONE]" not in text, text
            end = time.monotonic() + 30  # the client is gone, and so is the work
            while True:
                status, _, metrics = server.request("GET", "/metrics")
                if re.search(rb"^deepinfer:requests_cancelled_total\S* 1$", metrics, re.M):
                    break
                assert status == 200 and time.monotonic() < end, metrics.decode()
                time.sleep(0.05)
        finally:
            process.terminate()
            process.wait(20)


@test
def test_the_container_has_the_libraries_that_the_program_loads(_):
    need("dpkg-query")
    if MODE != "release":
        raise Skip("sanitizers bring libraries of their own")
    text = Path("deploy/Dockerfile").read_text()
    for copied in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.M):
        for path in copied.split():
            assert Path(path).exists(), path
    installed = set(re.search(r"no-install-recommends (.*?)\s*&& rm", text, re.S)[1].replace("\\", " ").split())
    # Those of a bare Debian, and what the packages above bring with them.
    wanted, brought = set(), {"libc6", "libgcc-s1", "zlib1g"}
    for package in installed:
        depends = subprocess.run(["dpkg-query", "-W", "-f=${Depends}", package], capture_output=True,
                                 text=True, check=True).stdout
        brought |= set(re.findall(r"([a-z0-9.+-]+)(?: \(.*?\))?(?:, |$| \|)", depends))
    ldd = subprocess.run(["objdump", "-p", PROGRAM], capture_output=True, text=True, check=True).stdout
    libraries = re.findall(r"NEEDED\s+(\S+)", ldd)
    assert len(libraries) > 5, libraries
    for library in libraries:
        found = subprocess.run(["dpkg-query", "-S", "*/" + library], capture_output=True, text=True)
        packages = {line.split(":")[0] for line in found.stdout.splitlines()}
        assert packages, f"no package has {library}"
        wanted.add(frozenset(packages))
    for packages in wanted:
        assert packages & (installed | brought), f"not in the container: {set(packages)}"


@test
def test_dashboard_and_alerts_ask_for_metrics_that_there_are(_):
    board = json.loads(Path("deploy/grafana/deepinfer.json").read_text())
    asked = set()
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            asked |= set(re.findall(r"\b(?:vllm|deepinfer):[a-z_0-9]+|\bprocess_[a-z_]+", target["expr"]))
    assert len(asked) > 40, asked
    asked |= set(re.findall(r"\b(?:vllm|deepinfer):[a-z_0-9]+", Path("deploy/prometheus/alerts.yml").read_text()))
    page = PAGE.read_text()
    with demo() as server:
        server.post("/v1/chat/completions", chat("Who wrote Dracula?", max_tokens=3))
        text = server.request("GET", "/metrics")[2].decode()
    told = set(re.findall(r"^# TYPE (\S+)", text, re.M))
    for name in asked:
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        assert name in told or family in told, name
    for name in set(re.findall(r"`((?:vllm|deepinfer):[a-z_0-9]+)", page)):
        assert name in told, f"the page names {name}"


@test
def test_the_alerts_are_rules_that_prometheus_reads(_):
    done = subprocess.run([need("promtool"), "check", "rules", "deploy/prometheus/alerts.yml"],
                          capture_output=True, text=True, timeout=60)
    count = Path("deploy/prometheus/alerts.yml").read_text().count("- alert:")
    assert done.returncode == 0 and f"{count} rules found" in done.stdout, done.stdout + done.stderr


@test
def test_the_pages_commands_work_as_they_stand(folder):
    blocks = re.findall(r"<!-- tested -->\n```sh\n(.*?)```", PAGE.read_text(), re.S)
    assert len(blocks) >= 2
    (folder / "models").symlink_to(Path("models").resolve())
    (folder / "bin").mkdir()
    (folder / "bin/deepinfer").symlink_to(PROGRAM)
    env = environment(PATH=f"{folder}/bin:" + os.environ["PATH"], DEEPINFER_PORT="0")
    for block in blocks:
        *lines, last = block.strip().splitlines()
        if last.startswith("deepinfer serve"):
            server = last
        else:
            lines.append(last)
        done = subprocess.run(["bash", "-e", "-c", "\n".join(lines)], cwd=folder, env=env,
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (lines, done.stderr)
    with subprocess.Popen(server.split(), cwd=folder, env=env, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True, executable=str(PROGRAM)) as process:
        try:
            line = next(l for l in process.stderr if "serving" in l)
            assert "http://127.0.0.1:" in line, line
        finally:
            process.terminate()
            process.stderr.read()
    assert process.returncode == 0, process.returncode
    assert (folder / "quota").read_text().startswith("deepinfer-quota 1 ")


main()
