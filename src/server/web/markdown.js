// Markdown to elements, for what a model writes. Text only ever becomes text nodes: no HTML is
// parsed, links go to http, https and mailto only.
//
// A text is cut into blocks; update() makes elements anew only for blocks whose source has changed,
// so that a growing answer costs its last block.

const BULLET = /^(\s*)([-*+]|\d{1,9}[.)])(\s+)(.*)$/;
const FENCE = /^(\s{0,3})(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const MOST_DEPTH = 12;
// How far an opening mark looks for its end: a text of nothing but marks stays cheap.
const MOST_AHEAD = 2000;

// ---- inline ---------------------------------------------------------------------------------

function safeLink(url) {
    try {
        const parsed = new URL(url);
        return ["http:", "https:", "mailto:"].includes(parsed.protocol) ? parsed.href : null;
    } catch {
        return null;
    }
}

// What a marker at text[at] opens: {node, next}, or null when it opens nothing.
function special(text, at, depth) {
    const c = text[at];
    if (c === "\\" && /[\\`*_{}[\]()#+\-.!|~<>]/.test(text[at + 1] || "")) {
        return {node: document.createTextNode(text[at + 1]), next: at + 2};
    }
    if (c === "`") {
        const ahead = text.slice(at, at + MOST_AHEAD), ticks = /^`+/.exec(ahead)[0];
        const found = ahead.indexOf(ticks, ticks.length), end = found < 0 ? -1 : at + found;
        if (end < 0 || text[end + ticks.length] === "`") {
            return {node: document.createTextNode(ticks), next: at + ticks.length};
        }
        const code = document.createElement("code");
        code.textContent = text.slice(at + ticks.length, end).replace(/^ (.*) $/s, "$1");
        return {node: code, next: end + ticks.length};
    }
    if (c === "[") {
        const link = /^\[((?:[^[\]\\]|\\.)*)\]\(\s*<?([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)>?(?:\s+"[^"]*")?\s*\)/
            .exec(text.slice(at, at + MOST_AHEAD));
        const href = link && safeLink(link[2]);
        if (!href) {
            return null;
        }
        const a = document.createElement("a");
        a.href = href;
        a.target = "_blank";
        a.rel = "noopener noreferrer nofollow";
        a.title = href;
        inline(a, link[1], depth + 1);
        return {node: a, next: at + link[0].length};
    }
    return emphasis(text, at, depth);
}

function emphasis(text, at, depth) {
    const c = text[at];
    const run = c === "~" ? "~~" : text.startsWith(c + c, at) ? c + c : c;
    if ((c !== "*" && c !== "_" && c !== "~") || !text.startsWith(run, at)) {
        return null;
    }
    const before = text[at - 1] || " ", first = text[at + run.length] || " ";
    if (/\s/.test(first) || (c === "_" && /\w/.test(before))) {
        return null;
    }
    const ahead = text.slice(0, at + MOST_AHEAD);
    for (let end = ahead.indexOf(run, at + run.length + 1); end > 0; end = ahead.indexOf(run, end + 1)) {
        const after = text[end + run.length] || " ";
        const closes = !/\s/.test(text[end - 1]) && text[end - 1] !== "\\" &&
            !(c === "_" && /\w/.test(after)) && !(run.length === 1 && (after === c || text[end - 1] === c));
        if (closes) {
            const node = document.createElement(c === "~" ? "del" : run.length === 2 ? "strong" : "em");
            inline(node, text.slice(at + run.length, end), depth + 1);
            return {node, next: end + run.length};
        }
    }
    return null;
}

function inline(parent, text, depth = 0) {
    let plain = 0;
    if (depth < MOST_DEPTH) {
        for (let at = 0; at < text.length;) {
            const c = text[at];
            if (c === "\n") { // a line break as the model wrote it
                parent.append(text.slice(plain, at).trimEnd(), document.createElement("br"));
                plain = ++at;
                continue;
            }
            const found = "\\`[*_~".includes(c) ? special(text, at, depth) : null;
            if (found) {
                parent.append(text.slice(plain, at), found.node);
                plain = at = found.next;
            } else {
                at++;
            }
        }
    }
    parent.append(text.slice(plain));
}

// ---- blocks ---------------------------------------------------------------------------------

// Cuts a text into blocks: [{kind, source, ...}]. Every line belongs to exactly one block.
function blocks(text) {
    const lines = text.replace(/\r\n?/g, "\n").replace(/\t/g, "    ").split("\n");
    const out = [];
    for (let i = 0; i < lines.length;) {
        if (!lines[i].trim()) {
            i++;
            continue;
        }
        const begin = i;
        const block = fence(lines, i) || heading(lines, i) || quote(lines, i) || table(lines, i) ||
            list(lines, i) || paragraph(lines, i);
        i = block.next;
        block.source = lines.slice(begin, i).join("\n");
        out.push(block);
    }
    return out;
}

function fence(lines, i) {
    const open = FENCE.exec(lines[i]);
    if (!open) {
        return null;
    }
    const close = new RegExp("^\\s{0,3}" + open[2][0] + "{" + open[2].length + ",}\\s*$");
    const indent = new RegExp("^ {0," + open[1].length + "}");
    const code = [];
    for (i++; i < lines.length && !close.test(lines[i]); i++) {
        code.push(lines[i].replace(indent, ""));
    }
    return {kind: "code", language: open[3], text: code.join("\n"), next: Math.min(i + 1, lines.length)};
}

function heading(lines, i) {
    if (RULE.test(lines[i])) {
        return {kind: "rule", next: i + 1};
    }
    const found = HEADING.exec(lines[i]);
    const text = found && found[2].trimEnd().replace(/ #+$/, "").trimEnd();
    return found && {kind: "heading", level: found[1].length, text, next: i + 1};
}

function quote(lines, i) {
    const inner = [];
    for (; i < lines.length && /^ {0,3}>/.test(lines[i]); i++) {
        inner.push(lines[i].replace(/^ {0,3}> ?/, ""));
    }
    return inner.length ? {kind: "quote", text: inner.join("\n"), next: i} : null;
}

function cells(line) {
    const inner = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
    return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replace(/\\\|/g, "|"));
}

function table(lines, i) {
    if (!lines[i].includes("|") || i + 1 >= lines.length || lines[i + 1].length > MOST_AHEAD || !TABLE_RULE.test(lines[i + 1]) ||
        !lines[i + 1].includes("-") || cells(lines[i]).length !== cells(lines[i + 1]).length) {
        return null;
    }
    const head = cells(lines[i]), rows = [];
    for (i += 2; i < lines.length && lines[i].includes("|") && lines[i].trim(); i++) {
        rows.push(cells(lines[i]));
    }
    return {kind: "table", head, rows, next: i};
}

function list(lines, i) {
    const first = BULLET.exec(lines[i]);
    if (!first || (first[1].length > 3)) {
        return null;
    }
    const ordered = /\d/.test(first[2]), items = [];
    let inner = null, width = 0;
    for (; i < lines.length; i++) {
        const found = BULLET.exec(lines[i]), blank = !lines[i].trim();
        const indent = /^ */.exec(lines[i])[0].length;
        if (found && (inner === null || indent < width) && indent <= first[1].length + 3 &&
            /\d/.test(found[2]) === ordered && !RULE.test(lines[i])) {
            inner = [found[4]];
            items.push(inner);
            width = indent + found[2].length + Math.min(found[3].length, 4);
        } else if (blank) {
            if (i + 1 < lines.length && lines[i + 1].trim() && !BULLET.test(lines[i + 1]) &&
                /^ */.exec(lines[i + 1])[0].length < Math.min(width, 2)) {
                break;
            }
            inner.push("");
        } else if (indent >= Math.min(width, 2)) {
            inner.push(lines[i].slice(Math.min(indent, width)));
        } else if (!found && inner[inner.length - 1] && !heading(lines, i) && !fence(lines, i)) {
            inner.push(lines[i]); // a paragraph that goes on without its indent
        } else {
            break;
        }
    }
    return {kind: "list", ordered, start: ordered ? parseInt(first[2], 10) : 1, items, next: i};
}

function paragraph(lines, i) {
    const begin = i;
    for (i++; i < lines.length && lines[i].trim(); i++) {
        const opens = FENCE.test(lines[i]) || heading(lines, i) || /^ {0,3}>/.test(lines[i]) ||
            /^ {0,3}([-*+]|1[.)])\s+\S/.test(lines[i]);
        if (opens) {
            break;
        }
    }
    return {kind: "text", text: lines.slice(begin, i).map((l) => l.trimStart()).join("\n"), next: i};
}

// ---- elements -------------------------------------------------------------------------------

export function icon(name) {
    const ns = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(ns, "svg"), use = document.createElementNS(ns, "use");
    svg.setAttribute("aria-hidden", "true");
    use.setAttribute("href", "#i-" + name);
    svg.append(use);
    return svg;
}

export function codeBlock(text, language) {
    const box = document.createElement("div"), bar = document.createElement("div");
    const pre = document.createElement("pre"), code = document.createElement("code");
    const copy = document.createElement("button"), name = document.createElement("span");
    box.className = "codeblock";
    bar.className = "bar";
    copy.type = "button";
    copy.className = "icon-button";
    copy.dataset.action = "copy-code";
    copy.append(icon("copy"), "Copy");
    name.textContent = language || "text";
    code.textContent = text;
    pre.tabIndex = 0; // so that it can be scrolled from the keyboard
    pre.setAttribute("role", "region");
    pre.setAttribute("aria-label", (language || "text") + " code");
    bar.append(name, copy);
    pre.append(code);
    box.append(bar, pre);
    return box;
}

function element(block, depth) {
    const make = (tag) => document.createElement(tag);
    switch (block.kind) {
    case "code":
        return codeBlock(block.text, block.language);
    case "rule":
        return make("hr");
    case "heading": {
        const h = make("h" + Math.min(block.level + 1, 4));
        inline(h, block.text);
        return h;
    }
    case "quote": {
        const q = make("blockquote");
        fill(q, block.text, depth + 1);
        return q;
    }
    case "table": {
        const wrap = make("div"), t = make("table"), head = make("thead"), body = make("tbody");
        wrap.className = "tablewrap";
        const row = (values, tag) => {
            const tr = make("tr");
            for (let i = 0; i < block.head.length; i++) {
                const cell = make(tag);
                inline(cell, values[i] || "");
                tr.append(cell);
            }
            return tr;
        };
        head.append(row(block.head, "th"));
        body.append(...block.rows.map((r) => row(r, "td")));
        t.append(head, body);
        wrap.append(t);
        return wrap;
    }
    case "list": {
        const l = make(block.ordered ? "ol" : "ul");
        if (block.ordered && block.start !== 1) {
            l.start = block.start;
        }
        for (const item of block.items) {
            const li = make("li");
            fill(li, item.join("\n"), depth + 1);
            const only = li.firstElementChild;
            if (only && only.tagName === "P") { // tight: the first paragraph is the item itself
                only.replaceWith(...only.childNodes);
            }
            l.append(li);
        }
        return l;
    }
    default: {
        const p = make("p");
        inline(p, block.text);
        return p;
    }
    }
}

function fill(parent, text, depth) {
    if (depth > MOST_DEPTH) {
        parent.append(text);
        return;
    }
    parent.append(...blocks(text).map((b) => element(b, depth)));
}

// Makes `parent` show `text`; what it showed before is kept as far as its source is the same.
export function update(parent, text) {
    const old = parent.sources || [], fresh = blocks(text);
    let same = 0;
    while (same < old.length && same < fresh.length && old[same] === fresh[same].source) {
        same++;
    }
    while (parent.children.length > same) {
        parent.lastElementChild.remove();
    }
    parent.append(...fresh.slice(same).map((b) => element(b, 0)));
    parent.sources = fresh.map((b) => b.source);
}
