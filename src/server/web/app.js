// The chat page: asking, showing, keeping. Its parts: api.js (the server), store.js (the browser's
// storage), view.js and markdown.js (elements), settings.js (the dialog).

import * as api from "./api.js";
import * as store from "./store.js";
import {icon} from "./markdown.js";
import {applyTheme, connectSettings, isDark, openSettings, parseSchema} from "./settings.js";
import {editBox, listChats, messageElement, refresh} from "./view.js";

const $ = (id) => document.getElementById(id);

const state = {
    settings: store.loadSettings(),
    key: store.loadKey(),
    model: "",
    chats: store.loadChats(),
    chat: null,        // the one that is shown; not in chats before its first message
    runs: new Map(),   // chat id: {controller, message, li}
    atEnd: true,       // the newest line is in sight, and stays there
};

function say(text) {
    $("status").textContent = text;
}

// ---- showing --------------------------------------------------------------------------------

function showList() {
    listChats($("chats"), state.chats, state.chat.id);
}

function showBusy() {
    const busy = state.runs.has(state.chat.id);
    $("composer").classList.toggle("busy", busy);
    $("send").setAttribute("aria-label", busy ? "Stop" : "Send");
    $("send").setAttribute("aria-disabled", String(!busy && !$("input").value.trim()));
}

function showChat() {
    const {chat} = state, run = state.runs.get(chat.id);
    $("title").textContent = chat.title || "New chat";
    document.title = chat.title ? chat.title + " – DeepInfer" : "DeepInfer";
    $("welcome").hidden = chat.messages.length > 0;
    $("log").hidden = chat.messages.length === 0;
    $("log").replaceChildren(...chat.messages.map((m) => {
        const li = messageElement(m, Boolean(run && run.message === m));
        if (run && run.message === m) {
            run.li = li;
        }
        return li;
    }));
    showAgain();
    showBusy();
    state.atEnd = true;
    scrollToEnd();
}

// Only the newest answer can be given again.
function showAgain() {
    const buttons = $("log").querySelectorAll("[data-action=again]");
    buttons.forEach((b, i) => { b.hidden = i !== buttons.length - 1; });
}

function scrollToEnd() {
    if (state.atEnd) {
        $("scroller").scrollTop = $("scroller").scrollHeight;
    }
    noteScroll();
}

function noteScroll() {
    const s = $("scroller");
    $("to-end").hidden = s.scrollHeight - s.scrollTop - s.clientHeight < 96;
}

function fitInput() {
    const input = $("input");
    input.style.height = "auto";
    input.style.height = input.scrollHeight + "px";
    showBusy();
}

function showSchemaChip() {
    $("schema-chip").hidden = !state.settings.schema.trim();
}

// ---- conversations --------------------------------------------------------------------------

function openChat(chat) {
    state.chat = chat || {id: store.newId(), title: "", changed: Date.now(), messages: []};
    history.replaceState(null, "", chat ? "#" + chat.id : location.pathname + location.search);
    showChat();
    showList();
    closeMenu();
}

function keep(chat) {
    chat.changed = Date.now();
    if (!state.chats.includes(chat)) {
        state.chats.push(chat);
    }
    state.chats.sort((a, b) => b.changed - a.changed);
    if (!store.saveChat(chat)) {
        say("The browser has no room to keep this conversation.");
    }
}

function removeChat(id) {
    const chat = state.chats.find((c) => c.id === id), run = state.runs.get(id);
    if (run) {
        run.controller.abort();
    }
    state.chats = state.chats.filter((c) => c.id !== id);
    store.deleteChat(id);
    if (state.chat.id === id) {
        openChat(null);
        $("input").focus();
    } else {
        showList();
    }
    say("Deleted: " + chat.title);
}

function removeAll() {
    for (const run of state.runs.values()) {
        run.controller.abort();
    }
    state.chats.forEach((c) => store.deleteChat(c.id));
    state.chats = [];
    openChat(null);
    say("All conversations were deleted.");
}

// ---- asking ---------------------------------------------------------------------------------

// What the server is asked; throws Error when the schema is none.
function requestOf(chat) {
    const {settings} = state, request = {model: state.model, messages: []};
    const schema = parseSchema(settings.schema);
    if (settings.system.trim()) {
        request.messages.push({role: "system", content: settings.system.trim()});
    }
    chat.messages.forEach(({role, content}, i) => {
        const reply = chat.messages[i + 1]; // a question that got no answer is not asked again
        if (content && !(role === "user" && reply && !reply.content)) {
            request.messages.push({role, content});
        }
    });
    if (settings.effort === "none") {
        request.thinking = {type: "disabled"};
    } else {
        request.thinking = {type: "enabled"};
        request.reasoning_effort = settings.effort;
    }
    if (settings.temperature !== null) {
        request.temperature = settings.temperature;
    }
    if (settings.maxTokens !== null) {
        request.max_tokens = settings.maxTokens;
    }
    if (schema) {
        request.response_format = {type: "json_schema", json_schema: {name: "answer", schema}};
    }
    return request;
}

// Puts what arrives into the message, and on the page once a frame, in storage once a second.
function receiver(chat, run) {
    const {message} = run, begin = performance.now();
    let thinking = 0, first = 0, painted = true, kept = begin;
    const paint = () => {
        painted = true;
        if (run.li && state.chat === chat && state.runs.get(chat.id) === run) {
            refresh(run.li, message, true);
            scrollToEnd();
        }
    };
    return (part) => {
        const now = performance.now();
        first = first || now;
        if (part.reasoning) {
            thinking = thinking || now;
            message.reasoning += part.reasoning;
        }
        if (part.content) {
            if (!message.content && thinking) {
                message.thoughtSeconds = (now - thinking) / 1000;
            }
            if (!message.content) {
                say("Answering");
            }
            message.content += part.content;
        }
        if (part.finish) {
            message.finish = part.finish;
        }
        if (part.usage) {
            message.tokens = part.usage.completion_tokens;
        }
        message.seconds = (now - first) / 1000;
        if (painted) {
            painted = false;
            requestAnimationFrame(paint);
        }
        if (now - kept > 1000) {
            kept = now;
            store.saveChat(chat);
        }
    };
}

function tellEnd(message) {
    if (message.error) {
        say(message.error);
    } else if (!message.finish) {
        say("Stopped");
    } else {
        say(message.content.length < 300 ? message.content : "The answer is complete.");
    }
}

// Lets the chat's last message be answered.
async function answer(chat) {
    let request;
    if (!state.model) { // the server was away when the page was opened
        await findModel();
    }
    try {
        request = requestOf(chat);
    } catch (error) {
        openSettings("The JSON schema cannot be used.", "schema");
        return;
    }
    const message = {role: "assistant", content: "", reasoning: "", json: "response_format" in request};
    const run = {controller: new AbortController(), message, li: null};
    chat.messages.push(message);
    state.runs.set(chat.id, run);
    keep(chat);
    showChat();
    showList();
    say("Waiting for the answer");
    try {
        await api.chat(request, state.key, run.controller.signal, receiver(chat, run));
    } catch (error) {
        if (!(error instanceof api.ApiError)) { // a page that is being left fails so, too
            await new Promise((resolve) => { setTimeout(resolve, 300); });
        }
        if (error.name !== "AbortError") {
            message.error = error instanceof api.ApiError ? error.message : "The server cannot be reached.";
            if (error.status === 401) {
                openSettings(error.message, "api-key");
            }
        }
    }
    state.runs.delete(chat.id);
    if (message.reasoning && !message.content && !message.thoughtSeconds) {
        message.thoughtSeconds = message.seconds;
    }
    if (state.chats.includes(chat)) { // it may have been deleted meanwhile
        keep(chat);
        showList();
    }
    if (state.chat === chat) {
        refresh(run.li, message, false);
        showAgain();
        showBusy();
        scrollToEnd();
        tellEnd(message);
    }
}

function ask(text) {
    const {chat} = state;
    if (!text || state.runs.has(chat.id)) {
        return;
    }
    chat.title = chat.title || text.split("\n")[0].slice(0, 80);
    chat.messages.push({role: "user", content: text});
    history.replaceState(null, "", "#" + chat.id);
    answer(chat);
}

function stop() {
    const run = state.runs.get(state.chat.id);
    if (run) {
        run.controller.abort();
    }
    return Boolean(run);
}

// ---- what is pressed ------------------------------------------------------------------------

async function copy(button, text) {
    try {
        await navigator.clipboard.writeText(text);
    } catch {
        say("The browser does not let this page copy.");
        return;
    }
    const old = button.querySelector("svg");
    old.replaceWith(icon("done"));
    setTimeout(() => button.querySelector("svg").replaceWith(old), 1500);
    say("Copied");
}

function onMessageAction(button) {
    const {chat} = state, li = button.closest(".message");
    const at = [...$("log").children].indexOf(li), message = chat.messages[at];
    if (button.dataset.action === "copy-code") {
        copy(button, button.closest(".codeblock").querySelector("code").textContent);
    } else if (button.dataset.action === "copy") {
        copy(button, message.content);
    } else if (state.runs.has(chat.id)) {
        return;
    } else if (button.dataset.action === "again") {
        chat.messages.length = at;
        answer(chat);
    } else if (button.dataset.action === "edit") {
        editBox(li, message.content, (text) => {
            if (text !== null && !state.runs.has(chat.id)) {
                chat.messages.length = at;
                ask(text);
            }
            $("input").focus();
        });
    }
}

function openMenu() {
    $("sidebar").classList.add("open");
    $("scrim").hidden = false;
    $("open-menu").setAttribute("aria-expanded", "true");
    $("close-menu").focus();
}

function closeMenu() {
    $("sidebar").classList.remove("open");
    $("scrim").hidden = true;
    $("open-menu").setAttribute("aria-expanded", "false");
}

function send() {
    if (stop()) {
        return;
    }
    const text = $("input").value.trim();
    if (text) {
        $("input").value = "";
        fitInput();
        ask(text);
    }
    $("input").focus();
}

function connectComposer() {
    const touch = matchMedia("(hover: none) and (pointer: coarse)").matches; // Enter makes lines
    $("composer").addEventListener("submit", (event) => {
        event.preventDefault();
        send();
    });
    $("input").addEventListener("input", fitInput);
    $("input").addEventListener("keydown", (event) => {
        if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !touch) {
            event.preventDefault();
            if (!state.runs.has(state.chat.id)) {
                send();
            }
        }
    });
    $("effort").value = state.settings.effort;
    $("effort").addEventListener("change", () => {
        state.settings.effort = $("effort").value;
        store.saveSettings(state.settings);
    });
    $("schema-chip").addEventListener("click", () => openSettings("", "schema"));
    $("ideas").addEventListener("click", (event) => {
        if (event.target.tagName === "BUTTON") {
            ask(event.target.textContent);
            $("input").focus();
        }
    });
}

function connectPage() {
    $("log").addEventListener("click", (event) => {
        const button = event.target.closest("[data-action]");
        if (button) {
            onMessageAction(button);
        }
    });
    $("chats").addEventListener("click", (event) => {
        const button = event.target.closest("[data-action]");
        const id = button && button.closest(".chat").dataset.id;
        if (!button) {
            return;
        }
        if (button.dataset.action === "delete") {
            removeChat(id);
        } else {
            openChat(state.chats.find((c) => c.id === id));
        }
    });
    $("new-chat").addEventListener("click", () => {
        openChat(null);
        $("input").focus();
    });
    $("open-menu").addEventListener("click", openMenu);
    $("close-menu").addEventListener("click", () => {
        closeMenu();
        $("open-menu").focus();
    });
    $("scrim").addEventListener("click", closeMenu);
    $("open-settings").addEventListener("click", () => {
        closeMenu();
        openSettings();
    });
    $("toggle-theme").addEventListener("click", () => {
        const theme = isDark() ? "light" : "dark";
        [...document.getElementsByName("theme")].find((r) => r.value === theme).click();
    });
    $("scroller").addEventListener("scroll", () => {
        const s = $("scroller");
        state.atEnd = s.scrollHeight - s.scrollTop - s.clientHeight < 48;
        noteScroll();
    });
    $("to-end").addEventListener("click", () => {
        state.atEnd = true;
        scrollToEnd();
    });
    new ResizeObserver(scrollToEnd).observe($("scroller"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => applyTheme(state.settings.theme));
}

function connectKeys() {
    document.addEventListener("keydown", (event) => {
        if (event.key === "Escape" && !$("settings").open) {
            if ($("sidebar").classList.contains("open")) {
                closeMenu();
                $("open-menu").focus();
            } else if (stop()) {
                event.preventDefault();
            }
        }
        if (event.key.toLowerCase() === "o" && event.shiftKey && (event.ctrlKey || event.metaKey)) {
            event.preventDefault();
            $("new-chat").click();
        }
    });
}

// Another tab has changed something: what is shown here and not running follows.
function onStorage(event) {
    if (!store.isChatName(event.key)) {
        return;
    }
    const mine = new Map(state.chats.filter((c) => state.runs.has(c.id)).map((c) => [c.id, c]));
    state.chats = store.loadChats().map((c) => mine.get(c.id) || c);
    const same = state.chats.find((c) => c.id === state.chat.id);
    if (same && same !== state.chat) {
        state.chat = same;
        showChat();
    }
    showList();
}

async function findModel() {
    try {
        const list = await api.models(state.key);
        state.model = list.length ? list[0].id : "";
        $("model").textContent = state.model;
        $("welcome-note").textContent = "Answers come from this server. Conversations stay in this browser.";
    } catch (error) {
        $("model").textContent = "";
        $("welcome-note").textContent = error.status === 401
            ? "This server asks for an API key: enter yours in the settings."
            : "The server cannot be reached at the moment.";
    }
}

applyTheme(state.settings.theme);
connectSettings(state, (what) => {
    if (what === "key") {
        findModel();
    }
    showSchemaChip();
}, removeAll);
connectComposer();
connectPage();
connectKeys();
addEventListener("storage", onStorage);
addEventListener("pagehide", () => { // what has come is kept, as if it had been stopped
    for (const [id, run] of state.runs) {
        const chat = state.chats.find((c) => c.id === id);
        run.controller.abort();
        if (chat) { // it may have been deleted a moment ago
            store.saveChat(chat);
        }
    }
});
openChat(state.chats.find((c) => c.id === location.hash.slice(1)) || null);
showSchemaChip();
fitInput();
findModel();
