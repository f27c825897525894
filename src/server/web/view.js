// Messages and the list of conversations as elements.

import {codeBlock, icon, update} from "./markdown.js";

function make(tag, className, ...children) {
    const e = document.createElement(tag);
    if (className) {
        e.className = className;
    }
    e.append(...children);
    return e;
}

function action(name, label, iconName) {
    const b = make("button", "icon-button", icon(iconName));
    b.type = "button";
    b.dataset.action = name;
    b.title = label;
    b.setAttribute("aria-label", label);
    return b;
}

export function seconds(s) {
    if (s < 9.95) {
        return s.toFixed(1) + " s";
    }
    return s < 60 ? Math.round(s) + " s" : Math.floor(s / 60) + " min " + Math.round(s % 60) + " s";
}

// ---- messages -------------------------------------------------------------------------------

function userMessage(message) {
    const li = make("li", "message user");
    const actions = make("div", "actions", action("edit", "Edit and ask again", "edit"),
        action("copy", "Copy the message", "copy"));
    li.append(make("h3", "unseen", "You"), make("div", "said", message.content), actions);
    return li;
}

function thinking() {
    const details = make("details", "thinking");
    const summary = make("summary", "", icon("fold"), make("span", ""));
    details.append(summary, make("div", "thoughts", make("div", "prose")));
    details.hidden = true;
    return details;
}

function assistantMessage() {
    const li = make("li", "message assistant");
    const wait = make("div", "waiting", make("i"), make("i"), make("i"));
    wait.setAttribute("role", "img");
    wait.setAttribute("aria-label", "Waiting for the answer");
    const notice = make("div", "notice");
    notice.hidden = true;
    const actions = make("div", "actions", action("copy", "Copy the answer", "copy"),
        action("again", "Answer again", "again"), make("span", "facts"));
    li.append(make("h3", "unseen", "Answer"), thinking(), make("div", "answer prose"), wait, notice,
        actions);
    return li;
}

function showThinking(details, message, busy) {
    const now = busy && !message.content;
    details.hidden = !message.reasoning;
    details.classList.toggle("now", now);
    const took = message.thoughtSeconds ? " for " + seconds(message.thoughtSeconds) : "";
    details.querySelector("summary span").textContent = now ? "Thinking" : "Thought" + took;
    if (message.reasoning) {
        update(details.querySelector(".prose"), message.reasoning);
    }
}

// JSON, while it grows as it is, then laid out.
function showJson(answer, message, busy) {
    let text = message.content;
    if (!busy) {
        try {
            text = JSON.stringify(JSON.parse(text), null, 2);
        } catch { /* cut off: as it is */ }
    }
    const code = answer.querySelector("code");
    if (busy && code) {
        code.textContent = text;
    } else {
        answer.replaceChildren(codeBlock(text, "json"));
    }
    answer.sources = null;
}

function showNotice(notice, message, busy) {
    const short = {length: "The answer was cut at its longest.", content_filter: "The answer was withheld."};
    const stopped = !busy && !message.finish && !message.error;
    const text = message.error || short[message.finish] || (stopped ? "Stopped." : "");
    notice.hidden = busy || !text;
    notice.classList.toggle("calm", !message.error);
    notice.replaceChildren(...(message.error ? [icon("warn")] : []), make("span", "", text));
    if (message.error) {
        notice.setAttribute("role", "alert");
    }
}

function facts(message) {
    const parts = [];
    if (message.tokens) {
        parts.push(message.tokens + (message.tokens === 1 ? " token" : " tokens"));
        if (message.seconds > 0 && message.tokens > 1) {
            parts.push((message.tokens / message.seconds).toFixed(message.tokens / message.seconds < 10 ? 1 : 0) +
                " tokens/s");
        }
    }
    return parts.join(" · ");
}

// Brings an assistant's element up to date.
export function refresh(li, message, busy) {
    const answer = li.querySelector(".answer");
    li.classList.toggle("busy", busy);
    li.setAttribute("aria-busy", String(busy));
    showThinking(li.querySelector(".thinking"), message, busy);
    if (message.json && message.content) {
        showJson(answer, message, busy);
    } else {
        update(answer, message.content);
    }
    li.querySelector(".waiting").hidden = !busy || Boolean(message.content || message.reasoning);
    li.querySelector(".actions").hidden = busy;
    li.querySelector("[data-action=copy]").hidden = !message.content;
    li.querySelector(".facts").textContent = facts(message);
    showNotice(li.querySelector(".notice"), message, busy);
}

export function messageElement(message, busy) {
    if (message.role === "user") {
        return userMessage(message);
    }
    const li = assistantMessage();
    refresh(li, message, busy);
    return li;
}

// In place of a user's message: a box to change it in. done(text or null).
export function editBox(li, text, done) {
    const box = make("div", "edit"), area = make("textarea"), row = make("div", "row");
    const cancel = make("button", "button", "Cancel"), send = make("button", "button primary", "Ask again");
    area.value = text;
    area.rows = Math.min(12, text.split("\n").length + 1);
    area.setAttribute("aria-label", "Change the message");
    cancel.type = send.type = "button";
    row.append(cancel, send);
    box.append(area, row);
    const was = [...li.children];
    const end = (value) => {
        li.replaceChildren(...was);
        done(value);
    };
    cancel.addEventListener("click", () => end(null));
    send.addEventListener("click", () => area.value.trim() && end(area.value.trim()));
    area.addEventListener("keydown", (event) => {
        if (event.key === "Escape") {
            event.stopPropagation();
            end(null);
        } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            send.click();
        }
    });
    li.replaceChildren(box);
    area.focus();
}

// ---- the list of conversations --------------------------------------------------------------

function dayOf(time) {
    const midnight = new Date();
    midnight.setHours(0, 0, 0, 0);
    const days = Math.ceil((midnight - time) / 86400000);
    return days <= 0 ? "Today" : days === 1 ? "Yesterday" : days <= 7 ? "This week" : "Earlier";
}

export function listChats(list, chats, currentId) {
    let day = null;
    const rows = [];
    for (const chat of chats) {
        if (dayOf(chat.changed) !== day) {
            day = dayOf(chat.changed);
            rows.push(make("li", "day", day));
        }
        const li = make("li", chat.id === currentId ? "chat current" : "chat");
        const open = make("button", "open", chat.title), gone = action("delete", "Delete: " + chat.title, "delete");
        open.type = "button";
        open.dataset.action = "open";
        open.title = chat.title;
        gone.classList.add("delete");
        li.dataset.id = chat.id;
        if (chat.id === currentId) {
            open.setAttribute("aria-current", "page");
        }
        li.append(open, gone);
        rows.push(li);
    }
    if (!rows.length) {
        rows.push(make("li", "none", "Conversations that you have had are listed here."));
    }
    list.replaceChildren(...rows);
}
