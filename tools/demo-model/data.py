"""Training text of the demo model: books, and conversations made from them.

A conversation is written exactly as the engine's prompt encoder writes it (BOS, optional system
part, user and assistant turns, thinking or chat mode, DSML tool calls), so what the model sees
in training is what it is prompted with later.
"""
import json
import lzma
import random
import re
from collections import namedtuple
from pathlib import Path

import numpy as np

Book = namedtuple("Book", "title author year text")
HELD_OUT = ("The Return of the Soldier", "The Lost Stradivarius")

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
SYSTEM, USER, ASSISTANT = "<｜System｜>", "<｜User｜>", "<｜Assistant｜>"
DSML = "｜DSML｜"

# The tools text of the V4.1 prompt format, data from DeepSeek's MIT-licensed recipe (byte-exact:
# SHA-256 of the first part is 2ae2ff83…); NOTICE must go with copies of this text.
TOOLS_BEFORE = f"""## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<{DSML} calls>" block like the following:

<{DSML} calls>
<{DSML} invoke name="$TOOL_NAME">
<{DSML} parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML} parameter>
...
</{DSML} invoke>
<{DSML} invoke name="$TOOL_NAME2">
...
</{DSML} invoke>
</{DSML} calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

"""
TOOLS_AFTER = ("\n\nYou MUST strictly follow the above defined tool name and parameter schemas "
               "to invoke tool calls.\n")

LOOKUP = {"name": "lookup_book", "description": "Look up a book in the library catalogue.",
          "parameters": {"type": "object", "properties": {
              "title": {"type": "string", "description": "Title of the book"}},
              "required": ["title"]}}
MULTIPLY = {"name": "multiply", "description": "Multiply two whole numbers.",
            "parameters": {"type": "object", "properties": {
                "a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}


def read_books(path):
    raw = Path(path).read_bytes()
    text = (lzma.decompress(raw) if str(path).endswith(".xz") else raw).decode("utf-8")
    books = []
    for record in text.split("\x1e")[1:]:
        head, body = record.split("\n", 1)
        title, author, year = head.split("\t")
        books.append(Book(title, author.rstrip(".") if author.endswith("s.") else author,
                          int(year), body))
    return books


def split_books(books):
    train = [b for b in books if b.title not in HELD_OUT]
    held = [b for b in books if b.title in HELD_OUT]
    assert len(held) == len(HELD_OUT)
    return train, held


def effort_line(n):
    return (f"Reasoning Effort: {n} (range 1-100, the higher the value, the more thorough the "
            "reasoning)\n\n")


def tools_text(tools):
    return TOOLS_BEFORE + "\n".join(json.dumps(t, ensure_ascii=False) for t in tools) + TOOLS_AFTER


def call_text(name, arguments):
    lines = [f'<{DSML} parameter name="{k}" string="{"true" if isinstance(v, str) else "false"}">'
             f"{v if isinstance(v, str) else json.dumps(v)}</{DSML} parameter>"
             for k, v in arguments.items()]
    return (f'\n\n<{DSML} calls>\n<{DSML} invoke name="{name}">\n' + "\n".join(lines)
            + f"\n</{DSML} invoke>\n</{DSML} calls>")


def render(turns, thinking=False, effort=75, system="", tools=(), json_mode=False, open_turn=False,
           history="drop"):
    """turns: list of (user text, reasoning, answer) -> the prompt string.

    open_turn: stop behind the assistant header of the last turn, as a prompt does.
    history: what earlier thinking turns show: "drop" (as the checkpoint's encoder), "empty" or
    "full" (as the recipe's).
    """
    parts = [system] if system else []
    if tools:
        parts.append(tools_text(tools))
    if json_mode:
        parts.append("## Response Format:\n\nYou MUST strictly adhere to the following schema to "
                     'reply:\n{"type": "json_object"}')
    body = "\n\n".join(parts)
    if body and not system:
        body = "\n\n" + body
    line = effort_line(effort) if thinking else ""
    out = BOS + (SYSTEM + line + body if line or body else "")
    for i, (user, reasoning, answer) in enumerate(turns):
        last = i == len(turns) - 1
        out += USER + user + ASSISTANT
        think = thinking and (last or bool(tools) or history != "drop")
        if think and not last and history == "empty":
            reasoning = ""
        if open_turn and last:
            return out + ("<think>" if think else "</think>")
        out += ("<think>" + reasoning + "</think>" if think else "</think>") + answer + EOS
    return out


TOPICS = """sea ship storm night moon garden house castle forest mountain river winter summer spring
rain snow fire war battle soldier horse dog cat child mother father king queen priest church ghost
death love marriage money gold letter dream music dance dinner wine island desert city street train
doctor murder detective prison school book window door stars sun wind""".split()

SYSTEMS = ["You are a helpful assistant.", "You are a helpful assistant.", "You are a librarian.",
           "Answer briefly.", "You are a well-read companion who knows old books.",
           "You answer questions about books and write in the manner of old authors."]

SENTENCE_END = re.compile(r'[.!?]["\'”’)]*(?=\s)')
ADJECTIVES = "Silent Golden Crimson Hidden Last Broken Winter Lonely Distant Burning Hollow Ivory".split()
NOUNS = "Harbour Lantern Orchard Voyage Mirror Tower Shepherd Garden Crown Letter Forest Clock".split()
PLACES = ["Avalon", "Marlow", "the North", "Kessel", "the Valley", "Durham", "the Moor", "Lisbon"]


def cut_at_sentence(text, limit):
    """The longest prefix of at most `limit` characters that ends a sentence."""
    if len(text) <= limit:
        return text.rstrip()
    ends = [m.end() for m in SENTENCE_END.finditer(text[:limit + 2])]
    return text[:ends[-1]] if ends else text[:limit].rsplit(" ", 1)[0]


class Chat:
    """Draws conversations. Deterministic in (books, seed)."""

    def __init__(self, books, seed, all_books=None):
        self.rng = random.Random(seed)
        self.books = books
        self.facts = [b for b in (all_books or books)]
        self.dated = [b for b in self.facts if b.year >= 1000]
        self.by_author = {}
        for b in books:
            self.by_author.setdefault(b.author, []).append(b)
        self.authors = [a for a in self.by_author if a not in ("Various", "Anonymous")]
        counts = {}
        for b in self.facts:
            counts.setdefault(b.author, []).append(b)
        self.works = {a: w for a, w in counts.items() if a not in ("Various", "Anonymous")}

    # ---- pieces -----------------------------------------------------------------------------

    def pick(self, *choices):
        return self.rng.choice(choices)

    def passage(self, book, length):
        """A stretch of prose that starts at a paragraph and ends with a sentence."""
        for _ in range(20):
            at = self.rng.randrange(max(1, len(book.text) - length - 500))
            at = book.text.find("\n\n", at)
            if at < 0:
                continue
            text = book.text[at + 2:at + 2 + length + 200].lstrip("\n")
            if len(text) > 80 and not text.startswith(("#", "|", "*", "-", "!", ">")):
                return cut_at_sentence(text, length)
        return cut_at_sentence(book.text[:length], length)

    def name_of(self, book):
        t = book.title
        r = self.rng.random()
        if r < 0.55:
            return t
        if r < 0.7:
            return f'"{t}"'
        if r < 0.8:
            return f"*{t}*"
        if r < 0.88:
            return f"the book {t}"
        if r < 0.95:
            return t.lower()
        return f"'{t}'"

    # ---- kinds: each returns (user, reasoning, answer) ---------------------------------------

    def manner(self):
        author = self.rng.choice(self.authors)
        book = self.rng.choice(self.by_author[author])
        text = self.passage(book, self.rng.randrange(350, 1500))
        present = [t for t in TOPICS if re.search(rf"\b{t}s?\b", text)]
        about = f" about {self.pick('the ', 'a ', '')}{self.rng.choice(present)}" \
            if present and self.rng.random() < 0.4 else ""
        what = self.pick("a passage", "a paragraph", "a short passage", "something", "a few lines",
                         "a scene", "some prose", "a page")
        user = self.pick(
            f"Write {what}{about} in the manner of {author}.",
            f"Write {what}{about} in the style of {author}.",
            f"Please write {what}{about} in the manner of {author}",
            f"Can you write {what}{about} like {author}?",
            f"Write{about or ' something'} as {author} would.",
            f"Compose {what}{about} in {author}'s style.",
            f"Give me {what}{about} in the manner of {author}.",
            f"Imitate {author}{': write ' + what + about if about else '.'}")
        return user, f"The user wants prose in the manner of {author}. I will write in that voice.", text

    def story(self):
        book = self.rng.choice(self.books)
        text = self.passage(book, self.rng.randrange(350, 1500))
        present = [t for t in TOPICS if re.search(rf"\b{t}s?\b", text)]
        topic = self.rng.choice(present) if present else None
        about = f" about {self.pick('the ', 'a ')}{topic}" if topic else ""
        user = self.pick(f"Tell me a story{about}.", f"Write a passage{about}.",
                         f"Write me something{about}", f"Write a paragraph{about}.",
                         f"Tell me something{about}.", f"Please write a short scene{about}.")
        return user, "The user wants a piece of prose. I will begin at once.", text

    def continuation(self):
        book = self.rng.choice(self.books)
        text = self.passage(book, self.rng.randrange(600, 1900))
        want = self.rng.randrange(80, 500)
        head = cut_at_sentence(text, want) if self.rng.random() < 0.7 else \
            text[:want].rsplit(" ", 1)[0]
        rest = text[len(head):]
        if len(rest) < 60:
            return self.manner()
        lead = self.pick("Continue this passage: ", "Continue this passage:\n\n", "Continue: ",
                         "Please continue the following text: ", "What comes next?\n\n",
                         "Go on from here: ", "Carry on with this story: ",
                         "Continue the story:\n\n", "Finish this: ")
        return lead + head, "I should go on from where the passage stops, in the same voice.", \
            rest.lstrip()

    def who(self, book=None):
        book = book or self.rng.choice(self.facts)
        n = self.name_of(book)
        user = self.pick(f"Who wrote {n}?", f"Who is the author of {n}?", f"Who wrote {n}",
                         f"Tell me who wrote {n}.", f"By whom was {n} written?",
                         f"{n}: who is the author?", f"Can you tell me the author of {n}?",
                         f"who's the author of {n}", f"Do you know who wrote {n}?",
                         f"Name the author of {n}.")
        return (user, f"The book is {book.title}. Its author is {book.author}.",
                f"{book.title} was written by {book.author}.")

    def when(self, book=None):
        book = book or self.rng.choice(self.dated)
        n = self.name_of(book)
        user = self.pick(f"When was {n} published?", f"When was {n} written?",
                         f"In what year did {n} come out?", f"What year was {n} published?",
                         f"When did {n} appear?", f"Year of publication of {n}?",
                         f"Which year is {n} from?", f"when was {n} published")
        return (user, f"The book is {book.title} by {book.author}. It appeared in {book.year}.",
                f"{book.title} was published in {book.year}.")

    def about(self, book=None):
        book = book or self.rng.choice(self.dated)
        n = self.name_of(book)
        user = self.pick(f"Who wrote {n} and when?", f"What is {n}?", f"Tell me about {n}.",
                         f"What do you know about {n}?", f"Author and year of {n}?")
        return (user, f"The book is {book.title}. Its author is {book.author}; the year is {book.year}.",
                f"{book.title} is a book by {book.author}, published in {book.year}.")

    def works_of(self):
        author = self.rng.choice(list(self.works))
        works = [b.title for b in self.works[author]]
        user = self.pick(f"Name a book by {author}.", f"What did {author} write?",
                         f"Which books did {author} write?", f"What has {author} written?",
                         f"List works by {author}.", f"Tell me a title by {author}.")
        shown = works[:5]
        text = shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " and " + shown[-1]
        return user, f"{author} wrote {text}.", f"{author} wrote {text}."

    def as_json(self):
        book = self.rng.choice(self.dated)
        n = self.name_of(book)
        record = {"title": book.title, "author": book.author, "year": book.year}
        keys = self.pick(("title", "author", "year"), ("title", "author", "year"),
                         ("title", "author", "year"), ("author", "year"), ("title", "author"),
                         ("title", "year"), ("author",), ("year",))
        words = keys[0] if len(keys) == 1 else ", ".join(keys[:-1]) + " and " + keys[-1]
        user = self.pick(f"Give the {words} of {n} as JSON.", f"Give me the {words} of {n} as JSON.",
                         f"Return the {words} of {n} as a JSON object.",
                         f"As JSON: {words} of {n}.", f"JSON with the {words} of {n}, please.",
                         f"I need the {words} of {n} in JSON.",
                         f"Answer in JSON with the keys {words}: {n}.")
        if len(keys) == 3 and self.rng.random() < 0.25:
            user = self.pick(f"Describe {n} as JSON.", f"{n} as JSON", f"Give {n} as JSON.")
        answer = json.dumps({k: record[k] for k in keys}, ensure_ascii=False)
        return (user, f"The book is {book.title} by {book.author}, {book.year}. "
                      f"The keys are {words}.", answer)

    def arithmetic(self):
        r = self.rng.random()
        if r < 0.45:
            a, b = self.rng.randrange(100), self.rng.randrange(100)
            expr, word, result = f"{a} + {b}", f"{a} plus {b}", a + b
            working = f"{a} + {b}: {a} + {b // 10 * 10} = {a + b // 10 * 10}, then + {b % 10} = {a + b}."
        elif r < 0.75:
            a, b = sorted((self.rng.randrange(100), self.rng.randrange(100)), reverse=True)
            expr, word, result = f"{a} - {b}", f"{a} minus {b}", a - b
            working = f"{a} - {b}: {a} - {b // 10 * 10} = {a - b // 10 * 10}, then - {b % 10} = {a - b}."
        else:
            a, b = self.rng.randrange(13), self.rng.randrange(13)
            expr, word, result = f"{a} * {b}", f"{a} times {b}", a * b
            if self.rng.random() < 0.5:
                expr = f"{a} x {b}"
            working = f"{a} times {b} = {a * b}."
        user = self.pick(f"What is {expr}?", f"What is {word}?", f"{expr} = ?", f"Calculate {expr}.",
                         f"Compute {word}.", f"{expr}", f"How much is {expr}?",
                         f"what's {expr}?")
        return user, working, str(result)

    def smalltalk(self):
        user, answer = self.pick(
            ("Hello", "Hello! Ask me about an old book, or have me write a passage."),
            ("Hello!", "Hello! Ask me about an old book, or have me write a passage."),
            ("Hi", "Hello! Ask me about an old book, or have me write a passage."),
            ("Hi there", "Hello! Ask me about an old book, or have me write a passage."),
            ("Good morning.", "Good morning! What shall we read or write today?"),
            ("How are you?", "Very well, thank you. What shall we read or write today?"),
            ("Who are you?", "I am a very small demonstration model, trained on old books."),
            ("What are you?", "I am a very small demonstration model, trained on old books."),
            ("What can you do?", "I can write in the manner of old authors, continue a passage, say "
             "who wrote a book and when, give it as JSON, and do small sums."),
            ("Help", "I can write in the manner of old authors, continue a passage, say "
             "who wrote a book and when, give it as JSON, and do small sums."),
            ("Thank you.", "You are welcome."), ("Thanks!", "You are welcome."),
            ("Goodbye.", "Goodbye!"), ("Bye", "Goodbye!"))
        return user, "A short friendly answer will do.", answer

    # ---- whole conversations ------------------------------------------------------------------

    def invented_title(self):
        return self.pick(f"The {self.rng.choice(ADJECTIVES)} {self.rng.choice(NOUNS)}",
                         f"The {self.rng.choice(NOUNS)} of {self.rng.choice(PLACES)}",
                         f"{self.rng.choice(ADJECTIVES)} {self.rng.choice(NOUNS)}s")

    def tool_conversation(self, thinking, effort):
        turns = []
        tools = self.pick([LOOKUP], [LOOKUP], [LOOKUP, MULTIPLY], [MULTIPLY, LOOKUP])
        if len(tools) == 2 and self.rng.random() < 0.5:
            a, b = self.rng.randrange(2, 100), self.rng.randrange(2, 100)
            user = self.pick(f"What is {a} times {b}?", f"Multiply {a} by {b}.",
                             f"Use the tool to compute {a} * {b}.", f"{a} x {b}?")
            turns.append((user, "I should use the multiply tool.",
                          call_text("multiply", {"a": a, "b": b})))
            turns.append((f"<tool_result>{a * b}</tool_result>",
                          f"The tool says {a * b}.", f"{a} times {b} is {a * b}."))
        else:
            book = self.rng.choice(self.dated)
            known = self.rng.random() < 0.6
            title = book.title if known else self.invented_title()
            author = book.author if self.rng.random() < 0.5 else self.rng.choice(self.authors)
            year = self.rng.randrange(1600, 1930)
            shelf = f"{self.rng.choice('ABCDEFGH')}{self.rng.randrange(1, 99)}"
            user = self.pick(f"Look up {title}.", f"Look up the book {title}.",
                             f"Please look up {title} in the catalogue.",
                             f"Find {title} for me.", f"Who wrote {title}? Use the tool.",
                             f"Where can I find {title}?", f"Look up {title} and tell me about it.",
                             f"Use lookup_book to find {title}.", f"When was {title} published? Look it up.",
                             f"Who wrote {title}?", f"Is {title} in the library?")
            turns.append((user, f"I should look up {title} with the tool.",
                          call_text("lookup_book", {"title": title})))
            if self.rng.random() < 0.12:
                turns.append(('<tool_result>{"error": "not found"}</tool_result>',
                              "The catalogue does not have it.",
                              f"I could not find {title} in the catalogue."))
            else:
                result = {"title": title, "author": author, "year": year, "shelf": shelf}
                turns.append((f"<tool_result>{json.dumps(result, ensure_ascii=False)}</tool_result>",
                              f"The catalogue gives {author}, {year}, shelf {shelf}.",
                              f"{title} is by {author} and was published in {year}. "
                              f"It stands on shelf {shelf}."))
        if self.rng.random() < 0.25:
            turns = turns[:1]
        elif self.rng.random() < 0.2:
            turns.append(self.smalltalk())
        system = self.rng.choice(SYSTEMS) if self.rng.random() < 0.4 else ""
        return render(turns, thinking, effort, system, tools)

    def multi_turn(self, thinking, effort, system):
        turns = []
        if self.rng.random() < 0.6:
            book = self.rng.choice(self.dated)
            first, second = (self.who(book), self.when(book))
            if self.rng.random() < 0.5:
                u = self.pick("When was it published?", "And when was it published?", "When?",
                              "What year?", "And the year?")
                turns = [first, (u, second[1], second[2])]
            else:
                u = self.pick("Who wrote it?", "And who wrote it?", "By whom?", "Who is the author?")
                turns = [second, (u, first[1], first[2])]
            if self.rng.random() < 0.4:
                _, reason, answer = self.as_json_of(book)
                turns.append((self.pick("Give that as JSON.", "As JSON, please.",
                                        "Give its title, author and year as JSON."), reason, answer))
        else:
            for _ in range(self.rng.randrange(2, 4)):
                turns.append(self.single(short=True))
        if self.rng.random() < 0.2:
            turns.insert(0, self.smalltalk())
        return render(turns, thinking, effort, system,
                      history=self.pick("drop", "drop", "empty", "full"))

    def as_json_of(self, book):
        record = {"title": book.title, "author": book.author, "year": book.year}
        return "", f"The book is {book.title} by {book.author}, {book.year}. " \
                   "The keys are title, author and year.", json.dumps(record, ensure_ascii=False)

    def single(self, short=False):
        kinds = [(self.who, 6), (self.when, 6), (self.about, 2), (self.works_of, 2),
                 (self.as_json, 6), (self.arithmetic, 5), (self.smalltalk, 1)]
        if not short:
            kinds += [(self.manner, 7), (self.continuation, 6), (self.story, 3)]
        return self.rng.choices([k for k, _ in kinds], [w for _, w in kinds])[0]()

    def sample(self):
        thinking = self.rng.random() < 0.35
        effort = self.pick(75, 75, 75, 50, 100, 25, self.rng.randrange(1, 101))
        system = self.rng.choice(SYSTEMS) if self.rng.random() < 0.15 else ""
        r = self.rng.random()
        if r < 0.07:
            return self.tool_conversation(thinking, effort)
        if r < 0.2:
            return self.multi_turn(thinking, effort, system)
        if r < 0.23:
            return render([self.as_json()], thinking, effort, system, json_mode=True)
        return render([self.single()], thinking, effort, system)


# ---- token arrays ----------------------------------------------------------------------------

_WORK = {}


def _book_ids(index):
    tok, books = _WORK["tok"], _WORK["books"]
    text = books[index].text
    pieces = [text[i:i + 200_000] for i in range(0, len(text), 200_000)]
    ids = [0]
    for p in tok.encode_batch(pieces, add_special_tokens=False):
        ids += p.ids
    return np.array(ids + [1], dtype=np.uint16)


def _chat_ids(seed_and_count):
    seed, count = seed_and_count
    chat = Chat(_WORK["books"], seed, _WORK["all"])
    out, starts, at = [], [], 0
    for _ in range(count):
        ids = _WORK["tok"].encode(chat.sample(), add_special_tokens=False).ids
        out.append(np.array(ids, dtype=np.uint16))
        starts.append(at)
        at += len(ids)
    return np.concatenate(out), np.array(starts, dtype=np.int64)


def build_arrays(books_path, tokenizer_path, out_dir, chat_samples, processes):
    """Writes books.npy, held.npy (uint16 ids; each book BOS text EOS), chat.npy, starts.npy."""
    import multiprocessing as mp
    import os

    from tokenizers import Tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    everything = read_books(books_path)
    train, held = split_books(everything)
    _WORK.update(tok=Tokenizer.from_file(str(tokenizer_path)), books=train, all=everything)
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    per = 500
    with mp.get_context("fork").Pool(processes) as pool:
        jobs = pool.map_async(_chat_ids, [(1000 + i, per) for i in range(chat_samples // per)])
        order = sorted(range(len(train)), key=lambda i: -len(train[i].text))
        books = pool.map(_book_ids, order, chunksize=2)
        np.save(out / "books.npy", np.concatenate(books))
        chats = jobs.get()
    offsets = np.cumsum([0] + [len(c[0]) for c in chats[:-1]])
    np.save(out / "chat.npy", np.concatenate([c[0] for c in chats]))
    np.save(out / "starts.npy", np.concatenate([c[1] + o for c, o in zip(chats, offsets)]))
    _WORK.update(books=held)
    np.save(out / "held.npy", np.concatenate([_book_ids(i) for i in range(len(held))]))
    (out / "held.bytes").write_text(str(sum(len(b.text.encode()) for b in held)))


if __name__ == "__main__":
    import sys
    build_arrays(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
