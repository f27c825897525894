"""deepinfer key: keys are made once, listed without secrets, and faults of the file are named."""

import json
import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, "tests/support")
from cli import complains, deepinfer, main, succeeds, test


def new(path, name, *options):
    result = succeeds(deepinfer("key", "new", name, "--api-key-file", path, *options))
    return result.out.strip()


@test
def test_new_prints_the_key_once_and_keeps_its_hash(folder):
    path = folder / "keys.jsonl"
    token = new(path, "alice", "--tokens-per-day", "1000", "--models", "a,b", "--cache", "shared",
                "--priority", "-3", "--concurrency", "2", "--note", "it's \"hers\" ü")
    assert token.startswith("sk-di-alice-") and len(token) == len("sk-di-alice-") + 43, token
    text = path.read_text(encoding="utf-8")
    assert token.rsplit("-", 1)[1] not in text
    record = json.loads(text)
    assert record["id"] == "alice" and record["hash"].startswith("blake2b:"), record
    assert record["models"] == ["a", "b"] and record["cache"] == "shared", record
    assert record["priority"] == -3 and record["concurrency"] == 2, record
    assert record["tokens_per_day"] == 1000 and record["note"] == "it's \"hers\" ü", record
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


@test
def test_a_second_key_of_one_name_is_refused_and_changes_nothing(folder):
    path = folder / "keys.jsonl"
    new(path, "alice")
    before = path.read_bytes()
    complains(deepinfer("key", "new", "alice", "--api-key-file", path), 1, "alice", "line 1")
    complains(deepinfer("key", "new", "Alice", "--api-key-file", path), 1, "Alice", "a-z")
    complains(deepinfer("key", "new", "bob", "--expires", "soon", "--api-key-file", path), 1,
              "expires", "soon")
    complains(deepinfer("key", "new", "--api-key-file", path), 1, "needs an id")
    assert path.read_bytes() == before


@test
def test_check_tells_whose_a_key_is(folder):
    path = folder / "keys.jsonl"
    alice, bob = new(path, "alice"), new(path, "bob", "--expires", "2020-01-01")
    ask = lambda text: deepinfer("key", "check", "--stdin", "--api-key-file", path, stdin=text)
    assert succeeds(ask(alice + "\n")).out.startswith("alice ")
    complains(ask(bob + "\n"), 1, "expired")
    complains(ask(alice[:-1] + ("x" if alice[-1] != "x" else "y")), 1, "not valid")
    complains(ask(""), 1, "no key")
    complains(ask("\n"), 1, "no key")
    assert succeeds(deepinfer("key", "check", "--api-key-file", path)).out == "2 keys, no fault\n"


@test
def test_list_shows_limits_and_no_secrets(folder):
    path = folder / "keys.jsonl"
    new(path, "alice", "--requests-per-minute", "60", "--admin")
    late = succeeds(deepinfer("key", "new", "bob", "--expires", "2020-01-01", "--api-key-file", path))
    assert "key 'bob' has expired already" in late.err, late
    out = succeeds(deepinfer("key", "list", "--api-key-file", path)).out
    lines = out.splitlines()
    assert len(lines) == 2 and "requests/min 60" in lines[0] and "admin" in lines[0], out
    assert "expired" in lines[1] and "blake2b" not in out, out


@test
def test_renew_lets_old_and_new_secrets_in_until_the_old_are_dropped(folder):
    path = folder / "keys.jsonl"
    path.write_text("# mine\n\n")
    os.chmod(path, 0o640)
    tokens = [new(path, "alice", "--concurrency", "3")]
    bob = new(path, "bob")
    renew = lambda *options: succeeds(
        deepinfer("key", "renew", "alice", "--api-key-file", path, *options)).out.strip()
    is_in = lambda token: deepinfer("key", "check", "--stdin", "--api-key-file", path,
                                    stdin=token).status == 0
    for _ in range(5):
        tokens.append(renew())
    assert [is_in(t) for t in tokens] == [False, False, True, True, True, True]
    tokens.append(renew("--drop-old"))
    assert [is_in(t) for t in tokens] == [False] * 6 + [True] and is_in(bob)
    text = path.read_text()
    assert text.startswith("# mine\n\n") and '"concurrency":3' in text, text
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o640
    assert os.listdir(folder) == ["keys.jsonl"]
    complains(deepinfer("key", "renew", "carol", "--api-key-file", path), 1, "carol")
    assert path.read_text() == text


@test
def test_keys_made_at_once_are_all_there(folder):
    path = folder / "keys.jsonl"
    new(path, "alice")
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(new, path, f"k{i}") for i in range(24)]
        jobs += [pool.submit(deepinfer, "key", "renew", "alice", "--api-key-file", path)
                 for _ in range(8)]
        for job in jobs:
            job.result()
    assert succeeds(deepinfer("key", "check", "--api-key-file", path)).out == "25 keys, no fault\n"


@test
def test_faults_of_the_file_are_named_with_their_line(folder):
    path = folder / "keys.jsonl"
    new(path, "alice")
    with open(path, "a", encoding="utf-8") as f:
        f.write('\n{"id": "bob", "hsh": ""}\n')
    for what in ("list", "check"):
        complains(deepinfer("key", what, "--api-key-file", path), 1, "keys.jsonl, line 3", "hsh",
                  "hash")
    os.chmod(path, 0o644)
    complains(deepinfer("key", "check", "--api-key-file", path), 1, "0644", "0600")
    complains(deepinfer("key", "check", "--api-key-file", folder / "none"), 1, "none")


@test
def test_what_is_no_action_is_wrong_usage(folder):
    complains(deepinfer("key", "make", "x", "--api-key-file", folder / "k"), 2, "new ID")
    complains(deepinfer("key", "--api-key-file", folder / "k"), 2)
    complains(deepinfer("key", "new", "x"), 2, "--api-key-file")


main()
