#!/usr/bin/env python3
"""Makes JSON Schemas with instances, from a seed: what bench/grammar.c and its peer measure.

    tools/grammar-sample.py [--count N] [--seed N] > FILE

A line is {"name", "schema", "tests": [{"valid", "data"}]}. Every instance is made with its schema,
so that it is valid by construction; the kinds of schemas and their sizes are those seen in the
field: arguments of functions, configuration files, records with enumerations and formats, trees.
"""
import argparse
import json
import random
import string

WORDS = """account address amount author balance body branch category city client code color comment
company config content count country created currency customer data date description device direction
discount duration email enabled end error event field file filter first flag format group height host
icon id image index invoice item key kind label language last latitude length level limit link list
location longitude max message method min mode model name note number offset options order owner page
parent password path payload period phone port price priority product profile project quantity query
rate reason reference region request result role rule score section service session size source start
state status street subject summary tag target tax team text time title token total type unit updated
url user value vendor version view visible weight width year zip zone""".split()


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.defs = {}

    def word(self):
        style = self.r.random()
        words = self.r.sample(WORDS, 1 + (style > 0.5) + (style > 0.9))
        if style > 0.75:
            return words[0] + "".join(w.title() for w in words[1:])
        return "_".join(words)

    def sentence(self, most=12):
        return " ".join(self.r.choice(WORDS) for _ in range(self.r.randint(0, most)))

    # Each of these gives a schema and a function that makes instances of it.

    def text(self):
        kind = self.r.randrange(8)
        if kind < 3:
            return {"type": "string", "description": self.sentence()}, self.sentence
        if kind == 3:
            low, high = self.r.randint(0, 3), self.r.choice([20, 64, 255, 2000])
            return ({"type": "string", "minLength": low, "maxLength": high},
                    lambda: (self.sentence(4) + "abc")[-high:])
        if kind < 6:
            values = sorted({self.word() for _ in range(self.r.choice([2, 3, 5, 12, 60]))})
            return {"type": "string", "enum": values}, lambda: self.r.choice(values)
        if kind == 6:
            return self.r.choice([
                ({"type": "string", "format": "date-time"}, lambda: "2026-0%d-1%dT08:1%d:00Z" % (
                    self.r.randint(1, 9), self.r.randint(0, 9), self.r.randint(0, 9))),
                ({"type": "string", "format": "date"},
                 lambda: "19%02d-0%d-17" % (self.r.randint(10, 99), self.r.randint(1, 9))),
                ({"type": "string", "format": "email"}, lambda: self.word() + "@example.org"),
                ({"type": "string", "format": "uuid"}, lambda: "%08x-0000-4000-8000-%012x" % (
                    self.r.getrandbits(32), self.r.getrandbits(48))),
                ({"type": "string", "format": "ipv4"},
                 lambda: ".".join(str(self.r.randint(0, 255)) for _ in range(4)))])
        return self.r.choice([
            ({"type": "string", "pattern": "^[A-Z]{2,4}-[0-9]{3,6}$"}, lambda: "".join(
                self.r.choices(string.ascii_uppercase, k=3)) + "-%d" % self.r.randint(1000, 9999)),
            ({"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$"},
             lambda: "-".join(self.r.sample(WORDS, 3))),
            ({"type": "string", "pattern": "^\\+?[0-9 ]{7,15}$"},
             lambda: "+49 %d" % self.r.randint(10**6, 10**7)),
            ({"type": "string", "pattern": "^#([0-9a-fA-F]{3}){1,2}$"},
             lambda: "#%06x" % self.r.getrandbits(24)),
            ({"type": "string", "pattern": "^/[^\\s?#]*$"}, lambda: "/" + "/".join(
                self.r.sample(WORDS, 2)))])

    def number(self):
        kind = self.r.randrange(5)
        if kind < 2:
            return {"type": "integer"}, lambda: self.r.randint(-5, 10**self.r.randint(1, 6))
        if kind == 2:
            low = self.r.choice([0, 1, -90])
            high = low + self.r.choice([9, 100, 65535])
            return ({"type": "integer", "minimum": low, "maximum": high},
                    lambda: self.r.randint(low, high))
        if kind == 3:
            return {"type": "number"}, lambda: round(self.r.uniform(-100, 1000), 2)
        return ({"type": "number", "minimum": 0, "maximum": 1},
                lambda: round(self.r.random(), 3))

    def array(self, depth):
        schema, make = self.value(depth - 1)
        out = {"type": "array", "items": schema}
        if self.r.random() < 0.4:
            out["minItems"], out["maxItems"] = 1, self.r.choice([3, 10, 100])
        return out, lambda: [make() for _ in range(self.r.randint(1, 3))]

    def object(self, depth):
        names, props, makes = [], {}, {}
        for _ in range(self.r.choice([1, 2, 3, 4, 6, 9, 15])):
            name = self.word()
            if name not in props:
                names.append(name)
                props[name], makes[name] = self.value(depth - 1)
        required = [n for n in names if self.r.random() < 0.5]
        out = {"type": "object", "properties": props}
        if required:
            out["required"] = required
        if self.r.random() < 0.6:
            out["additionalProperties"] = False

        def make():
            return {n: makes[n]() for n in names if n in required or self.r.random() < 0.4}
        return out, make

    def choice(self, depth):
        kinds = [self.object(depth - 1) for _ in range(self.r.randint(2, 4))]
        for i, (schema, _) in enumerate(kinds):
            schema["properties"] = {"kind": {"const": "kind%d" % i}, **schema["properties"]}
            schema["required"] = ["kind", *schema.get("required", [])]
        at = self.r.randrange(len(kinds))
        return ({self.r.choice(["anyOf", "oneOf"]): [s for s, _ in kinds]},
                lambda: {"kind": "kind%d" % at, **kinds[at][1]()})

    def tree(self):
        name, (schema, make) = "node%d" % len(self.defs), self.text()
        self.defs[name] = {"type": "object", "required": ["value"], "properties": {
            "value": schema, "children": {"type": "array", "items": {"$ref": "#/$defs/" + name}}}}

        def node(depth=2):
            out = {"value": make()}
            if depth:
                out["children"] = [node(depth - 1) for _ in range(self.r.randint(0, 2))]
            return out
        return {"$ref": "#/$defs/" + name}, node

    def value(self, depth):
        kind = self.r.random()
        if depth > 0 and kind < 0.16:
            return self.object(depth)
        if depth > 0 and kind < 0.28:
            return self.array(depth)
        if depth > 0 and kind < 0.31:
            return self.choice(depth)
        if depth > 0 and kind < 0.33:
            return self.tree()
        if kind < 0.7:
            return self.text()
        if kind < 0.9:
            return self.number()
        if kind < 0.97:
            return {"type": "boolean"}, lambda: self.r.random() < 0.5
        return {}, lambda: self.r.choice([None, 3, "x", [1, {"a": "b"}]])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for i in range(args.count):
        maker = Maker(args.seed * 100003 + i)
        schema, make = maker.object(1 + i % 4)
        if maker.defs:
            schema["$defs"] = maker.defs
        tests = [{"valid": True, "data": make()} for _ in range(3)]
        print(json.dumps({"name": f"made{i}", "schema": schema, "tests": tests},
                         separators=(",", ":")))


if __name__ == "__main__":
    main()
