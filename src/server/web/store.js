// What is kept in the browser: settings, and each conversation under a name of its own, so that two
// tabs do not overwrite each other's. Nothing of it is sent anywhere but in requests.

const PREFIX = "deepinfer.chat.";
const SETTINGS = "deepinfer.settings";
const KEY = "deepinfer.key";

export const defaults = {
    theme: "system",
    system: "",
    temperature: null, // null: the model's own
    maxTokens: null,   // null: what fits
    effort: "high",    // none: no thinking
    schema: "",
    keepKey: false,
};

function read(storage, name) {
    try {
        return JSON.parse(storage.getItem(name));
    } catch {
        return null;
    }
}

// False: there is no room, or no storage.
function write(storage, name, value) {
    try {
        storage.setItem(name, JSON.stringify(value));
        return true;
    } catch {
        return false;
    }
}

export function loadSettings() {
    return {...defaults, ...read(localStorage, SETTINGS)};
}

export function saveSettings(settings) {
    return write(localStorage, SETTINGS, settings);
}

export function loadKey() {
    return read(sessionStorage, KEY) || read(localStorage, KEY) || "";
}

export function saveKey(key, keep) {
    for (const storage of [localStorage, sessionStorage]) {
        try {
            storage.removeItem(KEY);
        } catch { /* no storage: nothing is kept */ }
    }
    if (key) {
        write(keep ? localStorage : sessionStorage, KEY, key);
    }
}

function isChat(chat) {
    return chat && typeof chat.id === "string" && Array.isArray(chat.messages);
}

// Newest first: {id, title, changed, messages}.
export function loadChats() {
    const chats = [];
    try {
        for (let i = 0; i < localStorage.length; i++) {
            const name = localStorage.key(i);
            const chat = name.startsWith(PREFIX) ? read(localStorage, name) : null;
            if (isChat(chat)) {
                chats.push(chat);
            }
        }
    } catch { /* no storage */ }
    return chats.sort((a, b) => b.changed - a.changed);
}

export function isChatName(name) {
    return name === null || name.startsWith(PREFIX);
}

// Saves; when the browser's room is used up the oldest others make place. False: not even then.
export function saveChat(chat) {
    while (!write(localStorage, PREFIX + chat.id, chat)) {
        const oldest = loadChats().filter((c) => c.id !== chat.id).pop();
        if (!oldest) {
            return false;
        }
        deleteChat(oldest.id);
    }
    return true;
}

export function deleteChat(id) {
    try {
        localStorage.removeItem(PREFIX + id);
    } catch { /* no storage */ }
}

export function newId() {
    return Date.now().toString(36) + Math.random().toString(36).slice(2, 10);
}
